"""GRPO with our own trainer: sample groups, make rows of them, take a step, evaluate, save, and repeat.

Generation and training share one set of weights in one process. Everything random follows from (seed, step, task, place
in the group), so on a CPU a run that is killed and resumed ends with the numbers of one that was not. With
`inference.servers` or `inference.replicas` rollouts come from servers instead, which get the weights after each step;
such a run does not repeat to the last digit.

With `rollout.ahead` the batches of later steps are sampled while a step waits for its own and trains on it. Each step
still trains on the tasks that it would train on otherwise. What a rollout samples then depends on when the weights
change under it, so these runs do not repeat to the last digit.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from core.config import AlgorithmSection, Recipe
from core.policy.base import Policy, Roles
from core.rollout.method import Method, Regrade
from core.rollout.rows import REFERENCE_KL, count_trained_tokens, make_rows, rows_from_groups
from core.rollout.runner import EmptyStepGuard, Failures, Runner, has_signal, measure_agreement, regrade_group
from core.rollout.stream import Curriculum, TaskStream, measure_outcomes
from core.runs.files import Record, read_jsonl
from core.runs.health import Health, average_metrics, describe_lengths, describe_sign, measure_health
from core.runs.progress import Progress, Show, show_rollout
from core.runs.record import RolloutLog, TrainedRow, record_rollout
from core.runs.run_folder import RunFolder, list_checkpoints
from core.runs.trackers import Trackers
from core.text.tokenizer import Tokenizer, token_bytes
from core.train import checkpoint
from core.train.learner import iterate_update, measure_kl, open_learners
from core.train.trainer import TrainingError, WatchRow, finish
from core.types import POLICY, Group, Row, Sampling, Task, Trajectory, derive_seed

logger = logging.getLogger(__name__)


@dataclass
class SampledBatch:
    """Holds what one training step sampled: `groups` are trained, `filtered` groups were sampled and left out."""

    tasks: list[Task] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    filtered: list[Group] = field(default_factory=list)

    def add(self, groups: Sequence[Group], algorithm: AlgorithmSection) -> None:
        """Add groups; with dynamic sampling, those without a signal are filtered."""
        for group in groups:
            keep = not algorithm.dynamic_sampling or has_signal(group, algorithm.min_group_std)
            (self.groups if keep else self.filtered).append(group)

    def keep_some(self) -> None:
        """Train on all groups if no group has a signal."""
        if not self.groups:
            self.groups, self.filtered = self.filtered, []

    @property
    def trajectories(self) -> list[Trajectory]:
        """List all rollouts, trained groups first."""
        return [trajectory for group in (*self.groups, *self.filtered) for trajectory in group]


UNTRACKED = ("stage", "step", "tasks", "outcomes", "chances")
"""Names what a step's record has and no curve can show."""

Watched = dict[tuple[int, tuple[int, ...]], tuple[Sequence[float], float]]
"""Maps a row's rollout and turns to the trainer's log-probs of its response, and to its scale in the loss."""


