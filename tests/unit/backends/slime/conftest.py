"""Trajectories and Samples to convert, and what the hooks import of slime."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from core.backends.slime.framework import Framework
from core.backends.slime.samples import fill_sample
from core.types import Completion, Trajectory, Turn
from tests.unit.backends.slime.standin import Sample


def turn(*tokens: int, trained: bool = True, prompt: tuple[int, ...] = (7, 8)) -> Turn:
    logprobs = tuple(-0.1 * token for token in tokens)
    completion = Completion(tokens, logprobs, "stop", weight_version="v3", cached_tokens=1)
    return Turn("update" if trained else "final", prompt, completion, trained)


def trajectory(reward: float | None, *turns: Turn, failure: str | None = None) -> Trajectory:
    if failure:
        return Trajectory("t", (), "failed", failure=failure, log={"error": f"because of {failure}"})
    return Trajectory("t", turns, reward=reward, metrics={"turns": float(len(turns))})


@pytest.fixture
def batch() -> list[list[Trajectory]]:
    """Uneven turns, untrained turns, failures, a rollout with nothing trained, a group without one valid rollout."""
    return [
        [
            trajectory(1.0, turn(1, 2, 3), turn(4), turn(5, 6, trained=False)),
            trajectory(0.0, turn(1, 2)),
            trajectory(None, failure="deadline"),
            trajectory(0.25, turn(9, 9, 9, 9), turn(9)),
        ],
        [
            trajectory(1.0, turn(3, trained=False)),
            trajectory(0.0, turn(2, 2), turn(3, 3, 3), turn(4, 4), turn(1)),
            trajectory(1.0, turn(5)),
            trajectory(None, failure="engine"),
        ],
        [trajectory(None, failure="engine") for _ in range(4)],
    ]


def as_samples(groups: Sequence[Sequence[Trajectory]], first: int = 0, **fields: Any) -> list[Sample]:
    """Return groups as slime hands them to the converter: flat, in order."""
    filled: list[Sample] = []
    for group_index, group in enumerate(groups):
        for member in group:
            sample = Sample(group_index=group_index, index=first + len(filled), prompt="q", label="a", **fields)
            fill_sample(sample, member, reward_key=None)
            filled.append(sample)
    return filled


@pytest.fixture
def samples(batch: list[list[Trajectory]]) -> list[Sample]:
    return as_samples(batch, first=100)


@pytest.fixture
def slime_modules(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the hooks import of slime: the type of a filter's answer, and its trackers."""
    modules: dict[str, Any] = {
        "rollout.filter_hub.base_types": SimpleNamespace(DynamicFilterOutput=SimpleNamespace),
        "observability.metric_utils": SimpleNamespace(compute_rollout_step=lambda args, rollout_id: rollout_id),
        "observability.logging_utils": MagicMock(),
    }
    monkeypatch.setattr(Framework, "module", lambda self, path: modules[path])
    return modules
