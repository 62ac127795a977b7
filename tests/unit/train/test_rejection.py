"""Rejection sampling keeps the trained turns of right rollouts, of any method, and spends the budget of GRPO."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from core.config import Recipe, RejectionSection
from core.policy.base import Roles
from core.rollout.method import Method, RolloutError
from core.runs.files import read_jsonl
from core.runs.progress import Show
from core.train import rejection, warm_start
from core.train.trainer import Trainer, TrainingError
from core.train.warm_start import Example
from core.types import Completion, Sampling, Task, Trajectory, Turn
from tests import kit

CONFIG = RejectionSection(lr=1e-3, lr_warmup_steps=0, batch_size=3)


class TwoTurnMethod(Method):
    """Asks nobody. Task t0 is right, t1 half right; t2 fails and t3 is right without a trained turn that says so."""

    calls = 0

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        type(self).calls += 1
        if task.task_id == "t2":
            raise RolloutError("no_tool", "the tool server is down")
        number = int(task.task_id[1:])
        completion = Completion((10 + number, 3), (-1.0, -1.0), "stop")
        turns = (Turn("plan", (1, number), completion, task.task_id != "t3"), Turn("judge", (2,), completion, False))
        return Trajectory(task.task_id, turns, reward={"t0": 1.0, "t1": 0.5, "t3": 1.0}[task.task_id])


def make_recipe(model: Path, steps: int) -> Recipe:
    return kit.make_recipe(
        Recipe,
        model={"path": str(model), "device": "cpu"},
        data={"train": "none", "shuffle": False},
        rollout={"tasks_per_step": 2, "group_size": 3},
        inference={"kv_tokens": 1024},
        run={"steps": steps},
        rejection=CONFIG,
    )


async def reject(
    model: Path, folder: Path, steps: int, names: Sequence[str] = ("t0", "t1", "t2", "t3"), show: Show | None = None
) -> Path:
    tasks = [Task(name, "?", ("x",)) for name in names]
    recipe = make_recipe(model, steps)
    method = TwoTurnMethod()
    return await rejection.run_rejection(recipe, method, None, tasks, folder, 0, model, roles={}, show=show)


async def test_only_trained_turns_of_right_rollouts_are_kept(qwen2: Path, tmp_path: Path) -> None:
    model = await reject(qwen2, tmp_path / "rejection", steps=4)
    records = list(read_jsonl(tmp_path / "rejection" / "rollouts.jsonl"))
    assert [record["tasks"] for record in records] == [["t0", "t1"], ["t2", "t3"]] * 2
    assert [(record["sampled"], record["kept"]) for record in records] == [(6, 3)] * 4
    assert [record["turns"] for record in records] == [[[[1, 0], [10, 3]]] * 3, []] * 2
    steps = list(read_jsonl(tmp_path / "rejection" / "metrics.jsonl"))
    assert len(steps) == 2, "six turns in batches of three"
    assert steps[-1]["loss"] < steps[0]["loss"]
    assert (model / "model.safetensors").is_file()


async def test_a_model_of_other_steps_is_not_taken_for_that_of_the_run(qwen2: Path, tmp_path: Path) -> None:
    folder = tmp_path / "rejection"
    model = await reject(qwen2, folder, steps=1)
    assert await reject(qwen2, folder, steps=1) == model
    with pytest.raises(TrainingError, match=r"of 1 steps; for run\.steps=3, delete it"):
        await reject(qwen2, folder, steps=3)
    shutil.rmtree(model)
    assert await reject(qwen2, folder, steps=3) == model
    assert [record["step"] for record in read_jsonl(folder / "rollouts.jsonl")] == [1, 2, 3]
    with pytest.raises(TrainingError, match=r"rejection is of 3 steps; for run\.steps=2, delete it"):
        await reject(qwen2, folder, steps=2)


async def test_a_step_in_which_all_failed_is_sampled_again(
    qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rollout = tmp_path / "rejection", TwoTurnMethod.rollout

    async def down(self: Method, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        raise RolloutError("no_tool", "the tool server is down")

    monkeypatch.setattr(TwoTurnMethod, "rollout", down)
    with pytest.raises(TrainingError, match="seed 0: all rollouts of step 1 failed"):
        await reject(qwen2, folder, steps=2)
    monkeypatch.setattr(TwoTurnMethod, "rollout", rollout)
    await reject(qwen2, folder, steps=2)
    assert [record["kept"] for record in read_jsonl(folder / "rollouts.jsonl")] == [3, 3]


async def test_a_training_that_was_killed_begins_anew_when_there_is_more_to_train_on(
    qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More examples come in another order, and the rate falls to 0 later."""
    whole = await reject(qwen2, tmp_path / "whole", steps=10)
    monkeypatch.setattr(warm_start, "SAVE_SECONDS", 0.0)
    monkeypatch.setattr(warm_start, "SAVE_SHARE", 1e9)
    step = Trainer.supervised_step
    taken: list[int] = []

    def die(self: Trainer, examples: Sequence[Example]) -> dict[str, float]:
        if len(taken) == 2:
            raise KeyboardInterrupt
        taken.append(len(examples))
        return step(self, examples)

    monkeypatch.setattr(Trainer, "supervised_step", die)
    with pytest.raises(KeyboardInterrupt):
        await reject(qwen2, tmp_path / "rejection", steps=6)
    monkeypatch.setattr(Trainer, "supervised_step", step)
    made = next((tmp_path / "rejection" / ".model.partial").iterdir())
    made.rename(made.with_name("of-10"))  # as if as many batches had been of other examples
    model = await reject(qwen2, tmp_path / "rejection", steps=10)
    ours, theirs = (load_file(folder / "model.safetensors") for folder in (model, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


async def test_a_method_with_a_score_keeps_what_that_calls_right(
    qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CodeScout's reward is the sum of three F1: 3 for a right answer, 1 for one that names the right file alone."""
    scores = {"t0": (3.0, 1.0), "t1": (1.0, 1 / 3)}

    async def rollout(self: Method, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        reward, official = scores[task.task_id]
        turn = Turn("act", (1,), Completion((10 + int(reward),), (-1.0,), "stop"), True)
        return Trajectory(task.task_id, (turn,), reward=reward, metrics={"official": official})

    monkeypatch.setattr(TwoTurnMethod, "rollout", rollout)
    await reject(qwen2, tmp_path / "rejection", steps=1, names=["t0", "t1"])
    (record,) = read_jsonl(tmp_path / "rejection" / "rollouts.jsonl")
    assert record["turns"] == [[[1], [13]]] * 3


async def test_failed_rollouts_are_told_with_their_first_error(
    qwen2: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    await reject(qwen2, tmp_path / "rejection", steps=1, names=["t0", "t2"], show=lambda line: said.append(line.note))
    (note,) = filter(None, said)
    assert note.startswith("step 1: warning, rollouts failed: 50% of the rollouts failed: 3 x no_tool. Try: ")
    (record,) = caplog.records
    assert record.message == "step 1: a rollout failed with no_tool: the tool server is down"


async def test_a_start_model_without_success_is_told(qwen2: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="no rollout of the start model has score 1"):
        await reject(qwen2, tmp_path / "rejection", steps=1, names=["t1", "t2"])
    assert not (tmp_path / "rejection" / "model").exists()


def test_every_turn_is_drawn_once_in_an_order_of_the_seed() -> None:
    examples: list[Example] = [((i,), (i,)) for i in range(8)]
    batches, others = (list(rejection._draw_batches(examples, CONFIG, seed=seed)) for seed in (0, 1))
    assert [len(batch) for batch in batches] == [3, 3, 2]
    assert batches != others
    assert sorted(chain.from_iterable(batches)) == sorted(chain.from_iterable(others)) == examples