class GRPOLoop:
    """Trains one seed of one recipe. `start` is the model folder that training begins with.

    `run` repeats one step: sample, make rows, step the trainer, and now and then evaluate and save.
    """

    def __init__(
        self,
        recipe: Recipe,
        method: Method,
        tokenizer: Tokenizer,
        tasks: Sequence[Task],
        eval_tasks: Sequence[Task],
        folder: RunFolder,
        seed: int,
        start: Path,
        *,
        roles: dict[str, Policy] | None = None,
        regrade: Regrade | None = None,
        trackers: Trackers | None = None,
        show: Show | None = None,
    ):
        self.recipe = recipe
        self.eval_tasks = eval_tasks
        self.seed = seed
        self.start = start
        self.regrade = regrade
        self.curriculum = Curriculum(tasks, seed=seed) if recipe.data.sampler == "curriculum" else None
        self.stream = self.curriculum or TaskStream(tasks, shuffle=recipe.data.shuffle, seed=seed)
        self.checkpoints = folder.checkpoints_path(seed)
        self.metrics = folder.open_metrics(seed)
        self.token_bytes = partial(token_bytes, tokenizer)
        self.rollouts = RolloutLog(folder.rollouts_path(seed), self.token_bytes)
        self.trackers = trackers or Trackers({})
        self.progress = Progress(recipe.run.steps, f"seed {seed}", show=show)
        self.progress.tell("loading the model")
        self.learners = open_learners(recipe, start, tokenizer, folder.served_path(seed), seed)
        self.beside = {name: learner for name, learner in self.learners.items() if name != POLICY}
        self.runner = Runner(
            method,
            Roles({**(roles or {}), **{name: each.engine.policy for name, each in self.learners.items()}}),
            concurrency=recipe.rollout.concurrency,
            deadline_s=recipe.rollout.deadline_s,
            watch=lambda finished, total: self.progress.tell(self.activity, finished, total),
        )
        self.activity = "sampling"
        self.pending_batches: dict[int, asyncio.Task[SampledBatch]] = {}
        self.health = Health(recipe.health)
        self.empty_steps = EmptyStepGuard()
        self.reported_failures: set[str] = set()
        self.step = self._resume()

    def _resume(self) -> int:
        """Restore the newest checkpoint, or begin at step 0, and drop what was logged after it; return the step."""
        checkpoint.drop_old_states(self.checkpoints)
        newest = checkpoint.find_newest(self.checkpoints)
        step, last_logged = 0, -1  # without a checkpoint, the evaluation before the first step is repeated
        if newest is not None:
            policy = self.learners[POLICY]
            beside = {name: learner.model for name, learner in self.beside.items()}
            state = checkpoint.load(newest, policy.model, beside)
            policy.trainer.load_state(state["trainer"])
            for name, learner in self.beside.items():
                learner.trainer.load_state(state["beside"][name])
            self.stream.cursor = state["cursor"]
            step = last_logged = state["step"]
        self.metrics.rewind("train", last_logged)
        self.rollouts.rewind(last_logged)
        logged = [record for record in read_jsonl(self.metrics.path) if record["stage"] == "train"]
        for record in logged:
            self.health.update(record)
            if self.curriculum is not None:
                self.curriculum.update(record["outcomes"])
        if len(logged) != step:
            logger.warning("%s lacks the records of %d of %d steps", self.metrics.path, step - len(logged), step)
        return step

    async def run(self) -> Path:
        """Train to the last step and return the last checkpoint."""
        try:
            await self._adopt_weights()
            await self._train()
        finally:
            for task in self.pending_batches.values():
                task.cancel()
            await asyncio.gather(*self.pending_batches.values(), return_exceptions=True)
            for learner in self.learners.values():
                await learner.engine.close()
        newest = checkpoint.latest(self.checkpoints)
        assert newest is not None
        return newest

    def check_learned(self) -> None:
        """Raise TrainingError if the run has ended in bad health and no step has changed a weight."""
        if self.health.active and not self.health.trained:
            signs = "; ".join(describe_sign(*sign) for sign in self.health.active.items())
            raise TrainingError(
                f"seed {self.seed}: no step changed a weight, its checkpoints are the start model. {signs}"
            )

    async def _train(self) -> None:
        run = self.recipe.run
        with self.progress as progress:
            progress.resume(self.step)
            if self.step == 0 and run.eval_every:
                await self._evaluate()
            while self.step < run.steps:
                record = await self._train_step()
                progress.update(
                    self.step,
                    reward=record["reward"],
                    tokens_per_second=record["tokens_per_second"],
                    easy=record["easy_groups"],
                    hard=record["hard_groups"],
                    failures=sum(record["failures"].values()),
                )
                better = False
                if run.eval_every and (self.step % run.eval_every == 0 or self.step == run.steps):
                    better = await self._evaluate()
                if self.step % run.save_every == 0 or self.step == run.steps or (better and run.keep == "best"):
                    self._save()

    async def _train_step(self) -> dict[str, Any]:
        """Sample a batch, learn from it, and log the step; return its record."""
        started, counts = time.perf_counter(), self._count()
        batch = await self._sample()
        waited = time.perf_counter() - started
        stats = await self._learn(batch)
        stats |= {name: count - counts[name] for name, count in self._count().items()}
        return self._tell(batch, stats, time.perf_counter() - started, waited)

    async def _adopt_weights(self) -> None:
        for learner in self.learners.values():
            await learner.engine.adopt_weights(self.step)

    def _count(self) -> Counter[str]:
        """Return what the engines have counted since the start of the process."""
        counts = Counter[str]()
        for learner in self.learners.values():
            counts.update(learner.engine.metrics())
        return counts

    async def _sample(self) -> SampledBatch:
        """Begin this step's batch and those of the next `rollout.ahead` steps, in order; wait for this step's."""
        self.activity = "sampling"
        for step in range(self.step, min(self.step + self.recipe.rollout.ahead + 1, self.recipe.run.steps)):
            if step not in self.pending_batches:
                batch = sample_batch(
                    self.recipe, self.runner, self.stream, seed=self.seed, step=step, regrade=self.regrade
                )
                self.pending_batches[step] = asyncio.create_task(batch)
        await asyncio.sleep(0)  # each batch that was begun takes its tasks now
        sampled = await self.pending_batches[self.step]
        del self.pending_batches[self.step]
        return sampled

    async def _learn(self, batch: SampledBatch) -> dict[str, float]:
        """Step the trainer on the rows of a batch, and sample from the new weights from now on; return statistics."""
        if self.recipe.algorithm.kl_coef:
            batch.groups = await self._measure_kl(batch.groups)
        # Without one valid rollout there are no rows, and the trainer takes no step.
        rows = rows_from_groups(batch.groups, **self.recipe.algorithm.row_options())
        ahead = self.recipe.rollout.ahead
        if not ahead:
            for learner in self.learners.values():
                learner.engine.release_cache()  # the update needs the memory, and makes the cache worthless
        every, step = self.recipe.run.record_every, self.step + 1
        recorded = bool(every) and (step % every == 0 or step == 1)
        watched: Watched = {}

        def keep(row: Row, logprobs: Sequence[float], scale: float) -> None:
            watched[row.rollout_id, row.turns] = logprobs, scale

        self.progress.tell(f"training on {len(rows)} rows")
        stats = await self._update(rows, keep if recorded else None)
        stats |= count_overlong(batch.groups, self.recipe.algorithm)
        if ahead:
            stats |= measure_staleness(batch.trajectories, self.step)
        self.step += 1
        await self._adopt_weights()
        if recorded:
            self._record_batch(batch, rows, watched)
        return stats

    def _tell(self, batch: SampledBatch, stats: Record, seconds: float, waited: float) -> Record:
        """Log what a step did in `seconds`, of which it `waited` for rollouts; return its record.

        Raises:
            TrainingError: all rollouts failed, or all optimizer steps were skipped, in several steps in a row.
        """
        valid = [trajectory for trajectory in batch.trajectories if trajectory.status != "failed"]
        failures = Failures(batch.trajectories)
        min_std, ahead = self.recipe.algorithm.min_group_std, self.recipe.rollout.ahead
        turns = [turn for trajectory in valid for turn in trajectory.turns]
        tokens = sum(len(turn.prompt_ids) + len(turn.completion.token_ids) for turn in turns)
        record = {
            **average_metrics([trajectory.metrics for trajectory in valid]),  # a method's names do not replace ours
            "stage": "train",
            "step": self.step,
            "reward": sum(trajectory.reward or 0.0 for trajectory in valid) / len(valid) if valid else None,
            **stats,
            "groups_with_signal": sum(has_signal(group, min_std) for group in batch.groups) / len(batch.tasks),
            **measure_agreement(batch.groups + batch.filtered),
            **measure_health(batch.tasks, batch.trajectories, comparable=self.regrade is None),
            "tasks": [task.task_id for task in batch.tasks],
            "seconds": seconds,
            # What training waited for rollouts. With `rollout.ahead` they were sampled before, too.
            "rollout_seconds": waited,
            "tokens_per_second": tokens / (seconds if ahead else waited),
        }
        if self.recipe.algorithm.adv_estimator == "turn_grpo":
            record["rewarded_turns"] = sum(turn.reward is not None for turn in turns)
        if self.curriculum is not None:
            record["outcomes"] = outcomes = measure_outcomes((*batch.groups, *batch.filtered))
            record["chances"] = self.curriculum.pop_chances(batch.tasks)
            self.curriculum.update(outcomes)
        notes = self.health.update(record)
        record["health"] = self.health.active
        self.metrics.append(record)
        for note in notes:
            self.progress.note(f"step {self.step}: {note}")
        tracked = {f"train/{name}": value for name, value in record.items() if name not in UNTRACKED}
        self.trackers.log(self.step, tracked)
        failures.tell(f"step {self.step}", self.reported_failures)
        empty = self.empty_steps.check(batch.trajectories, self.recipe.health.end_after)
        if reason := empty or self.health.find_end():
            raise TrainingError(f"step {self.step}: {reason}")
        return record

    async def _measure_kl(self, groups: Sequence[Group]) -> list[Group]:
        """Return the groups with each rollout's KL to the start model in its metrics, where its reward is charged."""
        rollouts, unit = [trajectory for group in groups for trajectory in group], self.recipe.algorithm.rows
        rows = [row for number, t in enumerate(rollouts) for row in make_rows(t.turns, unit, rollout_id=number)]
        # An adapter cannot be left out while the same model samples, so rollouts that run ahead in this process wait.
        if self.learners[POLICY].engine.samples_while_training:
            found = await asyncio.to_thread(measure_kl, self.learners, rows)
        else:
            found = measure_kl(self.learners, rows)
        charged = (replace(t, metrics={**t.metrics, REFERENCE_KL: found.get(i, 0.0)}) for i, t in enumerate(rollouts))
        return [list(islice(charged, len(group))) for group in groups]

    async def _update(self, rows: Sequence[Row], watch: WatchRow | None) -> dict[str, float]:
        """Step the trainer. Rollouts that run ahead in this process get as much time after a pack as the pack took."""
        work, engine = iterate_update(self.learners, rows, watch), self.learners[POLICY].engine
        if engine.samples_while_training:
            return await asyncio.to_thread(finish, work)
        while True:
            began = time.perf_counter()
            try:
                next(work)
            except StopIteration as done:
                return dict(done.value)
            ends = 2 * time.perf_counter() - began
            await asyncio.sleep(0)
            while engine.has_work() and time.perf_counter() < ends:
                await asyncio.sleep(0)

    async def _evaluate(self) -> bool:
        """Log the mean reward on the held-out tasks, one rollout each; a failed one counts as the worst, at most as 0.

        The other metrics are those of `average_metrics` over the valid rollouts. Returns whether no checkpoint was
        evaluated with a higher reward. An evaluation without a valid rollout has none.
        """
        run = self.recipe.run
        tasks = self.eval_tasks[: run.eval_tasks]
        self.activity = "evaluating"
        self.progress.tell(self.activity)
        started = time.perf_counter()
        sampling = Sampling(temperature=run.eval_temperature, top_p=run.eval_top_p)
        groups = await self.runner.run_groups(tasks, 1, sampling, derive_seed(self.seed, "eval"))
        # A run that resumes here skips this evaluation, so clear the cache to give both the same (empty) one.
        for learner in self.learners.values():
            learner.engine.flush_cache()
        rollouts = [group[0] for group in groups]
        valid = [trajectory for trajectory in rollouts if trajectory.status != "failed"]
        Failures(rollouts).tell(f"step {self.step}", self.reported_failures)
        record: Record = {**average_metrics([t.metrics for t in valid]), "failures": len(tasks) - len(valid)}
        if rewards := [trajectory.reward or 0.0 for trajectory in valid]:
            # Where a wrong answer costs, as ReTool's -1, a failure must not be worth more.
            record["reward"] = (sum(rewards) + record["failures"] * min(0.0, *rewards)) / len(tasks)
        seconds = time.perf_counter() - started
        self.metrics.append({**record, "stage": "eval", "step": self.step, "seconds": seconds})
        self.trackers.log(self.step, {f"eval/{name}": value for name, value in record.items()})
        if run.record_every:
            pairs = enumerate(zip(tasks, groups, strict=True))
            self.rollouts.append([record_rollout("eval", self.step, i, task, group[0]) for i, (task, group) in pairs])
        logged = read_jsonl(self.metrics.path)
        # A run that began with `keep: last` has not saved its best.
        saved = {int(path.name[5:]) for path in list_checkpoints(self.checkpoints)} - {self.step}
        earlier = [r["reward"] for r in logged if r["stage"] == "eval" and r["step"] in saved and "reward" in r]
        return "reward" in record and record["reward"] >= max(earlier, default=-math.inf)

    def _save(self) -> None:
        # A run that resumes here samples again what was sampled ahead and not trained.
        untrained = len(self.pending_batches) * self.recipe.rollout.tasks_per_step
        policy = self.learners[POLICY]
        state: dict[str, Any] = {"trainer": policy.trainer.state(), "cursor": self.stream.cursor - untrained}
        state["beside"] = {name: learner.trainer.state() for name, learner in self.beside.items()}
        for log in (self.metrics, self.rollouts):
            log.sync()  # a checkpoint must not outlive the records of the steps before it
        beside = {name: learner.model for name, learner in self.beside.items()}
        checkpoint.save(self.checkpoints, self.step, policy.model, self.start, state, beside)

    def _record_batch(self, batch: SampledBatch, rows: Sequence[Row], watched: Watched) -> None:
        """Record all rollouts of a step with their rows."""
        by_rollout: dict[int, list[TrainedRow]] = defaultdict(list)
        for row in rows:
            by_rollout[row.rollout_id].append(TrainedRow(row, *watched.get((row.rollout_id, row.turns), ())))
        tasks = {task.task_id: task for task in batch.tasks}
        records: list[Record] = []
        for number, group in enumerate((*batch.groups, *batch.filtered)):
            for trajectory in group:
                # Rows number the rollouts in this very order; rollouts of filtered groups have none.
                trained, task = by_rollout[len(records)], tasks[trajectory.task_id]
                records.append(record_rollout("train", self.step, number, task, trajectory, trained))
        self.rollouts.append(records)
        if self.step == 1:
            shown = show_rollout(batch.trajectories, self.token_bytes)
            self.progress.note(f"{shown}\n  {describe_lengths(batch.trajectories)}")


