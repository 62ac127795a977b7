"""RESULTS.md's FRAMES command from the published records to the report: its own words, and stand-ins for the models."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from agentic.toolorchestra.config import PRESETS
from agentic.toolorchestra.rollout import SPEC
from benchmarks.heldout.evaluate import main
from core.runs.run_folder import RunFolder
from scripts import download_data
from tests.kit import answer_health, make_sglang_reply, serve_app
from tests.unit.agentic.toolorchestra.conftest import Services, call, tokenizer

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

__all__ = ["tokenizer"]

RECORDS = [
    {"Prompt": "What does a lamp cost?", "Answer": "42", "wiki_links": "[]", "reasoning_types": "Tabular"},
    {"Prompt": "Who made it?", "Answer": "Ada Lovelace", "wiki_links": "[]", "reasoning_types": "Temporal"},
    {"Prompt": "When?", "Answer": "1843", "wiki_links": "[]", "reasoning_types": "Temporal"},
]
ANSWERS = {"cost": "\\boxed{42}", "made": "\\boxed{Lovelace}", "When": "\\boxed{1900}"}


class World(Services):
    """Policy, experts, judge and retrieval behind one address."""

    def __init__(self, tokenizer: Any):
        super().__init__()
        self._tokenizer = tokenizer
        for name in SPEC.load("paper").toolorchestra.models:
            self.scripts[name] = self.reply

    def reply(self, messages: list[dict[str, Any]]) -> str:
        said = messages[-1]["content"]
        if "VERDICT" in said:
            return f"VERDICT: {'SAME' if 'Ada Lovelace' in said else 'DIFFERENT'}"
        if "search query" in said:
            return "lamp"
        return next(answer for word, answer in ANSWERS.items() if word in said)

    async def generate(self, request: web.Request) -> web.Response:
        """SGLang's wire: search first, then answer, each with the cheapest expert."""
        prompt = self._tokenizer.decode((await request.json())["input_ids"])
        text = call("answer", model="answer-4") if "A lamp costs" in prompt else call("search", model="search-3")
        return make_sglang_reply([*self._tokenizer.encode(text), self._tokenizer.eos_token_id])


@pytest.fixture
def world(tokenizer: Any) -> Iterator[World]:
    world, app = World(tokenizer), web.Application()
    app.add_routes(
        [
            web.post("/generate", world.generate),
            web.post("/v1/chat/completions", world.chat),
            web.post("/retrieve", world.retrieve),
            web.get("/health", answer_health),
        ]
    )
    with serve_app(app) as world.url:
        yield world


def documented(data: str) -> list[str]:
    """The words of RESULTS.md's command for `data`."""
    text = (PRESETS.parent / "RESULTS.md").read_text().replace("\\\n", " ")
    (line,) = re.findall(rf"bash agentic/toolorchestra/evaluate\.sh (.*--data {data}.*)", text)
    return shlex.split(line)


def test_the_documented_frames_command_ends_with_a_report(
    world: World, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data, out = tmp_path / "checkpoint", tmp_path / "data", tmp_path / "frames"
    tokenizer.save_pretrained(model)
    raw = tmp_path / "test.jsonl"
    raw.write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    assert download_data.main(["frames", "--out", str(data), "--from", str(raw), "--rows", "3"]) == 0
    places = {
        "CHECKPOINT": str(model),
        "http://HOST:30000": world.url,
        "data/frames.jsonl": str(data / "frames.jsonl"),
        "runs/frames": str(out),
    }
    words = [places.get(word, word) for word in documented("data/frames.jsonl")]
    assert not (places.keys() - set(documented("data/frames.jsonl")))
    models = {
        name: {"url": f"{world.url}/v1", "price": section.price and section.price.model_dump()}
        for name, section in SPEC.load("paper").toolorchestra.models.items()
    }
    here = [f"toolorchestra.models={json.dumps(models)}", f"toolorchestra.search.url={world.url}/retrieve"]
    assert main(["toolorchestra", *words, *(part for text in here for part in ("--set", text))]) == 0

    (result,) = RunFolder(out).evaluations()
    assert (result.variant, result.data, result.seed, result.n, result.failures) == ("trained", "frames", 0, 3, {})
    assert result.scores["official"] == [1.0, 1.0, 0.0], "as written, by the judge's word, and wrong"
    assert result.labels["kind"] == ["Tabular", "Temporal", "Temporal"]
    price = SPEC.load("paper").toolorchestra.models["Qwen/Qwen3-32B"].price
    assert price is not None
    experts = 2 * (1000 * price.input + 100 * price.output) / 1e6
    cost = result.measures["cost"]
    assert all(value is not None and value > experts for value in cost), "the orchestrator's tokens cost, too"
    assert "cost" in (out / "table.md").read_text()
    assert world.queries == ["lamp"] * 3
    assert "note" not in capsys.readouterr().out, "nothing of the file is left out"
