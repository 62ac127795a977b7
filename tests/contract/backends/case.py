"""A method as the tests of this folder drive it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from core.rollout.method import MethodSpec
from core.types import Task
from tests.contract.backends.serving import Reply


@dataclass(frozen=True)
class Case:
    """`failures`: name of each failure among the rollouts of `faulty` -> whether it befalls whole groups, or parts."""

    spec: MethodSpec
    """What the hooks take for the method that the recipe names."""
    recipe: Callable[..., dict[str, Any]]
    """(**rollout settings) -> a recipe."""
    tasks: Callable[[int], list[Task]]
    """So many tasks of different lengths, in which nothing fails."""
    faulty: Sequence[Task]
    failures: Mapping[str, bool]
    slow: Task
    """Never ends within a test, unless it is aborted."""
    quick: Mapping[str, Any]
    """Metadata of slime's Sample that makes `slow` end soon."""
    preset: str | None = "seed"
    """Names a preset with a section `slime`, if there is one."""
    reply: Reply | None = None
    """What the policy writes; None: the embedded backend with MemAgent's tiny start model."""
