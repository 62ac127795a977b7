"""What a step of the loop records: rewards that compare a group, groups without a signal, events, failed rollouts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from core.config import Recipe, RecipeError
from core.engine import weights
from core.inspect import replay
from core.policy.base import Roles
from core.report.summary import build_summary
from core.rollout.method import Method, RolloutError
from core.runs.files import BrokenFileError, Record
from core.runs.record import RecordedRollout, read_rollouts
from core.runs.run_folder import RunFolder
from core.train.loop import GRPOLoop
from core.train.trainer import TrainingError
from core.types import Group, Sampling, Task, Trajectory, Turn
from tests import kit


class OneCallMethod(Method):
    """Asks the policy once. `rewards` go by task id, `metrics` to every rollout; the first `failures` rollouts fail."""

    def __init__(
        self, rewards: Mapping[str, Sequence[float]] | None = None, failures: int = 0, **metrics: float
    ) -> None:
        self.rewards = {task: list(values) for task, values in (rewards or {}).items()}
        self.failures = failures
        self.metrics = metrics

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        if self.failures > 0:
            self.failures -= 1
            raise RolloutError("no_tool", "the tool server is down")
        rewards = self.rewards.get(task.task_id)
        reward = rewards.pop(0) if rewards else 1.0
        completion = await roles["policy"].generate((1, 2), replace(sampling, max_new_tokens=4))
        turns = (Turn("only", (1, 2), completion, True),)
        return Trajectory(task.task_id, turns, reward=reward, metrics=self.metrics)


def first_is_best(task: Task, group: Group) -> Sequence[Trajectory]:
    assert {t.task_id for t in group} == {task.task_id}
    return [replace(t, reward=float(place == 0)) for place, t in enumerate(group)]


def make_loop(
    model: Path,
    out: Path,
    method: Method,
    *,
    regrade: Any = None,
    run: Mapping[str, Any] | None = None,
    ahead: int = 0,
    tokenizer: Any = None,
    lora: Mapping[str, Any] | None = None,
    servers: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    **algorithm: Any,
) -> GRPOLoop:
    """Train on four tasks, two of them a step, and evaluate on the first two."""
    recipe = kit.make_recipe(
        Recipe,
        model={"path": str(model), "device": "cpu", "lora": lora},
        data={"train": "none", "eval": "none", **({"shuffle": False} if data is None else data)},
        rollout={"tasks_per_step": 2, "group_size": 4, "ahead": ahead},
        algorithm={"name": "grpo", "kl_loss_coef": 0, **algorithm},
        inference={"kv_tokens": 1024, "servers": servers},
        run={"steps": 1, "eval_every": 1, "record_every": 0, **(run or {})},
    )
    tasks = [Task(f"t{i}", "?", ("x",)) for i in range(4)]
    folder = RunFolder.create(out, recipe.dump(), may_differ=["run"])
    return GRPOLoop(recipe, method, tokenizer, tasks, tasks[:2], folder, 0, model, regrade=regrade)


def read_stage(out: Path, stage: str) -> list[Record]:
    return [record for record in RunFolder(out).read_metrics(0) if record["stage"] == stage]


@pytest.mark.parametrize(
    ("regrade", "min_group_std", "signal", "reward"),
    [(None, 0.0, 0.0, 1.0), (first_is_best, 0.0, 1.0, 0.25), (first_is_best, 0.9, 0.0, 0.25)],
)
async def test_training_sees_the_group_and_evaluation_the_rollout(
    qwen2: Path, tmp_path: Path, regrade: Any, min_group_std: float, signal: float, reward: float
) -> None:
    await make_loop(qwen2, tmp_path, OneCallMethod(), regrade=regrade, min_group_std=min_group_std).run()
    (train,) = read_stage(tmp_path, "train")
    assert (train["groups_with_signal"], train["reward"]) == (signal, reward)
    assert (train.get("grad_norm", 0.0) > 0) == bool(signal)
    assert read_stage(tmp_path, "eval")[-1]["reward"] == 1.0


async def test_groups_that_a_filter_leaves_out_stay_in_the_figures(qwen2: Path, tmp_path: Path) -> None:
    """t0 has no signal and t2 takes its place: two of three groups have one."""
    rewards = {"t0": [0.0] * 5, "t1": [1.0] * 2 + [0.0, 1.0, 0.0], "t2": [1.0, 1.0, 0.0, 0.0]}
    await make_loop(qwen2, tmp_path, OneCallMethod(rewards), dynamic_sampling=True).run()
    (train,) = read_stage(tmp_path, "train")
    assert train["tasks"] == ["t0", "t1", "t2"]
    assert train["rows"] == 8
    assert train["groups_with_signal"] == pytest.approx(2 / 3)
    first = 1.0 + 0.0 + 1.0 + 0.0  # of t1's rewards the first went to the evaluation before training
    assert train["reward"] == pytest.approx((0.0 + first + 2.0) / 12)


async def test_drift_is_counted_and_other_metrics_are_averaged(qwen2: Path, tmp_path: Path) -> None:
    await make_loop(qwen2, tmp_path, OneCallMethod(drift=2.0, turns=3.0)).run()
    (train,), evaluated = read_stage(tmp_path, "train"), read_stage(tmp_path, "eval")[-1]
    assert (train["drift"], train["turns"]) == (16.0, 3.0)
    assert (evaluated["drift"], evaluated["turns"]) == (4.0, 3.0)
    assert build_summary(RunFolder(tmp_path))["counts"]["drift"] == {"total": 16}


@pytest.mark.parametrize("num_steps_per_rollout", [1, 2])
async def test_steps_without_a_valid_rollout_are_logged_and_change_no_weight(
    qwen2: Path, tmp_path: Path, num_steps_per_rollout: int
) -> None:
    """Two steps fail whole, the third trains; the tasks go on in turn, also for a run that resumes after the two."""
    rewards = {"t0": [1.0, 0.0, 0.0, 0.0]}
    method = OneCallMethod(rewards, failures=16)
    run = {"steps": 3, "eval_every": 0, "save_every": 2}
    loop = make_loop(qwen2, tmp_path / "run", method, run=run, num_steps_per_rollout=num_steps_per_rollout)
    before = [parameter.detach().clone() for parameter in loop.learners["policy"].model.parameters()]
    for _ in range(2):
        await loop._train_step()
    assert (loop.step, loop.learners["policy"].trainer.steps, loop.stream.cursor) == (2, 0, 4)
    assert all(torch.equal(a, b) for a, b in zip(before, loop.learners["policy"].model.parameters(), strict=True))
    loop._save()
    await loop.learners["policy"].engine.close()

    resumed = make_loop(qwen2, tmp_path / "run", method, run=run, num_steps_per_rollout=num_steps_per_rollout)
    await resumed.run()
    *empty, last = read_stage(tmp_path / "run", "train")
    assert [record["step"] for record in (*empty, last)] == [1, 2, 3]
    assert [record["tasks"] for record in (*empty, last)] == [["t0", "t1"], ["t2", "t3"], ["t0", "t1"]]
    told = [(record["failures"], record["rows"], record["reward"]) for record in empty]
    assert told == [({"no_tool": 8}, 0, None)] * 2
    assert (last["failures"], last["rows"]) == ({}, 8)
    assert last["grad_norm"] > 0


async def test_the_third_empty_step_in_a_row_stops_the_run_and_says_why(qwen2: Path, tmp_path: Path) -> None:
    loop = make_loop(qwen2, tmp_path, OneCallMethod(failures=99), run={"steps": 9, "eval_every": 0})
    told = r"step 3: every rollout of 3 steps in a row failed: 8 x no_tool \(first: the"
    with pytest.raises(TrainingError, match=told):
        await loop.run()
    assert [record["failures"] for record in read_stage(tmp_path, "train")] == [{"no_tool": 8}] * 3


def make_graded_loop(model: Path, out: Path, held_out: Sequence[Any], steps: int = 3, keep: str = "best") -> GRPOLoop:
    """Make a loop that keeps the best of its evaluations. `held_out` has their reward after each step, by task or for
    all; those without one fail."""

    class Graded(OneCallMethod):
        async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
            trajectory = await super().rollout(task, roles, sampling)
            if sampling.temperature != 0.5:
                return trajectory
            reward = held_out[loop.step]
            reward = reward.get(task.task_id) if isinstance(reward, dict) else reward
            if reward is None:
                raise RolloutError("no_tool", "the tool server is down")
            return replace(trajectory, reward=reward)

    run = {"steps": steps, "eval_every": 1, "eval_temperature": 0.5, "save_every": 100, "keep": keep}
    loop = make_loop(model, out, Graded(), run=run)
    return loop


async def test_the_best_of_the_evaluations_is_kept_also_over_a_resume(qwen2: Path, tmp_path: Path) -> None:
    """Two held-out tasks, t0 and t1, are trained on as well; steps 1 to 5 have the held-out rewards below."""
    held_out = [9.0, 0.2, 0.8, 0.8, 0.1, 0.3]

    loop = make_graded_loop(qwen2, tmp_path, held_out)
    await loop.run()
    saved = sorted(path.name for path in loop.checkpoints.iterdir())
    assert saved == ["step-000001", "step-000002", "step-000003"], "each was the best so far"
    loop = make_graded_loop(qwen2, tmp_path, held_out, steps=5)
    await loop.run()
    assert sorted(path.name for path in loop.checkpoints.iterdir()) == [*saved, "step-000005"]
    assert RunFolder(tmp_path).find_trained(0, "best") == loop.checkpoints / "step-000003"
    assert (loop.checkpoints / "step-000003/model.safetensors").is_file()


async def test_a_best_that_was_not_saved_stands_in_nobodys_way(qwen2: Path, tmp_path: Path) -> None:
    """A run that began with keep=last goes on with keep=best: step 2 was its best, and is gone."""
    held_out = [9.0, 0.2, 0.9, 0.1, 0.5, 0.3]
    await make_graded_loop(qwen2, tmp_path, held_out, keep="last").run()
    loop = make_graded_loop(qwen2, tmp_path, held_out, steps=5)
    await loop.run()
    assert RunFolder(tmp_path).find_trained(0, "best") == loop.checkpoints / "step-000004"


async def test_an_evaluation_whose_rollouts_fail_is_not_the_best(qwen2: Path, tmp_path: Path) -> None:
    """A failure must not be worth more than a wrong answer, which costs here. Where all fail, nothing is known."""
    loop = make_graded_loop(qwen2, tmp_path, [-1.0, -0.6, {"t0": -0.9}, None])
    await loop.run()
    rewards = [record.get("reward") for record in read_stage(tmp_path, "eval")]
    assert rewards == [-1.0, -0.6, pytest.approx(-0.9), None]
    assert sorted(path.name for path in loop.checkpoints.iterdir()) == ["step-000001", "step-000003"]
    assert RunFolder(tmp_path).find_trained(0, "best") == loop.checkpoints / "step-000001"


class SlowMethod(Method):
    """Waits at random before each of two calls, and notes for each rollout its task, its seed and the step it began at.

    The loop that is watched must be set before it runs.
    """

    loop: GRPOLoop

    def __init__(self) -> None:
        self.begun: dict[tuple[str, int | None], int] = {}
        self.random = random.Random(0)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        self.begun[task.task_id, sampling.seed] = self.loop.step
        turns = []
        for _ in range(2):
            await asyncio.sleep(self.random.lognormvariate(-6, 1))  # 2.5 ms, and 25 ms for one in a hundred
            completion = await roles["policy"].generate((1, 2), replace(sampling, max_new_tokens=8))
            turns.append(Turn("only", (1, 2), completion, True))
        metrics = {"begun": float(self.begun[task.task_id, sampling.seed])}
        return Trajectory(task.task_id, tuple(turns), reward=self.random.random(), metrics=metrics)


async def run_slowly(model: Path, out: Path, ahead: int, steps: int = 10, **run: Any) -> SlowMethod:
    method = SlowMethod()
    run = {"steps": steps, "eval_every": 0, **run}
    method.loop = make_loop(model, out, method, run=run, ahead=ahead, tis=[0, 2])
    await method.loop.run()
    return method


async def test_a_run_ahead_trains_each_group_once_and_none_is_too_old(qwen2: Path, tmp_path: Path) -> None:
    in_turn = await run_slowly(qwen2, tmp_path / "0", 0)
    assert not any("staleness_max" in record for record in read_stage(tmp_path / "0", "train"))
    for ahead in (1, 3):
        method = await run_slowly(qwen2, tmp_path / str(ahead), ahead)
        assert method.begun.keys() == in_turn.begun.keys(), "the same tasks with the same seeds"
        pairs = zip(read_stage(tmp_path / str(ahead), "train"), read_stage(tmp_path / "0", "train"), strict=True)
        for place, (record, same) in enumerate(pairs):
            assert record["tasks"] == same["tasks"]
            assert place - ahead <= record["begun"] <= place
            assert 0 <= record["staleness_mean"] <= record["staleness_max"] <= ahead
        assert max(record["staleness_max"] for record in read_stage(tmp_path / str(ahead), "train")) > 0


@pytest.mark.parametrize("ahead", [0, 2])
async def test_a_run_ahead_that_is_stopped_trains_every_group_once(qwen2: Path, tmp_path: Path, ahead: int) -> None:
    """The run is stopped at random moments, as by a kill: what it sampled ahead is sampled again."""
    moments = random.Random(ahead)
    for _ in range(6):
        run = asyncio.create_task(run_slowly(qwen2, tmp_path, ahead, save_every=1))
        done, _ = await asyncio.wait([run], timeout=moments.uniform(0.05, 0.4))
        run.cancel()
        await asyncio.wait([run])
        if done:
            break
    await run_slowly(qwen2, tmp_path, ahead, save_every=1)
    records = read_stage(tmp_path, "train")
    assert [record["step"] for record in records] == list(range(1, 11))
    assert [record["tasks"] for record in records] == [["t0", "t1"], ["t2", "t3"]] * 5


async def test_a_curriculum_goes_by_the_steps_before(qwen2: Path, tmp_path: Path) -> None:
    """Of four tasks t2 alone disagrees, until it agrees too. All are seen after two steps."""

    class OneDisagrees(OneCallMethod):
        async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
            trajectory = await super().rollout(task, roles, sampling)
            return replace(trajectory, reward=float((sampling.seed or 0) % 2) if task.task_id == "t2" else 0.0)

    run = {"steps": 12, "eval_every": 0, "save_every": 5}
    data = {"shuffle": True, "sampler": "curriculum"}
    await make_loop(qwen2, tmp_path, OneDisagrees(), run={**run, "steps": 5}, data=data).run()
    await make_loop(qwen2, tmp_path, OneDisagrees(), run=run, data=data).run()
    await make_loop(qwen2, tmp_path / "whole", OneDisagrees(), run=run, data=data).run()
    steps, whole = read_stage(tmp_path, "train"), read_stage(tmp_path / "whole", "train")
    assert [(step["tasks"], step["outcomes"]) for step in steps] == [(s["tasks"], s["outcomes"]) for s in whole]
    assert all(len(set(step["tasks"])) == 2 and step["outcomes"].keys() == set(step["tasks"]) for step in steps)
    seen = [step["outcomes"]["t2"] for step in steps if "t2" in step["tasks"]]
    assert len(seen) >= 9, "it is drawn twice as often as by turns"
    assert all(std == pytest.approx((mean * (1 - mean)) ** 0.5) for mean, std in seen)


def test_a_run_ahead_needs_fixed_tasks(qwen2: Path, tmp_path: Path) -> None:
    known = r"by which algorithm\.dynamic_sampling and data\.sampler=curriculum choose tasks"
    with pytest.raises(ValueError, match=known):
        make_loop(qwen2, tmp_path, OneCallMethod(), ahead=1, tis=[0, 2], dynamic_sampling=True)
    with pytest.raises(ValueError, match=known):
        make_loop(qwen2, tmp_path, OneCallMethod(), ahead=1, tis=[0, 2], data={"sampler": "curriculum"})
    with pytest.raises(ValueError, match=r"set data\.shuffle=true, or data\.sampler=epoch"):
        make_loop(qwen2, tmp_path, OneCallMethod(), data={"sampler": "curriculum", "shuffle": False})


@pytest.fixture
async def hosts(qwen2: Path) -> AsyncIterator[list[kit.ModelHost]]:
    async with kit.start_hosts(qwen2, 2) as hosts:
        yield hosts


async def test_rollouts_of_servers_train_as_those_of_this_process(qwen2: Path, tmp_path: Path, hosts) -> None:
    """The servers get the weights of every step: their log-probs are the trainer's, and the end is the same."""
    for name, servers in (("here", []), ("served", [host.url for host in hosts])):
        run = {"steps": 4, "eval_every": 0}
        loop = make_loop(qwen2, tmp_path / name, OneCallMethod(), regrade=first_is_best, run=run, servers=servers)
        await loop.run()
    for record in read_stage(tmp_path / "served", "train"):
        assert record["servers_left_out"] == 0
        assert record["train_rollout_logprob_abs_diff"] < 1e-5
    assert {host.engine.weight_version.rpartition("-")[2] for host in hosts} == {"4"}
    here, served = (
        weights.read(loop.learners["policy"].model, RunFolder(tmp_path / n).checkpoints_path(0) / "step-000004")
        for n in ("here", "served")
    )
    for tensor_name, tensor in here.items():
        torch.testing.assert_close(served[tensor_name], tensor, atol=1e-6, rtol=1e-4)
    assert not RunFolder(tmp_path / "served").served_path(0).exists()


