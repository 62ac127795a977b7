from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder

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
        metrics, trajectories = empty.open_metrics(seed), empty.open_trajectories(seed)
        for step in range(1, 21):
            metrics.append({"stage": "warm_start", "step": step, "loss": 3 / step, "seconds": 0.5})
        for step in range(1, 21):
            reward = 0.95 - 0.5 * math.exp(-step / 5) + rng.gauss(0, 0.04)
            failures = {"timeout": int(step == 20)}
            metrics.append(
                {"stage": "train", "step": step, "reward": reward, "loss": 0.1, "seconds": 2.7, "failures": failures}
            )
        metrics.append({"stage": "eval", "step": 20, "score_480": 0.9, "score_7680": 0.8})
        for answer in ("\\boxed{harbor}", "\\boxed{willow}"):
            trajectories.append(trajectory(20, answer))
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


def trajectory(step: int, answer: str) -> dict:
    turn = {"role": "policy", "finish_reason": "stop", "tokens": 18}
    update = {**turn, "trained": True, "prompt": f"<section>{HOSTILE}</section>", "completion": f"amber: {HOSTILE}"}
    final = {**turn, "trained": False, "prompt": "What is the key of amber?", "completion": answer}
    return {"stage": "train", "step": step, "task_id": f"niah-{step}", "question": "What is the key of amber?",
            "answers": ["harbor"], "reward": float("harbor" in answer), "status": "completed",
            "turns": [update, update, final]}  # fmt: skip
