"""GRPO on the embedded engine: sample groups, turn them into rows, step, repeat; evaluate and save on the way.

Generation and training share one set of weights in one process. Everything random follows from (seed, step, task,
member), so a run that is killed and resumed ends with the numbers of one that was not.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from core.config import Recipe, RecipeError
from core.engine import checkpoint, weights
from core.engine.engine import Engine
from core.engine.model import CausalLM
from core.engine.policy import EmbeddedPolicy
from core.engine.trainer import Trainer
from core.policy.base import Policy, Roles
from core.rollout.method import Method, derive_seed
from core.rollout.rows import rows_from_groups
from core.rollout.runner import Failures, Runner, has_signal
from core.rollout.stream import TaskStream
from core.runs.progress import Progress
from core.runs.run_folder import RunFolder
from core.runs.trackers import Trackers
from core.runs.trajectory import trajectory_record
from core.types import Group, Sampling, Task, Trajectory


class TrainingError(RuntimeError):
    """Training cannot go on; the message says why and what to do."""


class GRPOLoop:
    """One seed of one recipe. `start` is the model folder that training begins with."""

    def __init__(
        self,
        recipe: Recipe,
        method: Method,
        tokenizer: Any,
        tasks: Sequence[Task],
        eval_tasks: Sequence[Task],
        folder: RunFolder,
        seed: int,
        start: Path,
        *,
        roles: dict[str, Policy] | None = None,
        regrade: Callable[[Task, Group], Sequence[Trajectory]] | None = None,
        trackers: Trackers | None = None,
        console: Console | None = None,
    ):
        self.recipe, self.tokenizer, self.eval_tasks, self.seed, self.start = recipe, tokenizer, eval_tasks, seed, start
        self.regrade = regrade
        self.stream = TaskStream(tasks, shuffle=recipe.data.shuffle, seed=seed)
        self.checkpoints = folder.checkpoints_path(seed)
        self.metrics, self.trajectories = folder.metrics(seed), folder.trajectories(seed)
        self.trackers, self.console = trackers or Trackers({}), console
        self.model: CausalLM = weights.load(start, recipe.model.dtype, recipe.model.device)
        algorithm, section = recipe.algorithm, recipe.engine
        self.trainer = Trainer(
            self.model,
            recipe.optimizer,
            algorithm.grpo(),
            loss_unit=algorithm.loss_unit,
            temperature=recipe.rollout.temperature,
            steps_per_batch=algorithm.steps_per_batch,
            seed=seed,
        )
        try:
            self.engine = Engine(
                self.model,
                eos_token_ids=weights.eos_token_ids(start),
                max_model_len=recipe.model.max_model_len,
                kv_tokens=section.kv_tokens,
                prefix_tokens=section.prefix_tokens,
                block_size=section.block_size,
                prefill_budget=section.prefill_budget,
                decode=tokenizer and tokenizer.decode,
            )
        except ValueError as error:
            raise RecipeError(f"engine.{error}") from error
        self.policy = EmbeddedPolicy(self.engine)
        self.runner = Runner(
            method,
            Roles({**(roles or {}), "policy": self.policy}),
            concurrency=recipe.rollout.concurrency,
            deadline_s=recipe.rollout.deadline_s,
        )
        self.step = self._resume()

    def _resume(self) -> int:
        """Go back to the newest checkpoint, or to the start; forget what was logged after it."""
        newest = checkpoint.latest(self.checkpoints)
        step, logged = 0, -1  # without a checkpoint the evaluation before the first step is done again
        if newest is not None:
            state = checkpoint.load(newest, self.model)
            self.trainer.load_state(state["trainer"])
            self.stream.cursor = state["cursor"]
            step = logged = state["step"]
        self.engine.weights_changed(str(step))
        self.metrics.rewind("train", logged)
        self.trajectories.rewind("train", logged)
        return step

    async def run(self) -> Path:
        """Train to the last step; returns the last checkpoint."""
        run = self.recipe.run
        with Progress(run.steps, label=f"seed {self.seed}", start=self.step, console=self.console) as progress:
            if self.step == 0 and run.eval_every:
                await self._evaluate()
            while self.step < run.steps:
                record = await self._train_step()
                progress.update(
                    self.step,
                    reward=record["reward"],
                    tokens_per_second=record["tokens_per_second"],
                    failures=sum(record["failures"].values()),
                )
                if run.eval_every and (self.step % run.eval_every == 0 or self.step == run.steps):
                    await self._evaluate()
                if self.step % run.save_every == 0 or self.step == run.steps:
                    self._save()
        await self.policy.close()
        newest = checkpoint.latest(self.checkpoints)
        assert newest is not None
        return newest

    async def _train_step(self) -> dict[str, Any]:
        began, prefilled = time.perf_counter(), self.engine.stats().prefilled_tokens
        groups, left_out, failures, tasks = await self._sample()
        sampled = time.perf_counter()
        algorithm = self.recipe.algorithm
        rows = rows_from_groups(groups, **algorithm.rows())
        stats = self.trainer.grpo_step(rows)
        self.step += 1
        self.engine.weights_changed(str(self.step))
        done = [t for group in (*groups, *left_out) for t in group if t.status != "failed"]
        record = {
            "stage": "train",
            "step": self.step,
            **_means(done),
            **stats,
            "groups_with_signal": sum(has_signal(group, algorithm.min_group_std) for group in groups) / len(tasks),
            "failures": dict(failures.counts),
            "tasks": [task.task_id for task in tasks],
            "seconds": time.perf_counter() - began,
            "rollout_seconds": sampled - began,
            "prefilled_tokens": self.engine.stats().prefilled_tokens - prefilled,
            "tokens_per_second": sum(t.token_count for t in done) / (sampled - began),
        }
        self.metrics.append(record)
        self.trackers.log(
            self.step, {f"train/{k}": v for k, v in record.items() if k not in ("stage", "step", "tasks")}
        )
        every = self.recipe.run.trajectories_every
        if every and (self.step % every == 0 or self.step == 1):
            task = next(task for task in tasks if task.task_id == groups[0][0].task_id)
            for trajectory in groups[0]:
                self._log_trajectory("train", task, trajectory)
        return record

    async def _sample(self) -> tuple[list[list[Trajectory]], list[list[Trajectory]], Failures, list[Task]]:
        """The groups of one step, those that a filter left out, all failures and all tasks that were begun.

        With a filter, further tasks replace groups without a signal; if none has one, the step is theirs.
        """
        rollout, min_std = self.recipe.rollout, self.recipe.algorithm.min_group_std
        sampling = Sampling(temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k)
        kept: list[list[Trajectory]] = []
        dropped: list[list[Trajectory]] = []
        taken: list[Task] = []
        failures = Failures()
        for round_ in range(rollout.filter_rounds if rollout.filter != "none" else 1):
            tasks = self.stream.take(rollout.tasks_per_step - len(kept))
            seed = derive_seed(self.seed, "train", self.step, round_)
            groups = await self.runner.run_groups(tasks, rollout.group_size, sampling, seed)
            if self.regrade is not None:
                groups = [list(self.regrade(task, group)) for task, group in zip(tasks, groups, strict=True)]
            taken += tasks
            for trajectory in (t for group in groups for t in group if t.status == "failed"):
                failures.add(trajectory)
            for group in groups:
                (kept if rollout.filter == "none" or has_signal(group, min_std) else dropped).append(group)
            if len(kept) == rollout.tasks_per_step:
                break
        if sum(failures.counts.values()) == len(taken) * rollout.group_size:
            raise TrainingError(f"step {self.step + 1}: every rollout failed: {failures.describe()}")
        return kept or dropped, dropped if kept else [], failures, taken

    async def _evaluate(self) -> None:
        """Mean reward on the held-out tasks, one rollout each."""
        run = self.recipe.run
        tasks = self.eval_tasks[: run.eval_tasks]
        began = time.perf_counter()
        sampling = Sampling(temperature=run.eval_temperature, top_p=run.eval_top_p)
        groups = await self.runner.run_groups(tasks, 1, sampling, derive_seed(self.seed, "eval"))
        # A run that resumes here does not evaluate again; its next step must find the same cache, which is none.
        self.engine.flush_cache()
        done = [group[0] for group in groups if group[0].status != "failed"]
        # A failed rollout counts as 0 here: it stays in the denominator.
        record = {
            **_means(done),
            "reward": sum(t.reward or 0.0 for t in done) / len(tasks),
            "failures": len(tasks) - len(done),
        }
        self.metrics.append({"stage": "eval", "step": self.step, **record, "seconds": time.perf_counter() - began})
        self.trackers.log(self.step, {f"eval/{k}": v for k, v in record.items()})
        for task, group in list(zip(tasks, groups, strict=True))[:2]:
            self._log_trajectory("eval", task, group[0])

    def _save(self) -> None:
        state = {"trainer": self.trainer.state(), "cursor": self.stream.cursor}
        checkpoint.save(self.checkpoints, self.step, self.model, self.start, state)

    def _log_trajectory(self, stage: str, task: Task, trajectory: Trajectory) -> None:
        self.trajectories.append(trajectory_record(stage, self.step, task, trajectory, self.tokenizer))


def _means(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Mean reward and mean of each metric over trajectories; `drift` is an event, and counted."""
    if not trajectories:
        return {"reward": 0.0}
    names = {name for t in trajectories for name in t.metrics}
    means = {name: sum(t.metrics.get(name, 0.0) for t in trajectories) / len(trajectories) for name in sorted(names)}
    if "drift" in means:
        means["drift"] = sum(t.metrics.get("drift", 0.0) for t in trajectories)
    return {"reward": sum(t.reward or 0.0 for t in trajectories) / len(trajectories), **means}