async def test_a_run_without_any_of_its_servers_ends_with_the_reason(qwen2: Path, tmp_path: Path) -> None:
    loop = make_loop(qwen2, tmp_path, OneCallMethod(), servers=["http://127.0.0.1:9"])
    with pytest.raises(RecipeError, match=r"no rollout server takes the weights: http://127\.0\.0\.1:9"):
        await loop.run()


class TwoTurns(Method):
    """Asks twice in one conversation. Tokens earn; of the tasks with an odd number the second turn says its credit."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        turns: list[Turn] = []
        ids: tuple[int, ...] = (1, 2)
        for place in range(2):
            completion = await roles["policy"].generate(ids, replace(sampling, max_new_tokens=4))
            earned = float(completion.token_ids[0] % 3)
            turns.append(Turn("only", ids, completion, True, reward=earned, state=f"turn {place}"))
            ids = (*ids, *completion.token_ids, 3)
        if task.task_id in ("t1", "t3"):
            turns[1] = replace(turns[1], advantage=tuple(x / 4 for x in range(len(completion.token_ids))))
        return Trajectory(task.task_id, tuple(turns), reward=float(completion.token_ids[-1] % 2))


async def keep_rewards(group: Sequence[RecordedRollout]) -> Sequence[Trajectory]:
    return [rollout.trajectory() for rollout in group]


@pytest.mark.parametrize("unit", ["turn", "segment"])
@pytest.mark.parametrize(
    ("algorithm", "lora"),
    [
        ({"kl_coef": 0.1, "std_normalization": False}, None),
        ({"kl_coef": 0.1, "std_normalization": False}, {"rank": 4}),
        ({"adv_estimator": "gigpo", "gamma": 0.9}, None),
        ({"adv_estimator": "reinforce_plus_plus", "observation_coef": 0.5}, None),
    ],
    ids=["kl", "kl of adapters", "gigpo", "whitened"],
)
async def test_credit_by_turn_and_kl_are_recorded_and_replayed(
    qwen2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: dict[str, Any], lora: Any, unit: str
) -> None:
    if unit == "turn":
        algorithm = {key: value for key, value in algorithm.items() if key != "observation_coef"}
    run = {"steps": 2, "eval_every": 0, "record_every": 1, "save_every": 2}
    options: dict[str, Any] = {"tokenizer": kit.train_tokenizer("one two three", 300), "run": run, "lora": lora}
    loop = make_loop(qwen2, tmp_path, TwoTurns(), rows=unit, **options, **algorithm)
    await loop.run()
    recorded = list(read_rollouts(RunFolder(tmp_path).rollouts_path(0)))
    for rollout in recorded:
        credits = [turn.trained_advantage for turn in rollout.turns]
        assert rollout.advantage is None or credits == [None, None]
        if rollout.task_id in ("t1", "t3"):
            own = tuple(x / 4 for x in range(len(rollout.turns[1].sampled)))
            assert credits[1] == rollout.turns[1].advantage == own
        elif algorithm.get("adv_estimator") != "gigpo":
            assert rollout.advantage is not None
    if "kl_coef" in algorithm:
        first, second = ([r.metrics["reference_kl"] for r in recorded if r.step == step] for step in (1, 2))
        assert max(map(abs, first)) < 1e-4 < max(map(abs, second)), "the policy has left the start model"
        assert read_stage(tmp_path, "train")[1]["reference_kl"] == pytest.approx(sum(second) / len(second))
    else:
        assert any(isinstance(turn.trained_advantage, float) for r in recorded for turn in r.turns)

    monkeypatch.setattr(replay, "method_spec", lambda name: SimpleNamespace(load=lambda path: loop.recipe))
    again = replay.Replay(RunFolder(tmp_path), loop.recipe, 0, 2)
    steps = [step async for step in again.run(keep_rewards)]
    assert [step.step for step in steps] == [1, 2]
    for number in (number for step in steps for number in step.numbers):
        assert number.is_close(0.0), number
        assert number.run is not None


async def test_a_resume_names_a_record_that_is_none_and_tells_of_steps_without_one(
    qwen2: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = {"steps": 2, "eval_every": 0}
    await make_loop(qwen2, tmp_path, OneCallMethod(), regrade=first_is_best, run=run).run()
    make_loop(qwen2, tmp_path, OneCallMethod(), run=run)
    assert not caplog.records
    log = tmp_path / "seed-0" / "metrics.jsonl"
    whole = log.read_text()
    log.write_text(whole.splitlines(keepends=True)[1])
    make_loop(qwen2, tmp_path, OneCallMethod(), run=run)
    assert f"{log} lacks the records of 1 of 2 steps" in caplog.text
    for broken in ('{"step": 1}', '{"stage": "trian", "step": 1}', '{"stage": [], "step": 1}', '{"stage": "train"'):
        log.write_text(f"{broken}\n{whole}")
        with pytest.raises(BrokenFileError, match=r"metrics\.jsonl.*repair or delete that line"):
            make_loop(qwen2, tmp_path, OneCallMethod(), run=run)
