"""One command measures every published score that can be had, with a small model in the place of every model."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from aiohttp import web
from transformers import Qwen2Config, Qwen2ForCausalLM

from agentic.toolorchestra.tau2 import client
from benchmarks.ruler.tasks import TEN_TASKS
from benchmarks.table import command
from benchmarks.table.data import LENGTHS
from benchmarks.table.evaluations import find_evaluation, list_published
from benchmarks.table.servers import MODELS
from core.text.tokenizer import load_tokenizer
from tests.kit import answer_health, make_sglang_reply, serve_app, train_tokenizer

from .conftest import REPOSITORY

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

FAKE_TAU2 = REPOSITORY / "tests" / "unit" / "agentic" / "toolorchestra" / "tau2" / "fake_worker.py"
END_SHARE = 0.3
"""Probability of the end token: the stand-in writes two or three random tokens."""


def make_stand_in(folder: Path) -> Path:
    """Write a model that draws each token from one distribution, whatever it reads."""
    tokenizer = train_tokenizer("the answer is a number of words", 300)
    tokenizer.save_pretrained(folder)
    size, words = 8, len(tokenizer)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=words, hidden_size=size, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=1, max_position_embeddings=65536, tie_word_embeddings=False, bos_token_id=None,
            eos_token_id=tokenizer.eos_token_id, pad_token_id=None,
        )
    )  # fmt: skip
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.model.norm.weight.fill_(1.0)
        model.model.embed_tokens.weight[:, 0] = 1.0
        # The normalised state is (sqrt(size), 0, ...), so this row of the head sets one logit.
        odds = END_SHARE / (1 - END_SHARE) * (words - 1)
        model.lm_head.weight[tokenizer.eos_token_id, 0] = torch.tensor(odds).log() / size**0.5
    model.save_pretrained(folder)
    return folder


def write_data(folder: Path, ten_task_lengths: int) -> Path:
    """Write the data of every evaluation in the published files' own forms, with a line for each document.

    The ten tasks of RULER have so many of the seven published lengths.
    """
    files = folder / "memagent-eval"
    files.mkdir(parents=True)

    def write(name: str, text: str, count: int) -> None:
        records = [
            {"index": i, "input": f"Who is {i}?", "context": text, "answers": ["Ada"], "num_docs": 2}
            for i in range(count)
        ]
        (files / name).write_text(json.dumps(records))

    for length in LENGTHS:
        write(f"eval_{length}.json", "Document 1: the words of a number.", 2)
    for task in TEN_TASKS:
        for place in range(ten_task_lengths):
            write(f"eval_{task}_{8192 << place}.json", "The number of words is 12.", 2)
    records = [{"id": f"p{i}", "problem": f"What is {i} plus {i}?", "answer": str(2 * i)} for i in range(2)]
    (folder / "aime24.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for name in ("frames", "hle"):
        records = [{"id": f"{name}-{answer}", "question": "Who?", "answer": answer} for answer in ("Ada", "Grace")]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (folder / "tau2").mkdir()
    return folder


def list_arguments(folder: Path, runs: Path) -> list[str]:
    tau2 = ["--tau2-python", sys.executable, "--tau2-data", str(folder / "data" / "tau2")]
    return [
        *("--runs", str(runs), "--data", str(folder / "data"), "--stand-in", str(folder / "model")),
        *("--tasks", "1", "--concurrency", "1", *tau2),
    ]


class Scripted:
    """Plays every model on SGLang's wire. It answers the first of two questions right, whatever the benchmark."""

    def __init__(self, tokenizer: Any):
        self._tokenizer = tokenizer

    async def generate(self, request: web.Request) -> web.Response:
        prompt = self._tokenizer.decode((await request.json())["input_ids"])
        return make_sglang_reply([*self._tokenizer.encode(self.write(prompt)), self._tokenizer.eos_token_id])

    def write(self, prompt: str) -> str:
        if "VERDICT" in prompt:
            return "VERDICT: SAME" if "What is 0 plus 0?" in prompt else "VERDICT: DIFFERENT"
        if "Choose an appropriate tool." in prompt:
            return '<tool_call>{"name": "answer", "arguments": {"model": "answer-1"}}</tool_call>'
        if "wrap only the exact answer" in prompt:
            return "<think>so</think><answer>ada</answer>"
        if "Student answer: " in prompt:
            return "<correct>False</correct>"
        return "\\boxed{0} Therefore, the answer is Ada" if " 0?" in prompt or " 0 plus" in prompt else "Nothing."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("table")
    make_stand_in(folder / "model")
    write_data(folder / "data", ten_task_lengths=1)
    return folder


