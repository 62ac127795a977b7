from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentic.retool import rollout
from agentic.retool.rollout import SPEC, ReTool
from agentic.retool.world import WORLD
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.types import Sampling, Task, Trajectory
from tests.kit import script_policy

Play = Callable[..., Any]


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return WORLD.train_tokenizer()


@pytest.fixture
def build(tokenizer: Any, isolation: None) -> Callable[..., ReTool]:
    """Build the method as the preset `tiny` sets it up, with room for longer texts, and with these overrides."""

    def make(*overrides: str) -> ReTool:
        roomy = ("model.max_model_len=null", "retool.context_tokens=3000", "retool.max_tokens=400")
        patient = ("retool.sandbox.timeout_s=60", "retool.sandbox.keep_bytes=1000")  # the cores may be busy
        return rollout.ReTool(SPEC.load("tiny", [*roomy, *patient, *overrides]), tokenizer)

    return make


@pytest.fixture
def play(build: Callable[..., ReTool], tokenizer: Any) -> Play:
    """Run a rollout in which the policy writes these replies in order."""

    async def run(
        replies: Sequence[str], *overrides: str, answers: Sequence[str] = ("42",), method: ReTool | None = None
    ) -> tuple[Trajectory, ScriptedPolicy]:
        policy = script_policy(tokenizer, replies, last=False)
        method = method or build(*overrides)
        task = Task("t", "What is 6 blick 7?", tuple(answers))
        trajectory = await method.rollout(task, Roles({"policy": policy}), Sampling(seed=1))
        await method.close()
        return trajectory, policy

    return run
