"""AgentFlow's own section of a recipe, and where its presets are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from agentic.agentflow.formats import Style
from core.config import Recipe, RecipeError, Section, WarmStartSection, load
from core.tools.base import ToolError
from core.tools.registry import Toolbox, make_tool

PRESETS = Path(__file__).parent / "presets"
POLICY = "policy"

Probability = Annotated[float, Field(ge=0, le=1)]


class RoleSection(Section):
    """Who speaks for a role, how long, and whether its turns are trained."""

    engine: str
    """`policy`, sampled as the recipe's rollout says; or a name under the recipe's `roles`, frozen and greedy."""
    max_tokens: PositiveInt = 2048
    """Of one completion."""
    trained: bool = False
    tokenizer: str | None = None
    """Folder or hub id; only where the engine has another vocabulary than the policy."""

    @model_validator(mode="after")
    def _only_the_policy_learns(self) -> RoleSection:
        if self.engine == POLICY and self.tokenizer is not None:
            raise ValueError("engine policy has the policy's tokenizer; leave `tokenizer` out")
        if self.trained and self.engine != POLICY:
            raise ValueError(f"trained: true needs engine: policy; {self.engine} is frozen")
        return self


class PlannerSection(Section):
    plan: RoleSection | None
    """The analysis of the question; null leaves it out."""
    next_step: RoleSection
    final: RoleSection


class ToolSection(Section):
    path: str
    """`package.module.Class`, a core.tools.base.Tool."""
    options: Mapping[str, Any] = {}


class AgentFlowSection(Section):
    format: Style = "official"
    planner: PlannerSection
    roles: Mapping[str, RoleSection]
    """The other roles: `executor` writes tool commands, `verifier` says when to stop, tools ask further ones. With a
    `judge` answers that no rule decides are put to it."""
    tools: Mapping[str, ToolSection] = Field(min_length=1)
    """By the names that the planner knows them by."""
    max_steps: PositiveInt = 5
    max_total_tokens: PositiveInt = 40960
    """Prompt and completion tokens of all calls of one rollout; then the final answer is asked for, outside of it."""
    max_result_tokens: PositiveInt = 1024
    """Of a tool's result, and of a command, in the memory; the middle of a longer one is left out."""
    call_timeout_s: PositiveFloat = 600.0
    """A call that takes longer fails the rollout with `call_timeout`."""
    reward: Literal["math", "boxed"] = "math"
    """`math`: integer rule, math-verify, judge (core/rewards/math_grader.py). `boxed`: equality of the boxed text alone."""

    @model_validator(mode="after")
    def _has_every_role(self) -> AgentFlowSection:
        for role in ("executor", "verifier"):
            if role not in self.roles:
                raise ValueError(f"roles.{role} is missing; add it with an engine: policy, or a name under `roles`")
        return self

    def every_role(self) -> Iterator[tuple[str, RoleSection]]:
        """All roles with their full names, the planner's as `planner.plan`, `planner.next_step`, `planner.final`."""
        for name in PlannerSection.model_fields:
            section = getattr(self.planner, name)
            if section is not None:
                yield f"planner.{name}", section
        yield from self.roles.items()


class DrillsAndDemonstrations(WarmStartSection):
    copy_steps: NonNegativeInt = 100
    """Steps on copying drills, which come first."""
    wrong_tool: Probability = 0.3
    skip: Probability = 0.4
    malformed: Probability = 0.05
    """How often the demonstrations name the wrong tool, skip a step, or name no tool (demonstrations.py)."""

    @property
    def total_steps(self) -> int:
        return self.copy_steps + self.steps


class AgentFlowRecipe(Recipe):
    agentflow: AgentFlowSection
    warm_start: DrillsAndDemonstrations | None = None


def make_toolbox(config: AgentFlowSection) -> Toolbox:
    """The section's tools.

    Raises:
        RecipeError: a tool that cannot be made, or that asks a role which the section lacks.
    """
    try:
        toolbox = Toolbox([make_tool(tool.path, {**tool.options, "name": name}) for name, tool in config.tools.items()])
    except ToolError as error:
        raise RecipeError(f"agentflow.tools: {error}") from error
    for tool in toolbox:
        for role in tool.required_roles:
            if role not in config.roles:
                raise RecipeError(
                    f"agentflow.roles.{role} is missing, and the tool {tool.name} asks it; add it with an engine: "
                    "policy, or a name under the recipe's `roles`"
                )
    return toolbox


def load_recipe(preset: str, overrides: Sequence[str] = ()) -> AgentFlowRecipe:
    return load(AgentFlowRecipe, PRESETS, preset, overrides)
