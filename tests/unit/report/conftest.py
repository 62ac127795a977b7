"""A small finished run, made up, that several tests read."""

from __future__ import annotations

import copy
import math
import random
from pathlib import Path

import pytest

from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder

CONFIG = {"method": "memagent", "preset": "tiny", "seeds": [0, 1, 2], "train": {"lr": 5e-4, "steps": 120, "kl": 0.0}}
HOSTILE = "<script>alert('x')</script> & \"quoted\" | pipe"


def fill(folder: RunFolder, *, steps: int = 120, tasks: int = 64, seeds: tuple[int, ...] = (0, 1, 2)) -> None:
    """Metrics, trajectories and evaluations with the shape of a real run."""
    for seed in seeds:
        chance = random.Random(seed)
        metrics, trajectories = folder.open_metrics(seed), folder.open_trajectories(seed)
        for step in range(1, steps + 1):
            share = step / steps
            loss, accuracy = 3 * math.exp(-5 * share) + 0.1 * chance.random(), 1 - math.exp(-4 * share)
            metrics.append({"stage": "warm_start", "step": step, "loss": loss, "accuracy": accuracy, "seconds": 0.5})
        for step in range(1, steps + 1):
            reward = 0.45 + 0.5 * (1 - math.exp(-4 * step / steps)) + chance.gauss(0, 0.04)
            numbers = {"reward": reward, "loss": chance.gauss(0, 0.02), "seconds": 2.7}
            speed = {"tokens_per_second": 30_000 + chance.gauss(0, 900), "failures": {"timeout": int(step % 40 == 0)}}
            metrics.append({"stage": "train", "step": step, **numbers, **speed})
            if step % 20 == 0:
                metrics.append({"stage": "eval", "step": step, "score_480": reward, "score_7680": reward - 0.15})
                for correct in (True, False):
                    trajectories.append(trajectory(step, correct))
        (folder.checkpoints_path(seed) / "step-120").mkdir(parents=True)
        for variant, floor in (("trained", 0.995), ("untrained", 0.9), ("full-context", 0.97), ("empty-document", 0.0)):
            for length in (480, 1920, 7680, 30720, 122880):
                turns = max(1, length // 480)
                chances = 0.97 * floor**turns if floor else 0.06
                official = [float(chance.random() < chances) for _ in range(tasks)]
                strict = [score * float(chance.random() < 0.95) for score in official]
                folder.save_evaluation(
                    EvalResult(variant, "niah_multikey_2", length, seed, tasks, {"official": official, "strict": strict},
                               [turns] * tasks, [length - 7] * tasks, length * tasks / 40_000,
                               {"timeout": 1} if length > 100_000 else {}, "step-120", {"temperature": 0.0})
                )  # fmt: skip
    rows = [{"name": "RL-MemAgent-14B", "data": "niah_multikey_2", "length": 7680, "score": 0.98, "source": "Table 3"}]
    folder.save_published(rows, ["word values instead of numbers", "chunks of 96 tokens instead of 5,000"])


def trajectory(step: int, correct: bool) -> dict:
    turn = {"role": "policy", "trained": True, "finish_reason": "stop", "tokens": 18}
    section = f"<section>\n{'The grass is green. ' * 60}{HOSTILE}</section>"
    prompt = f"<memory>\nthe key of amber is harbor\n</memory>\n{section}"
    turns = [{**turn, "prompt": prompt, "completion": f"the key of amber is harbor; {HOSTILE}"} for _ in range(3)]
    answer = "\\boxed{harbor}" if correct else "\\boxed{willow}"
    final = {**turn, "trained": False, "prompt": "Answer from memory: what is the key of amber?", "completion": answer}
    question = "What is the value of the key amber that is hidden in the document?"
    return {"stage": "train", "step": step, "task_id": f"niah-{step}", "question": question, "answers": ["harbor"],
            "reward": float(correct), "status": "completed", "turns": [*turns, final]}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    folder = RunFolder.create(tmp_path / "run", CONFIG)
    fill(folder, steps=20, tasks=8)
    return folder


@pytest.fixture
def config() -> dict:
    return copy.deepcopy(CONFIG)


@pytest.fixture
def hostile() -> str:
    """Text that breaks a page, or a table, which does not escape it."""
    return HOSTILE