async def sample_batch(
    recipe: Recipe,
    runner: Runner,
    stream: TaskStream,
    *,
    seed: int,
    step: int,
    regrade: Regrade | None = None,
) -> SampledBatch:
    """Sample the groups of one step; steps count from 0.

    With dynamic sampling, other tasks replace the groups without a signal, for at most `max_num_gen_batches` rounds.
    Then the batch may have fewer groups. If no group has a signal, all are trained.
    """
    rollout, algorithm = recipe.rollout, recipe.algorithm
    sampling = Sampling(temperature=rollout.temperature, top_p=rollout.top_p, top_k=rollout.top_k)
    batch = SampledBatch()
    for attempt in range(algorithm.max_num_gen_batches if algorithm.dynamic_sampling else 1):
        tasks = stream.take(rollout.tasks_per_step - len(batch.groups))
        groups: Sequence[Group] = await runner.run_groups(
            tasks, rollout.group_size, sampling, derive_seed(seed, "train", step, attempt)
        )
        if regrade is not None:
            groups = [regrade_group(regrade, task, group) for task, group in zip(tasks, groups, strict=True)]
        batch.tasks += tasks
        batch.add(groups, algorithm)
        if len(batch.groups) == rollout.tasks_per_step:
            break
    batch.keep_some()
    return batch


def count_overlong(groups: Sequence[Group], algorithm: AlgorithmSection) -> dict[str, float]:
    """Count the rollouts whose reward is lowered for their length, and those that are filtered for being cut."""
    rollouts, counts = [t for group in groups for t in group if t.status != "failed"], dict[str, float]()
    if algorithm.max_response_length and algorithm.overlong_buffer_len:
        allowed = algorithm.max_response_length - algorithm.overlong_buffer_len
        counts["overlong_punished"] = float(sum(count_trained_tokens(t) > allowed for t in rollouts))
    if algorithm.overlong_filter:
        counts["overlong_filtered"] = float(sum(t.status == "truncated" for t in rollouts))
    return counts


def measure_staleness(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """Measure by how many steps the weights that sampled the trained tokens are older than `version`."""
    tokens: Counter[int] = Counter()
    for trajectory in trajectories:
        for turn in trajectory.turns:
            if turn.trained:
                tokens.update({version - int(sampled): n for sampled, n in turn.completion.count_versions() if n})
    if not tokens:
        return {}
    mean = sum(age * count for age, count in tokens.items()) / tokens.total()
    return {"staleness_mean": mean, "staleness_max": float(max(tokens))}
