"""Defines what a method is to the backends: it turns a task into a Trajectory with a reward."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from core.config import Recipe, RecipeError, load
from core.policy.base import Roles
from core.types import Group, Sampling, Task, Trajectory, Turn


class Method(Protocol):
    """One agentic-RL method. The backends call nothing else of it."""

    needs: tuple[str, ...] = ()
    """Names the roles that it asks, beside `policy`."""

    sandbox: str | None = None
    """Names what isolates the programs that its tools run, for the run folder; None if there are none."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Run one task to its end. `sampling` holds temperature, filters and seed; the method sets the lengths.

        Raises:
            RolloutError: the rollout failed; it is counted under its kind and left out of the baseline, unless it is
                a PolicyFault.
        """
        ...

    async def close(self) -> None:
        """Release what the method holds beyond memory, such as processes and connections."""
        return None


@dataclass(frozen=True, slots=True)
class MethodSpec:
    """Describes a method folder to the backends and commands."""

    name: str
    recipe: type[Recipe]
    presets: Path
    build: Callable[[Any, Any], Method]
    """Makes the Method from (recipe, tokenizer). It is a plain function: worker processes import it by name."""
    needs_context: bool = False
    """Makes a task without context an error in the data."""
    check_task: Callable[[Any, Task], tuple[str, str, str] | None] | None = None
    """Maps (recipe, task) to what is wrong with the task's record, as (field, problem, fix), or to None. Only a method
    that reads fields of its own from `metadata` has it."""
    regrade: Callable[[Any, Task, Group], Sequence[Trajectory]] | None = None
    """Maps (recipe, task, group) to the same trajectories in the same order, with rewards that compare them. Only a
    method whose reward depends on the group has it. Evaluation keeps the rewards of the single rollouts."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Maps metrics that count what a rollout left out of its task to what an evaluation tells of it, as in `lost 3
    chunks ...`."""

    def load(self, preset: str, overrides: Sequence[str] = ()) -> Any:
        """Load a recipe of this method. Raises RecipeError as core.config.load."""
        return load(self.recipe, self.presets, preset, overrides, method=self.name)

    def reading_options(self, recipe: Any) -> dict[str, Any]:
        """Return what reading this method's data takes: options of core.data.tasks.read_tasks."""
        check = partial(self.check_task, recipe) if self.check_task else None
        return {"require_context": self.needs_context, "check": check}


class RolloutError(RuntimeError):
    """Says that a rollout failed for a known reason; `kind` is its name in the failure counts."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class PolicyFault(RolloutError):
    """Says that a rollout failed by the policy's own doing, such as `too_long` for a prompt that outgrew the context.

    If one of its `turns` is trained, it stays in its group with reward 0 and is trained.
    """

    def __init__(self, kind: str, message: str, turns: Sequence[Turn]):
        super().__init__(kind, message)
        self.turns = tuple(turns)


def method_spec(method: str) -> MethodSpec:
    """Return the SPEC of agentic.`method`.rollout. Raises RecipeError for an unknown method."""
    folder = Path(__file__).resolve().parents[2] / "agentic"
    known = sorted(path.parent.name for path in folder.glob("*/rollout.py"))
    if method not in known:
        raise RecipeError(f"no method {method!r} in {folder}; there are: {', '.join(known)}")
    spec: MethodSpec = import_module(f"agentic.{method}.rollout").SPEC
    return spec


def find_hook(name: str) -> Any:
    """Return the function `name` of a backend that imports its hooks by path, from a method's file.

    Such a file ends with `__getattr__ = find_hook`. So `agentic.<method>.rollout.generate` is slime's hook, which reads
    the method from the recipe, and the file neither knows nor imports a backend.
    """
    hooks = None if name.startswith("_") else import_module("core.backends.slime.hooks")
    if hooks is None or name not in hooks.__all__:
        raise AttributeError(f"a method's file has no {name!r}, and it is no hook of a backend")
    return getattr(hooks, name)


def check_roles(method: Method, roles: Collection[str]) -> None:
    """Raise RecipeError if the method asks a role that is not among `roles`."""
    for role in method.needs:
        if role not in roles:
            raise RecipeError(
                f"roles.{role} is missing, and the method asks it; add http://HOST:PORT of a server, model:PATH, or "
                f"python:package.module.function, such as --set roles.{role}=http://127.0.0.1:30001"
            )
