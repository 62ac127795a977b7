"""A tiny random model, a run folder, and models whose policy is scripted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.rollout import SPEC
from benchmarks.harness.models import EvalModels
from benchmarks.harness.plan import EvalCell
from benchmarks.harness.samples import Sample
from core.policy.base import Policy
from core.policy.scripted import ScriptedPolicy
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder
from core.types import Sampling

Respond = Callable[[tuple[int, ...], Sampling], Sequence[int] | Exception]

CELL = EvalCell(
    variant="trained", data="made-up", length=0, seed=0, n=5, model="m", model_path="m", sampling=Sampling(),
    concurrency=2, deadline_s=10.0, settings={"method": {"budget": 7}, "weights": "abc"}, repeats=2, stream="test",
)  # fmt: skip


def make_sample(task_id: str, repeat: int, **fields: Any) -> Sample:
    """Return a sample of one turn; `fields` are those that differ."""
    known: dict[str, Any] = {
        "status": "completed", "failure": None, "reward": 0.0, "turns": 1, "sampled_tokens": 0, "policy_tokens": 0,
        "metrics": {}, "log": {}, "graded": {}, "session": 1, "elapsed": 0.0, "cpu_elapsed": 0.0,
    }  # fmt: skip
    return Sample(task_id, repeat, **{**known, **fields})


def make_result(variant: str, data: str, official: Sequence[float], *, length: int = 0, **fields: Any) -> EvalResult:
    """Return a result of tasks of one turn with these scores; `fields` are those that differ."""
    n = len(official)
    known: dict[str, Any] = {"turns": [1] * n, "document_tokens": [0] * n, "seconds": 1.0}
    scores = {"official": list(official)}
    return EvalResult(variant, data, length, 0, n, scores, **{**known, **fields})


class ScriptedModels(EvalModels):
    """Models whose policy is scripted; `opened` lists the models in the order in which cells asked for them."""

    def __init__(self, respond: Respond, scripted_tokenizer: Any = None, **options: Any):
        super().__init__(SPEC.load("tiny"), **{"concurrency": 4, **options})
        self.respond = respond
        self.scripted_tokenizer = scripted_tokenizer
        self.opened: list[str] = []
        self.contexts: list[int] = []

    def tokenizer(self, model: str) -> Any:
        return self.scripted_tokenizer or super().tokenizer(model)

    def limit(self, model: str) -> int:
        return self.context or 1024

    @asynccontextmanager
    async def policy(self, model: str, context: int) -> AsyncIterator[Policy]:
        self.opened.append(model)
        self.contexts.append(context)
        yield ScriptedPolicy(self.respond)


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "out", {"method": "memagent", "preset": "tiny"})
