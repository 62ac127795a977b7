"""A method as the tests of this folder drive it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from core.policy.base import PolicyError
from core.rollout.method import MethodSpec
from core.types import Task
from tests.contract.backends.serving import Reply

REFUSED = "forbidden"
"""`refuse_some` refuses prompts with this word."""


def refuse_some(prompt: str, chance: Random, share: float = 0.2) -> None:
    if REFUSED in prompt and chance.random() < share:
        raise PolicyError("bad_request", "refused")


def load_tiny(
    spec: MethodSpec[Any], rollout: Mapping[str, Any], section: Mapping[str, Any], *overrides: str
) -> dict[str, Any]:
    """The preset tiny with these keys of `rollout` and of the method's section, and four rollouts of four tasks."""
    sizes = {"tasks_per_step": 4, "group_size": 4, "deadline_s": 60.0} | rollout
    keys = {f"rollout.{name}": value for name, value in sizes.items()}
    keys |= {f"{spec.name}.{name}": value for name, value in section.items()}
    return spec.load("tiny", [*(f"{key}={json.dumps(value)}" for key, value in keys.items()), *overrides]).dump()


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
