from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from core.runs.evaluation import EvalResult
from core.runs.record import RolloutLog, record_rollout
from core.runs.run_folder import RunFolder
from core.types import Completion, Task, Trajectory, Turn

HOSTILE = "<script>alert('x')</script> & \"quoted\" | pipe"


@pytest.fixture
def hostile() -> str:
    """Return text that breaks a page or a table which does not escape it."""
    return HOSTILE


@pytest.fixture
def empty(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", {"method": "memagent", "preset": "tiny"})


@pytest.fixture
def run(empty: RunFolder) -> RunFolder:
    """Fill a folder with metrics, trajectories and evaluations in the shape of a real run."""
    for seed in (0, 1, 2):
        rng = random.Random(seed)
        metrics = empty.open_metrics(seed)
        for step in range(1, 21):
            metrics.append({"stage": "warm_start", "step": step, "loss": 3 / step, "seconds": 0.5})
        for step in range(1, 21):
            reward = 0.95 - 0.5 * math.exp(-step / 5) + rng.gauss(0, 0.04)
            failures = {"timeout": int(step == 20)}
            measured = {"reward": reward, "loss": 0.1, "seconds": 2.7, "failures": failures}
            metrics.append({"stage": "train", "step": step, **measured})
        metrics.append({"stage": "eval", "step": 20, "score_480": 0.9, "score_7680": 0.8})
        answers = ("\\boxed{harbor}", "\\boxed{willow}")
        record_texts(empty.rollouts_path(seed), 20, [write_rollout(answer) for answer in answers])
        (empty.checkpoints_path(seed) / "step-20").mkdir(parents=True)
        for variant, kept in (("trained", 0.995), ("untrained", 0.9), ("full-context", 0.97), ("empty-document", 0.0)):
            for length in (480, 1920, 7680, 30720, 122880):
                turns = length // 480
                official = [float(rng.random() < 0.97 * kept**turns) for _ in range(8)]
                scores = {"official": official, "strict": [score * float(rng.random() < 0.9) for score in official]}
                failures = {"timeout": 1} if length > 100_000 else {}
                data = "niah_multikey_2"
                empty.save_evaluation(
                    EvalResult(variant, data, length, seed, 8, scores, [turns] * 8, [length] * 8, 2.0, failures)
                )
    rows = [{"name": "RL-MemAgent-14B", "data": "niah_multikey_2", "length": 7680, "score": 0.98, "source": "Table 3"}]
    empty.save_published(rows, ["word values instead of numbers", "chunks of 96 tokens instead of 5,000"])
    return empty


def write_rollout(answer: str) -> list[Written]:
    update = Written("policy", True, f"<section>{HOSTILE}</section>", f"amber: {HOSTILE}")
    return [update, update, Written("policy", False, "What is the key of amber?", answer)]


class Written(NamedTuple):
    """A turn as texts."""

    role: str
    trained: bool
    prompt: str
    completion: str


def record_one(path: Path, trajectory: Trajectory) -> Path:
    """Record one rollout of training, each of whose ids has the text of its number."""
    task = Task(trajectory.task_id, "?", ("x",))
    log = RolloutLog(path, lambda ids: [str(token).encode() for token in ids])
    log.append([record_rollout("train", 1, 0, task, trajectory)])
    return path


def record_texts(path: Path, step: int, rollouts: Sequence[Sequence[Written]], task: Task | None = None) -> None:
    """Record the rollouts of a step; every character is a token, and its number is the id."""
    task = task or Task(f"niah-{step}", "What is the key of amber?", ("harbor",))
    log = RolloutLog(path, lambda ids: [chr(token).encode() for token in ids])
    records = []
    for place, written in enumerate(rollouts):
        turns = tuple(
            Turn(
                turn.role,
                tuple(map(ord, turn.prompt)),
                Completion(tuple(map(ord, turn.completion)), (-0.5,) * len(turn.completion), "stop", str(step - 1)),
                turn.trained,
            )
            for turn in written
        )
        reward = float("harbor" in written[-1].completion)
        trajectory = Trajectory(task.task_id, turns, reward=reward, log={"steps": [HOSTILE]})
        records.append(record_rollout("train", step, place // 4, task, trajectory))
    log.append(records)
