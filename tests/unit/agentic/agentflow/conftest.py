"""AgentFlow against scripted roles: what each is asked, and what becomes of its answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from transformers import Qwen2Tokenizer

from agentic.agentflow.config import AgentFlowSection
from agentic.agentflow.rollout import AgentFlow
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.text.tokenizer import encode_text
from core.tools.base import Query, Tool, ToolContext, ToolResult
from core.tools.registry import Toolbox
from core.types import Sampling, Task, Trajectory

CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Answer = str | Sequence[int] | Exception


class Echo(Tool):
    """Gives back what it is asked, or what the role `helper` makes of it."""

    name: str = "echo"
    description: str = "Repeats the query."
    limits: str = "Knows nothing."
    best_practice: str = "Keep it short."
    helper: str | None = None

    async def call(self, arguments: Query, context: ToolContext) -> ToolResult:
        text = await context.ask(self.helper, arguments.query) if self.helper else arguments.query
        return ToolResult("ok", text)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    base = Qwen2Tokenizer(
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        extra_special_tokens=["<|im_start|>", "<memory>"],
        chat_template=CHAT_TEMPLATE,
    )
    return base.train_new_from_iterator(["user assistant echo question step"], vocab_size=300, show_progress=False)


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
            "plan": {"engine": "policy", "trained": True, "max_tokens": 500},
            "next_step": {"engine": "policy", "trained": True, "max_tokens": 600},
            "final": {"engine": "policy", "max_tokens": 700},
        },
        "roles": {"executor": {"engine": "executor"}, "verifier": {"engine": "verifier"}},
        "tools": {"echo": {"path": "unused"}},
        "reward": "boxed",
    }
    return AgentFlowSection.model_validate({**values, **changes})


NEXT = "Justification: it repeats.\nContext: none\nSub-Goal: repeat {0}\nTool Name: echo"
COMMAND = '```python\nexecution = tool.execute(query="{0}")\n```'


@pytest.fixture
def tell(tokenizer: Any) -> Tell:
    """Run one task. Every engine answers with its texts (or ids) in order, the last one for ever."""

    async def run(
        scripts: Mapping[str, Sequence[Answer]],
        *,
        task: Task | None = None,
        sampling: Sampling | None = None,
        method: AgentFlow | None = None,
        tools: Sequence[Tool] | None = None,
        **changes: Any,
    ) -> Story:
        method = method or AgentFlow(section(**changes), Toolbox(tools or [Echo()]), tokenizer)

        def engine(answers: Sequence[Answer]) -> ScriptedPolicy:
            left = list(answers)

            def respond(prompt: tuple[int, ...], sampling: Sampling) -> Sequence[int]:
                answer = left.pop(0) if len(left) > 1 else left[0]
                if isinstance(answer, Exception):
                    raise answer
                ids = encode_text(tokenizer, answer) if isinstance(answer, str) else tuple(answer)
                return (*ids, tokenizer.eos_token_id)

            return ScriptedPolicy(respond, logprob=-0.5)

        engines = {name: engine(answers) for name, answers in scripts.items()}
        task = task or Task("t", "Which question?", ("acorn",))
        sampling = sampling or Sampling(temperature=0.7, top_p=0.9, seed=11)
        return Story(method, engines, await method.rollout(task, Roles(engines), sampling))

    return run
