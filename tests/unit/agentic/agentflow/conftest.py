"""AgentFlow against scripted roles: what each is asked, and what becomes of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from agentic.agentflow.config import AgentFlowSection
from agentic.agentflow.rollout import AgentFlow
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.tools.base import Query, Tool, Toolbox, ToolContext, ToolResult
from core.types import Sampling, Task, Trajectory
from tests.kit import script_policy, train_tokenizer

Answer = str | Sequence[int] | Exception


class Echo(Tool):
    """Gives back what it is asked."""

    name: str = "echo"
    description: str = "Repeats the query."
    limits: str = "Knows nothing."
    best_practice: str = "Keep it short."

    async def call(self, arguments: Query, context: ToolContext) -> ToolResult:
        return ToolResult("ok", arguments.query)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return train_tokenizer("user assistant echo question step", 300, special=["<memory>"])


@dataclass
class Story:
    """A rollout and the calls that each engine got."""

    method: AgentFlow
    engines: Mapping[str, ScriptedPolicy]
    trajectory: Trajectory

    def prompts(self, engine: str) -> list[str]:
        return [str(self.method.tokenizer.decode(call.prompt_ids)) for call in self.engines[engine].calls]

    def sampling(self, engine: str) -> list[Sampling]:
        return [call.sampling for call in self.engines[engine].calls]

    @property
    def steps(self) -> list[dict[str, Any]]:
        return list(self.trajectory.log["steps"])


Tell = Callable[..., Any]


def section(**changes: Any) -> AgentFlowSection:
    """A section whose planner is the policy and whose other roles have an engine of their own name."""
    values: dict[str, Any] = {
        "planner": {
            "plan": {"role": "policy", "trained": True, "max_tokens": 500},
            "next_step": {"role": "policy", "trained": True, "max_tokens": 600},
            "final": {"role": "policy", "max_tokens": 700},
        },
        "roles": {"executor": {"role": "executor"}, "verifier": {"role": "verifier"}},
        "tools": {"echo": {"path": "unused"}},
        "reward": "boxed",
    }
    return AgentFlowSection.model_validate({**values, **changes})


NEXT = "Justification: it repeats.\nContext: none\nSub-Goal: repeat {0}\nTool Name: echo"
COMMAND = '```python\nexecution = tool.execute(query="{0}")\n```'


@pytest.fixture
def tell(tokenizer: Any) -> Tell:
    """Run one task. Engines answer with their texts (or ids) in order, the last one for ever; `others` are as given."""

    async def run(
        scripts: Mapping[str, Sequence[Answer]],
        *,
        task: Task | None = None,
        sampling: Sampling | None = None,
        method: AgentFlow | None = None,
        tools: Sequence[Tool] | None = None,
        others: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> Story:
        method = method or AgentFlow(section(**changes), Toolbox(tools or [Echo()]), tokenizer)

        engines = {name: script_policy(tokenizer, answers) for name, answers in scripts.items()} | dict(others or {})
        task = task or Task("t", "Which question?", ("acorn",))
        sampling = sampling or Sampling(temperature=0.7, top_p=0.9, seed=11)
        return Story(method, engines, await method.rollout(task, Roles(engines), sampling))

    return run
