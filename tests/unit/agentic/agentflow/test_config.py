"""Presets, and what is said about a section that cannot work."""

from __future__ import annotations

import pytest

from agentic.agentflow.config import make_toolbox
from agentic.agentflow.rollout import SPEC, AgentFlow, build
from core.config import RecipeError
from core.rollout.method import check_roles

GENERATOR = "{path: core.tools.base_generator.BaseGenerator}"
ONLY_GENERATOR = f"agentflow.tools={{base_generator: {GENERATOR}}}"
"""Tools that can be made anywhere: python_coder wants isolation, and search a service."""


@pytest.mark.parametrize(
    ("preset", "needs"),
    [
        ("seed", ("executor", "verifier", "base_generator", "coder", "judge")),
        ("paper", ("fixed", "executor", "verifier", "base_generator", "coder", "judge")),
    ],
)
async def test_roles_that_the_user_must_give_are_asked_for_by_name(preset, needs, tokenizer):
    method = build(SPEC.load(preset, [ONLY_GENERATOR]), tokenizer)
    assert isinstance(method, AgentFlow)
    assert method.needs == needs
    check_roles(method, needs)
    with pytest.raises(RecipeError, match=rf"roles\.{needs[1]} is missing.*--set roles\.{needs[1]}="):
        check_roles(method, needs[:1])
    await method.close()


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        (
            "agentflow.planner.final={role: fixed, trained: true}",
            "planner.final has trained: true and role fixed, which is frozen",
        ),
        ("agentflow.planner.final={max_tokens: 5}", "agentflow.planner.final.role: missing"),
        ("agentflow.roles.executor={role: policy, tokenizer: x}", "leave `tokenizer` out"),
        ("agentflow.roles={executor: {role: a}}", "roles.verifier is missing"),
        ("agentflow.tools={}", "agentflow.tools"),
    ],
)
def test_a_section_that_cannot_work_is_refused(override, problem):
    with pytest.raises(RecipeError) as caught:
        SPEC.load("seed", [override])
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("overrides", "problem"),
    [
        (["agentflow.tools={x: {path: core.tools.nothing.X}}"], "agentflow.tools: tool 'core.tools.nothing.X'"),
        ([f"agentflow.tools.a={GENERATOR[:-1]}, options: {{rolle: b}}}}"], "rolle: Extra inputs"),
        ([f"agentflow.tools.a={GENERATOR[:-1]}, options: {{role: b}}}}"], "agentflow.roles.b is missing"),
        ([f"agentflow.tools.Base-Generator={GENERATOR}"], "two tools have the same name"),
    ],
)
def test_a_tool_that_cannot_be_made_is_refused(overrides, problem):
    with pytest.raises(RecipeError) as caught:
        make_toolbox(SPEC.load("seed", [ONLY_GENERATOR, *overrides]).agentflow)
    assert problem in str(caught.value)
