"""The order in which a run meets its tasks: a seeded permutation each epoch, and a cursor for checkpoints."""

from __future__ import annotations

import random
from collections.abc import Sequence

from core.types import Task


class TaskStream:
    """Endless stream over `tasks`. Its whole state is `cursor`, the number of tasks handed out so far."""

    def __init__(self, tasks: Sequence[Task], *, shuffle: bool, seed: int):
        if not tasks:
            raise ValueError("the data set has no tasks")
        self.tasks, self.shuffle, self.seed, self.cursor = tasks, shuffle, seed, 0
        self._epoch, self._order = -1, list(range(len(tasks)))

    def take(self, count: int) -> list[Task]:
        """The next `count` tasks."""
        taken = []
        for _ in range(count):
            epoch, index = divmod(self.cursor, len(self.tasks))
            if epoch != self._epoch:
                self._epoch = epoch
                self._order = list(range(len(self.tasks)))
                if self.shuffle:
                    random.Random(f"{self.seed}-{epoch}").shuffle(self._order)
            taken.append(self.tasks[self._order[index]])
            self.cursor += 1
        return taken
