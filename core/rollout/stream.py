"""Orders the tasks of a run: by a seeded permutation each epoch, or with `data.sampler: curriculum` by what steps saw.

A group whose rollouts all earn the same has no advantage, and its rollouts taught nothing. A curriculum spends no
rollout to find that out: it goes by the last group of each task, which a step has trained on anyway.
`algorithm.dynamic_sampling` (DAPO) samples a group first, and throws it away and samples another one if it agrees: it
fills the batch for up to `max_num_gen_batches` times the rollouts, and the next epoch it pays again. The two go
together. Neither needs the other.

- Half of a step are tasks whose last group disagreed. The weight of one is the variance of its rewards, p * (1 - p) for
  0 or 1, the learnability of Foerster and others (arXiv 2502.12272), plus a tenth of the mean variance of tasks seen.
- The other half are tasks never seen, all alike. Where one half has too few, the other gets its places.
- A task rests for some steps after it was drawn: a policy that sees it again at once learns its answer by heart.
- When every task has been seen, all that have rested are drawn by these weights, or all if none has. One that agreed
  has that tenth alone, so it comes back now and then: the policy may have learned to solve it, or forgotten.

Each draw has a chance, which the record of its step holds: the chance that a place of the step, the first to be filled,
took this task. Tasks that rest have none.

The outcomes are in the records of the steps in metrics.jsonl. A run that resumes reads them there, and draws the tasks
that it would have drawn without the break.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, mean, pstdev

from core.types import Group, Task

Outcomes = Mapping[str, tuple[float, float]]
"""Maps the id of a task to the mean and the standard deviation of the rewards of its group."""

AGREED_WEIGHT = 0.1
"""Adds to the weight of every task, in mean variances of the tasks seen."""

REST = 8
"""Counts the steps that a task rests after it was drawn."""


class TaskStream:
    """Repeats `tasks` without end. Its whole state is `cursor`, the number of tasks handed out so far."""

    def __init__(self, tasks: Sequence[Task], *, shuffle: bool, seed: int):
        if not tasks:
            raise ValueError("the data set has no tasks")
        self.tasks = tasks
        self.shuffle = shuffle
        self.seed = seed
        self.cursor = 0
        self._epoch = -1
        self._order: list[int] = []

    def take(self, count: int) -> list[Task]:
        """Hand out the next `count` tasks."""
        tasks = []
        for _ in range(count):
            # The cursor counts on through the epochs: `index` is the place in this epoch's order.
            epoch, index = divmod(self.cursor, len(self.tasks))
            if epoch != self._epoch:
                self._epoch = epoch
                self._order = list(range(len(self.tasks)))
                if self.shuffle:
                    random.Random(f"{self.seed}-{epoch}").shuffle(self._order)
            tasks.append(self.tasks[self._order[index]])
            self.cursor += 1
        return tasks


class Curriculum(TaskStream):
    """Hands out tasks without end. Its state is `cursor`, and what `update` was given."""

    def __init__(self, tasks: Sequence[Task], *, seed: int):
        super().__init__(tasks, shuffle=True, seed=seed)
        self.outcomes: dict[str, tuple[float, float, int]] = {}
        """Maps the id of a task to the mean and the standard deviation of its last group, and the step of that."""
        self.step = 0
        self._drawn: set[str] = set()
        self._chances: dict[str, float] = {}

    def take(self, count: int) -> list[Task]:
        """Draw `count` tasks. None is drawn twice for one step while there are others."""
        chosen: list[Task] = []
        while len(chosen) < count:
            if len(self._drawn) == len(self.tasks):
                self._drawn.clear()
            drawn = self._draw(count - len(chosen))
            self._drawn |= {task.task_id for task in drawn}
            self.cursor += len(drawn)
            chosen += drawn
        return chosen

    def _draw(self, count: int) -> list[Task]:
        free = [task for task in self.tasks if task.task_id not in self._drawn]
        new = [task for task in free if task.task_id not in self.outcomes]
        seen = [task for task in free if task.task_id in self.outcomes]
        rested = [task for task in seen if self.step - self.outcomes[task.task_id][2] >= REST]
        seen = [task for task in rested if self._variance(task)] if new else rested or seen
        again = min(len(seen), max(count // 2 if new else count, count - len(new)))
        # A clock that rings at a random time, sooner for a larger weight: the first to ring are drawn.
        rng = random.Random(f"{self.seed}-{self.cursor}")
        least = AGREED_WEIGHT * fmean(std**2 for _, std, _ in self.outcomes.values()) if self.outcomes else 0.0
        weights = {task.task_id: self._variance(task) + least or 1.0 for task in seen}
        clocks = {task: rng.expovariate(weight) for task, weight in weights.items()}
        drawn = sorted(seen, key=lambda task: clocks[task.task_id])[:again]
        drawn += rng.sample(new, min(len(new), count - again))
        total, places = sum(weights.values()), len(drawn)
        for task in drawn:
            known = again * weights[task.task_id] / total if task.task_id in weights else (places - again) / len(new)
            self._chances[task.task_id] = known / places
        return drawn

    def pop_chances(self, tasks: Sequence[Task]) -> dict[str, float]:
        """Return the chance of each of these drawn tasks: that a place of its step, the first to be filled, took it."""
        return {task.task_id: self._chances.pop(task.task_id) for task in tasks if task.task_id in self._chances}

    def _variance(self, task: Task) -> float:
        return self.outcomes[task.task_id][1] ** 2

    def update(self, outcomes: Outcomes) -> None:
        """Take the outcomes of a step; the next tasks are those of another step."""
        self.step += 1
        self.outcomes |= {task: (average, std, self.step) for task, (average, std) in outcomes.items()}
        self._drawn.clear()


def measure_outcomes(groups: Iterable[Group]) -> dict[str, tuple[float, float]]:
    """Return the mean and the std of the rewards of each group, but of one whose rollouts all failed."""
    rewards = {group[0].task_id: [t.reward or 0.0 for t in group if t.status != "failed"] for group in groups}
    return {task: (mean(values), pstdev(values)) for task, values in rewards.items() if values}
