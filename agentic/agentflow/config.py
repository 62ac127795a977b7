"""Defines AgentFlow's section of a recipe and the folder of its presets, and makes its toolbox."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError, model_validator

from agentic.agentflow.formats import Style
from agentic.agentflow.prompts import read_tools
from core.config import Recipe, RecipeError, Section
from core.tools.base import Tool, Toolbox, ToolError, make_tool
from core.types import POLICY

PRESETS = Path(__file__).parent / "presets"


class RoleSection(Section):
    """Says which role answers, the length of its completions, and whether its turns are trained."""

    role: str
    """Names `policy`, which samples as the recipe's rollout says, or one of the recipe's `roles`: it samples so, too,
    if its turns are trained, and else it is greedy."""
    max_tokens: PositiveInt = 2048
    """Limits the tokens of one completion."""
    trained: bool = False
    frequency_penalty: NonNegativeFloat = 0.0
    """Lowers the logits of tokens that a completion has already. Only evaluations behind SGLang can have it."""
    tokenizer: str | None = None
    """Names a folder or hub id, for a role whose vocabulary is not the policy's."""

    @model_validator(mode="after")
    def _policy_has_its_own_tokenizer(self) -> RoleSection:
        if self.role == POLICY and self.tokenizer is not None:
            raise ValueError("role policy has the policy's tokenizer; leave `tokenizer` out")
        return self


class PlannerSection(Section):
    plan: RoleSection | None
    """Describes the role that analyses the question first; null leaves the analysis out."""
    next_step: RoleSection
    final: RoleSection


class ToolSection(Section):
    path: str
    """Names a core.tools.base.Tool as `package.module.Class`."""
    options: Mapping[str, Any] = {}


class AgentFlowSection(Section):
    format: Style = "official"
    planner: PlannerSection
    roles: Mapping[str, RoleSection]
    """Describes the other roles: `executor` writes tool commands, `verifier` says when to stop, and tools may ask
    further roles. A `judge`, if there is one, decides about answers that no rule decides."""
    tools: Mapping[str, ToolSection] = Field(min_length=1)
    """Maps the name that the planner uses to a tool."""
    max_steps: PositiveInt = 5
    max_total_tokens: PositiveInt = 40960
    """Limits the prompt and completion tokens of a rollout's calls. The final answer comes on top of it."""
    max_result_tokens: PositiveInt = 1024
    """Limits a result, command or sub-goal in the memory; a longer one loses its middle."""
    call_timeout_s: PositiveFloat = 600.0
    """Limits the seconds of one call; a longer one fails the rollout with `call_timeout`."""
    reward: Literal["math", "boxed", "judge"] = "math"
    """Chooses the reward. `math` grades by rules, then by the judge, if there is one (core/rewards/math_grader.py).
    `boxed` does without the judge. `judge` asks the judge about the end of the final answer, boxed or not."""

    @model_validator(mode="after")
    def _has_released_tools(self) -> AgentFlowSection:
        unknown = [] if self.format != "released" else [name for name in self.tools if name not in read_tools()]
        if unknown:
            raise ValueError(f"format: released knows the tools {', '.join(read_tools())}, and not {unknown[0]}")
        return self

    @model_validator(mode="after")
    def _has_every_role(self) -> AgentFlowSection:
        for role in ("executor", "verifier", *(["judge"] if self.reward == "judge" else [])):
            if role not in self.roles:
                raise ValueError(f"roles.{role} is missing; add it with a role: policy, or a name under `roles`")
        return self

    def every_role(self) -> Iterator[tuple[str, RoleSection]]:
        """Yield all roles with their full names; those of the planner begin with `planner.`."""
        for name in PlannerSection.model_fields:
            section = getattr(self.planner, name)
            if section is not None:
                yield f"planner.{name}", section
        yield from self.roles.items()


class AgentFlowRecipe(Recipe):
    agentflow: AgentFlowSection

    @model_validator(mode="after")
    def _only_trained_policies_learn(self) -> AgentFlowRecipe:
        for name, section in self.agentflow.every_role():
            if section.trained and section.role not in (POLICY, *self.trained_roles):
                raise ValueError(
                    f"agentflow: {name} has trained: true and role {section.role}, which is frozen; name policy, or "
                    f"set roles.{section.role}=trained"
                )
        return self


def make_toolbox(config: AgentFlowSection) -> Toolbox:
    """Make the section's tools.

    Raises:
        RecipeError: a tool cannot be made, it asks a role that the section lacks, or the format cannot write its
            arguments.
    """
    try:
        toolbox = Toolbox([make_tool(tool.path, tool.options, name=name) for name, tool in config.tools.items()])
    except ToolError as error:
        raise RecipeError(f"agentflow.tools: {error}") from error
    for tool in toolbox:
        if config.format in ("fences", "compact") and (faults := _find_misfits(tool)):
            raise RecipeError(
                f"agentflow.format: {config.format} gives a tool a `query` and nothing else; {tool.name}: "
                f"{', '.join(faults)}; set agentflow.format=official"
            )
        for role in tool.required_roles:
            if role not in config.roles:
                raise RecipeError(
                    f"agentflow.roles.{role} is missing, and the tool {tool.name} asks it; add it with a role: "
                    "policy, or a name under the recipe's `roles`"
                )
    return toolbox


def _find_misfits(tool: Tool) -> list[str]:
    """Return which arguments a call with a `query` alone misses, or has too many."""
    try:
        tool.arguments.model_validate({"query": ""})
    except ValidationError as error:
        return [f"{e['loc'][0]}: {e['msg']}" for e in error.errors() if e["type"] in ("missing", "extra_forbidden")]
    return []
