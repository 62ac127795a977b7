"""Orders the tasks of a run: a seeded permutation each epoch, and a cursor for checkpoints.

core/rollout/curriculum.py draws them by what earlier steps have seen instead.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from core.types import Task


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
