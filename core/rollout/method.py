"""Defines what a method is to the backends: it turns a task into a Trajectory with a reward."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from core.config import Recipe, RecipeError, import_function
from core.policy.base import Roles
from core.types import Group, Sampling, Task, Trajectory, Turn

AGENTIC = Path(__file__).resolve().parents[2] / "agentic"
Regrade = Callable[[Task, Group], Sequence[Trajectory]]
"""Maps (task, group) to the same trajectories in the same order, with rewards that compare them."""


def compare_nothing(recipe: Any) -> None:
    """Return None: rewards do not depend on the group. A plain function: worker processes import it by name."""


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
    make: Callable[[Any, Any], Method]
    """Makes the Method from (recipe, tokenizer). It is a plain function: worker processes import it by name."""
    needs_context: bool | None = False
    """Makes a task without context an error in the data. None says that a context is rightly left out."""
    keeps_messages: bool = False
    """Says that prompts show `Task.messages`. Otherwise a record with messages before its question is an error."""
    short_answers: bool | Callable[[Any], bool] = True
    """Says, maybe of a recipe, that a reply must equal an answer, so a record with a whole solution as its answer is an
    error; not where a judge or a function of the user reads it."""
    check_task: Callable[[Any, Task], tuple[str, str, str] | None] | None = None
    """Maps (recipe, task) to what is wrong with the task's record, as (field, problem, fix), or to None. Only a method
    that reads fields of its own from `metadata` has it."""
    regrade: Callable[[Any], Regrade | None] = compare_nothing
    """Maps a recipe to its Regrade, or to None. Evaluation keeps the rewards of the single rollouts."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Maps metrics that count what a rollout left out of its task to what an evaluation tells of it, as in `lost 3
    chunks ...`."""
    answer: str = "answer"
    """Names the field of a rollout's log that holds what a user's reward looks at."""

    def build(self, recipe: Any, tokenizer: Any) -> Method:
        """Make the Method, with the reward of the recipe's `reward` if it names one. Raises RecipeError."""
        from core.rollout.reward import RewardedMethod  # imported here: it needs this module

        method = self.make(recipe, tokenizer)
        if recipe.reward is None:
            return method
        return RewardedMethod(method, import_function("reward", recipe.reward), self.answer)

    def load(self, preset: str, overrides: Sequence[str] = ()) -> Any:
        """Load a recipe of this method. Raises RecipeError as core.config.load."""
        from core.config.load import load  # here, because slime imports methods, and gives a recipe itself

        return load(self.recipe, self.presets, preset, overrides, method=self.name)

    def reading_options(self, recipe: Any) -> dict[str, Any]:
        """Return what reading this method's data takes: options of core.data.tasks.read_tasks."""
        short = self.short_answers(recipe) if callable(self.short_answers) else self.short_answers
        return {
            "require_context": self.needs_context,
            "keep_messages": self.keeps_messages,
            "short_answers": short and recipe.reward is None,
            "check": partial(self.check_task, recipe) if self.check_task else None,
        }


class RolloutError(RuntimeError):
    """Says that a rollout failed for a known reason; `kind` is its name in the failure counts."""

    def __init__(self, kind: str, message: str):
        super().__init__(message)
        self.kind = kind


class PolicyFault(RolloutError):
    """Says that a rollout failed by the policy's own doing, such as `too_long` for a prompt that outgrew the context.

    If one of its `turns` is trained, it stays in its group with `reward`, and is trained.
    """

    reward = 0.0

    def __init__(self, kind: str, message: str, turns: Sequence[Turn]):
        super().__init__(kind, message)
        self.turns = tuple(turns)


def method_spec(method: str) -> MethodSpec:
    """Return the SPEC of a method. Raises RecipeError for an unknown method, or for a SPEC of another name."""
    module = import_module(f"{find_package(method)}.rollout")
    spec: MethodSpec = module.SPEC
    if module.__name__.split(".")[-2] != spec.name:
        raise RecipeError(f"{module.__file__}: SPEC has the name {spec.name!r}; write that of the folder")
    return spec


def find_package(method: str) -> str:
    """Return the package that holds a method: a name in agentic/, a folder's path, or a package that can be imported.

    A folder's package has the folder's name, and the folder that it lies in goes to `sys.path`: so processes that we
    spawn find the method, too. Other processes, such as those of a cluster, find it if they can import that name.

    Raises:
        RecipeError: there is no such method, or Python has another module of its name.
    """
    known = sorted(path.parent.name for path in AGENTIC.glob("*/rollout.py"))
    folder = Path(method).resolve()
    name = folder.name
    if method in known or (folder.parent == AGENTIC and name in known):
        return f"agentic.{name}"
    spec = find_spec(name) if name.isidentifier() else None
    places = [Path(place).resolve() for place in (spec and spec.submodule_search_locations) or ()]
    if method == name and any((place / "rollout.py").is_file() for place in places):
        return name
    if not (folder / "rollout.py").is_file():
        raise RecipeError(
            f"no method {method!r} in {AGENTIC}; there are: {', '.join(known)}. Name one of your own by its "
            "folder, such as ./my_method, or as a package that Python can import"
        )
    if not name.isidentifier() or (spec is not None and folder not in places):
        other = f"; {spec.origin or places[0]} has it" if spec else ""
        raise RecipeError(f"{folder}: Python cannot import it by the name {name!r}{other}. Rename the folder")
    if spec is None:
        sys.path.append(str(folder.parent))
    return name


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
                f"roles.{role} is missing, and the method asks it; add http://HOST:PORT of a server, model:PATH, "
                f"python:package.module.function, or trained, such as --set roles.{role}=http://127.0.0.1:30001"
            )