def read_scores(text: str) -> dict[tuple[str, str, str, str], tuple[str, str]]:
    """Map model, data, length and source of each row to our score and its number of tasks."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {(row[0], row[1], row[2], row[9]): (row[6].partition(" ")[0], row[7]) for row in rows[2:]}


TASKS = {"ruler-hqa": "2", "ruler-10": "20", "aime24": "2", "tau2": "6", "frames": "2", "hle": "2"}


def test_a_policy_that_answers_half_of_the_questions_has_that_score_in_every_row(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The parts of tau2-bench that are played are a stand-in, too: of its two tasks one wants nothing done."""
    monkeypatch.setattr(client, "WORKER", FAKE_TAU2)
    app = web.Application()
    app.add_routes(
        [
            web.post("/generate", Scripted(load_tokenizer(folder / "model")).generate),
            web.get("/health", answer_health),
        ]
    )
    arguments = [*list_arguments(folder, tmp_path), "--tasks", "2", "--concurrency", "2"]
    with serve_app(app) as url:
        served = [word for model in MODELS.values() for word in ("--url", f"{model.name}={url}")]
        status = command.main([*arguments, *served])
    out = capsys.readouterr().out
    assert status == 1, "of the ten tasks one length is there"
    found = read_scores((tmp_path / "stand-in" / "table.md").read_text())
    rows = list_published()
    assert len(found) == len({(row.name, row.data, row.length, row.source) for row in rows}) > 80
    without = {key for key, (score, _) in found.items() if score == "–"}
    other_lengths = {key for key in without if key[1] == "ruler-10"}
    assert len(other_lengths) == 3 * 6
    assert {key[0] for key in without - other_lengths} == {
        "Qwen2.5-7B, YaRN",
        "Qwen2.5-7B-Instruct, single call",
        "Qwen3-8B, untrained",
        "ToolOrchestra_Slime_Agentic_Qwen3_8B",
    }
    for (name, data, length, _), ours in found.items():
        if ours[0] != "–":
            assert ours == ("50.0", TASKS.get(data, "2")), (name, data, length)
    assert "18 published scores have none of ours" in out
    assert out.count("6 rows (") == 3
    for name in {row.name for row in rows if find_evaluation(row) is None}:
        assert f"    {name}, " in out.partition("No cell can be had for:")[2]

    others = ["--only", "aime", "tau2", "questions"]
    assert command.main([*arguments, *others]) == 0, "nothing of these is left to run, so no server is asked"
    assert "running" not in capsys.readouterr().out


def test_what_is_missing_is_told_with_the_way_to_get_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--runs", str(tmp_path), "--data", str(tmp_path), "--only", "questions", "--url", "x/y=http://h:1"]
    (tmp_path / "frames.jsonl").write_text("{}\n")
    (tmp_path / "frames.jsonl.sha256").write_text("0000  frames.jsonl\n")
    assert command.main(arguments) == 1
    out = capsys.readouterr().out
    assert f"{tmp_path / 'frames.jsonl'}: is not the file that frames.jsonl.sha256 describes" in out
    assert f"{tmp_path / 'hle.jsonl'}: missing. Get it: copy evaluation/hle.jsonl of NVlabs/ToolOrchestra" in out
    assert "retrieval service: tokentrue data download frames-corpus" in out
    assert "secrets/openai_api_key: the key for gpt-5, gpt-5-mini" in out
    assert "4 published scores have none of ours beside them." in out
