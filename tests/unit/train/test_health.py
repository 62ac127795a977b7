"""A run tells its diseases: each is planted in a tiny run, which says so within five steps; a healthy one is silent."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from core.config import Recipe
from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.policy.base import Roles
from core.report import build_summary
from core.rollout.method import Method
from core.rollout.rows import rows_from_groups
from core.runs.progress import ProgressLine
from core.runs.run_folder import RunFolder
from core.train import loop as loop_module
from core.train.loop import GRPOLoop
from core.train.trainer import TrainingError
from core.types import CALLS, FAILED_CALLS, Row, Sampling, Task, Trajectory, Turn
from tests import kit

PROMPT = (1, 2)
ENDS = tuple(range(80, 96))
KINDS = ("sum", "sum", "word", "word")
PLAIN_GRPO = {"name": "grpo", "kl_loss_coef": 0, "rows": "segment"}
Reward = Callable[[Task, float], Any]


class Patient(Method):
    """Asks twice for a few tokens; `reward` takes the task and the share of them that are below 16 or end a reply."""

    def __init__(self, reward: Reward = lambda task, share: share, ends: bool = True, **metrics: float):
        self.reward, self.ends, self.metrics = reward, ENDS if ends else (), metrics

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        turns: list[Turn] = []
        for number in range(2):
            before = (*turns[0].prompt_ids, *turns[0].completion.token_ids, 7, 8) if turns else PROMPT
            options = {"max_new_tokens": 8, "stop_token_ids": self.ends, "seed": (sampling.seed or 0) + number}
            completion = await roles["policy"].generate(before, replace(sampling, **options))
            turns.append(Turn("act", before, completion, True))
        ids = [token for turn in turns for token in turn.completion.token_ids]
        share = sum(token < 16 or token in ENDS for token in ids) / len(ids)
        return Trajectory(task.task_id, tuple(turns), reward=self.reward(task, share), metrics=self.metrics)


def make_loop(model: Path, out: Path, method: Method, said: list[str], **sections: Any) -> GRPOLoop:
    recipe = kit.make_recipe(
        Recipe,
        model={"path": str(model), "device": "cpu"},
        data={"train": "none", "shuffle": False},
        rollout={"tasks_per_step": 16, "group_size": 6},
        inference={"kv_tokens": 8192},
        **{"algorithm": PLAIN_GRPO, "optimizer": {"lr": 5e-3}, "run": {"steps": 5}, **sections},
    )
    tasks = [Task(f"t{i}", "?", ("x",), metadata={"kind": KINDS[i % 4]}) for i in range(32)]
    folder = RunFolder.create(out, recipe.dump())

    def listen(line: ProgressLine) -> None:
        if line.note:
            said.append(line.note)

    return GRPOLoop(recipe, method, kit.train_tokenizer("abc", 300), tasks, [], folder, 0, model, show=listen)


async def run(model: Path, out: Path, method: Method, **sections: Any) -> list[str]:
    """Train for five steps and return what the run says of itself, and of why it ends."""
    said: list[str] = []
    loop = make_loop(model, out, method, said, **sections)
    try:
        await loop.run()
        loop.check_learned()
    except TrainingError as error:
        said.append(f"error: {error}")
    return said


def find_signs(said: list[str]) -> list[str]:
    return [match[1] for line in said if (match := re.match(r"step \d: warning, ([a-z ]+):", line))]


def shift_mask(groups: Any, **options: Any) -> list[Row]:
    """Make rows whose mask begins, in every turn but the first, one token too early."""
    rows = rows_from_groups(groups, **options)
    return [replace(row, loss_mask=(row.loss_mask[0], *row.loss_mask[2:], 0)) for row in rows]


def stay_at_the_start(loop: GRPOLoop) -> None:
    """Let an engine sample that never gets new weights."""
    engine = Engine.from_pretrained(loop.start, device="cpu", max_model_len=64, kv_tokens=8192)
    loop.runner.roles = Roles({"policy": EmbeddedPolicy(engine)})


async def test_a_healthy_run_says_nothing_but_its_first_rollout(qwen2: Path, tmp_path: Path) -> None:
    said = await run(qwen2, tmp_path, Patient(**{f"{CALLS}search": 1.0}), run={"steps": 10})
    (first,) = said
    assert first.startswith("the first rollout, completed, reward 0.")
    assert "turn 1, prompt: <|im_end|><|im_start|>" in first
    assert "\n  half of the untrained replies have at most " in first
    rewards = [record["reward"] for record in RunFolder(tmp_path).read_metrics(0)]
    assert rewards[-1] > rewards[0] + 0.1, "it learns"
    assert build_summary(RunFolder(tmp_path))["health"] == {"0": []}


SECTIONS: dict[str, dict[str, Any]] = {
    "inverted for a kind": {"optimizer": {"lr": 0.03}, "algorithm": PLAIN_GRPO | {"std_normalization": False}},
    "learning rate too high": {"optimizer": {"lr": 1e6}},
    "rewards of no turn": {"algorithm": PLAIN_GRPO | {"name": "turn_grpo"}},
}
"""Holds what a disease needs in the recipe."""
FAILING = Patient(**{f"{CALLS}search": 2.0, FAILED_CALLS: 2.0})
IDLE = Patient(**{f"{CALLS}search": 0.0, f"{CALLS}python": 0.0})
DISEASES: dict[str, tuple[Method, str, str]] = {
    "constant reward": (Patient(lambda task, share: 0.0), "rewards equal", "the reward 0, so no weight learns"),
    "inverted for a kind": (
        Patient(lambda task, share: 1 - share if task.metadata["kind"] == "word" else 3 * share),
        *("reward fell", "of the tasks of kind 'word' fell from 0."),
    ),
    "tool that fails": (FAILING, "tools failed", "every call of a tool failed"),
    "tool never called": (IDLE, "tools unused", "offered are python, search"),
    "no end token": (Patient(ends=False), "replies cut", "on average 100% of a rollout's replies run to"),
    "reward is not a number": (
        Patient(lambda task, share: math.nan if task.metadata["kind"] == "word" else share),
        *("rollouts failed", "50% of the rollouts failed: 48 x bad_reward"),
    ),
    "learning rate too high": (Patient(), "steps skipped", "lower the learning rate (optimizer.lr"),
    "rewards of no turn": (Patient(), "turns unrewarded", "adv_estimator=turn_grpo does what grpo does"),
}


@pytest.mark.parametrize("disease", DISEASES)
async def test_a_run_tells_its_disease_within_five_steps(qwen2: Path, tmp_path: Path, disease: str) -> None:
    method, sign, words = DISEASES[disease]
    said = await run(qwen2, tmp_path, method, **SECTIONS.get(disease, {}))
    assert sign in find_signs(said), said
    (line,) = (line for line in said if f"warning, {sign}" in line and line.startswith("step"))
    assert words in line
    assert "Try: " in line


async def test_a_mask_that_is_shifted_by_one_is_told(
    qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_module, "rows_from_groups", shift_mask)
    said = await run(qwen2, tmp_path, Patient())
    assert find_signs(said) == ["engine apart"]


async def test_an_engine_with_old_weights_is_told(qwen2: Path, tmp_path: Path) -> None:
    said: list[str] = []
    loop = make_loop(qwen2, tmp_path, Patient(), said)
    stay_at_the_start(loop)
    await loop.run()
    assert find_signs(said) == ["engine apart"]
    assert "the engine may have old weights" in said[-1]
