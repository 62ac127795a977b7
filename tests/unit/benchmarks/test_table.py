"""One table of all published scores: each has our cell, a command that makes it, or says that there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.plan import EvaluationError
from benchmarks.table import command
from benchmarks.table.data import find_lacking
from benchmarks.table.evaluations import Evaluation, Places, find_evaluation, list_published
from core.runs.run_folder import RunFolder

from .conftest import make_result


def list_evaluations() -> list[Evaluation]:
    found = (find_evaluation(row, Places()) for row in list_published())
    return list(dict.fromkeys(evaluation for evaluation in found if evaluation is not None))


def test_every_evaluation_is_a_command_and_a_request_that_its_evaluator_reads() -> None:
    evaluations = list_evaluations()
    assert len(evaluations) == len({evaluation.name for evaluation in evaluations}) >= 19
    for evaluation in evaluations:
        evaluator = command.EVALUATORS[evaluation.benchmark]
        _, _, benchmark, *words = evaluation.command.split()
        assert benchmark == evaluation.benchmark
        typed = vars(evaluator.make_parser().parse_args(words))
        urls = dict.fromkeys(evaluation.models, "http://127.0.0.1:1")
        asked = vars(evaluator.read_request(evaluation.request(urls, "http://127.0.0.1:2")))
        addressed = {"policy_url": "http://127.0.0.1:1", "overrides": asked["overrides"]}
        as_lists = {name: list(value) if isinstance(value, tuple) else value for name, value in asked.items()}
        assert {**typed, **addressed} == {name: as_lists[name] for name in typed}
        assert bool(asked["overrides"]) == (evaluation.benchmark not in ("ruler", "localize"))
    with pytest.raises(EvaluationError, match=r"no option colour; there are: .*concurrency, "):
        command.EVALUATORS["ruler"].run(model="m", colour="red")


def test_every_frozen_role_of_agentflow_has_the_address_of_a_model() -> None:
    evaluation = next(each for each in list_evaluations() if each.benchmark == "aime" and each.preset == "published")
    urls = {model: f"http://host:{port}" for port, model in enumerate(evaluation.models)}
    overrides = evaluation.request(urls, "http://passages")["overrides"]
    assert {override.partition("=")[0] for override in overrides} == {
        *(f"roles.{role}" for role in ("fixed", "executor", "verifier", "base_generator", "coder", "judge")),
        "agentflow.tools.Ground_Google_Search_Tool.options.url",
        "agentflow.tools.Wikipedia_RAG_Search_Tool.options.url",
    }
    assert f"roles.coder={urls['Qwen/Qwen2.5-Coder-7B-Instruct']}" in overrides


def test_rows_without_a_protocol_or_a_model_are_told() -> None:
    beyond = command.describe_unreachable(list_published(), Places())
    assert "ToolOrchestra_Slime_Agentic_Qwen3_8B" in beyond
    assert "Qwen2.5-7B, YaRN, ruler-hqa 50: 52.3" in beyond
    assert "Orchestrator-8B, " not in beyond


def test_an_evaluation_runs_when_all_its_servers_are_named_and_is_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "memagent-eval"
    files.mkdir()
    requests: list[dict[str, Any]] = []

    def evaluate(**request: Any) -> int:
        requests.append(request)
        return 1

    class Recorder:
        run = staticmethod(evaluate)

    monkeypatch.setitem(command.EVALUATORS, "ruler", Recorder)  # type: ignore[arg-type]
    words = ["--runs", str(tmp_path / "runs"), "--data", str(tmp_path), "--only", "ruler", "--tasks", "3"]
    assert command.main([*words, "--url", "BytedTsinghua-SIA/RL-MemoryAgent-7B=http://host:1"]) == 1
    out = capsys.readouterr().out
    (request,) = requests
    assert request["policy_url"] == "http://host:1"
    assert (request["model"], request["tasks"]) == ("BytedTsinghua-SIA/RL-MemoryAgent-7B", 3)
    assert out.count("    it failed; its error is above") == 1
    assert "    a server of Qwen/Qwen2.5-7B-Instruct: --url Qwen/Qwen2.5-7B-Instruct=URL" in out
    assert (tmp_path / "runs" / "table.md").is_file()


def test_what_is_missing_is_told_with_the_way_to_get_it(tmp_path: Path) -> None:
    evaluation = next(each for each in list_evaluations() if "frames" in each.data)
    (tmp_path / "frames.jsonl").write_text("{}\n")
    evaluation = replace(evaluation, data=(*evaluation.data, "hle", "essays", "tau2"))
    told = "\n".join(find_lacking(evaluation, Places(data=tmp_path), retrieval=False))
    assert "frames.jsonl: missing" not in told
    assert "essays: missing. Get it: tokentrue data download essays" in told
    assert "TAU2_DATA: missing. Get it: see benchmarks/tau2/README.md" in told
    assert f"{tmp_path / 'hle.jsonl'}: missing. Get it: copy evaluation/hle.jsonl of NVlabs/ToolOrchestra" in told
    assert "retrieval service: tokentrue data download frames-corpus" in told
    assert "secrets/openai_api_key: the key of the models behind paid interfaces" in told


def save_scores(folder: RunFolder, count: int) -> None:
    """Save a cell of so many tasks; three of four are right."""
    scores, notes = [1.0, 1.0, 1.0, 0.0] * (count // 4), {"protocol": "memagent recurrent"}
    model = "BytedTsinghua-SIA/RL-MemoryAgent-7B"
    folder.save_evaluation(make_result("trained", "ruler-hqa", scores, length=50, model=model, notes=notes))


def test_what_a_folder_holds_is_no_longer_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell of four tasks is shown, and is missing yet beside a score of 128, unless no more were asked for."""

    def show(*more: str) -> tuple[str, int]:
        assert command.main(["--runs", str(tmp_path), "--dry-run", *more]) == 0
        text = capsys.readouterr().out
        return text, int(text.partition(" published scores have none")[0].rpartition("\n")[2])

    _, before = show()
    folder = RunFolder.create(tmp_path / "ours", {"method": "memagent", "preset": "published"})
    save_scores(folder, 4)
    text, lacking = show()
    (row,) = [line for line in text.splitlines() if line.startswith("| RL-MemAgent-7B | ruler-hqa | 50 |")]
    assert "| 75.0 (" in row
    assert lacking == before
    assert "8 rows (RL-MemAgent-7B, ruler-hqa)" in text
    assert show("--tasks", "4")[1] == before - 1
    assert show("--tasks", "5")[1] == before

    save_scores(folder, 128)
    text, lacking = show()
    assert lacking == before - 1
    assert "7 rows (RL-MemAgent-7B, ruler-hqa)" in text
    assert "Comparisons of official scores in the tables: 1." in text
