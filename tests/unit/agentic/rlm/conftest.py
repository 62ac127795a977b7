from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from agentic.rlm.rollout import RLM, SPEC
from agentic.rlm.world import WORLD
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.types import Sampling, Task, Trajectory
from tests.kit import script_policy

Play = Callable[..., Any]
DOCUMENT = "The grass is green. " * 20 + "The lamp is: owl. " + "The sky is blue. " * 20
TASK = Task("t", "What is the lamp?", ("owl",), DOCUMENT)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return WORLD.train_tokenizer()


@pytest.fixture
def build(tokenizer: Any, isolation: None) -> Callable[..., RLM]:
    """Build the method as the preset `tiny` sets it up, with room for longer texts, and with these overrides."""

    def make(*overrides: str) -> RLM:
        roomy = ("model.max_model_len=null", "rlm.context_tokens=4000", "rlm.max_tokens=400", "rlm.max_programs=6")
        patient = ("rlm.sandbox.timeout_s=60", "rlm.subcall_context_tokens=600", "rlm.max_subcall_tokens=100")
        return RLM(SPEC.load("tiny", [*roomy, *patient, *overrides]), tokenizer)

    return make


@pytest.fixture
def play(build: Callable[..., RLM], tokenizer: Any) -> Play:
    """Run a rollout in which the policy writes these replies in order: a program where the text is no answer."""

    async def run(
        replies: Sequence[str], *overrides: str, task: Task = TASK, method: RLM | None = None
    ) -> tuple[Trajectory, ScriptedPolicy]:
        policy = script_policy(tokenizer, replies, last=False)
        method = method or build(*overrides)
        trajectory = await method.rollout(task, Roles({"policy": policy}), Sampling(seed=1))
        await method.close()
        return trajectory, policy

    return run
