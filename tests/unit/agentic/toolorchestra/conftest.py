"""ToolOrchestra against a scripted orchestrator, scripted experts and a retrieval service of a few lines."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.rollout import ToolOrchestra
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.types import Sampling, Task, Trajectory
from tests.kit import make_recipe, script_policy, train_tokenizer

CHAT_TEMPLATE = (
    "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}"
    "<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    return train_tokenizer(
        "user assistant tool search answer",
        400,
        template=CHAT_TEMPLATE,
        special=["<task>", "<wish>", "<seen>"],
        added=["<tool_call>", "</tool_call>", "<think>", "</think>"],
    )


def call(name: str, **arguments: Any) -> str:
    return f"<think>so</think><tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@dataclass
class Services:
    """OpenAI-compatible experts (the last part of a model's name says which script) and a retrieval service."""

    url: str = ""
    scripts: dict[str, Callable[[list[dict[str, Any]]], Any]] = field(default_factory=dict)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    passages: list[str] = field(default_factory=lambda: ["Lamp\nA lamp costs 42."])
    queries: list[str] = field(default_factory=list)
    retrieval_status: int = 200
    usage: dict[str, int] | None = field(default_factory=lambda: {"prompt_tokens": 1000, "completion_tokens": 100})

    async def chat(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.append((body["model"], body))
        answer = self.scripts[body["model"]](body["messages"])
        if isinstance(answer, int):
            return web.Response(status=answer)
        message = answer if isinstance(answer, dict) else {"content": answer}
        ended = "stop" if any(message.values()) else "length"
        return web.json_response({"choices": [{"message": message, "finish_reason": ended}], "usage": self.usage})

    async def retrieve(self, request: web.Request) -> web.Response:
        self.queries += (await request.json())["queries"]
        if self.retrieval_status != 200:
            return web.Response(status=self.retrieval_status)
        hits = [{"document": {"id": str(i), "contents": text}, "score": 1.0} for i, text in enumerate(self.passages)]
        return web.json_response({"result": [hits]})


@pytest.fixture
async def services() -> AsyncIterator[Services]:
    made = Services()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", made.chat)
    app.router.add_post("/retrieve", made.retrieve)
    async with TestServer(app) as server:
        made.url = f"http://127.0.0.1:{server.port}"
        yield made


def recipe(services: Services | None = None, **changes: Any) -> ToolOrchestraRecipe:
    """ModelPool `clever` and `cheap` behind the experts 1 and 2 of each kind."""
    url = services.url if services else "http://127.0.0.1:9"
    model = {"url": f"{url}/v1", "max_retries": 0}
    section: dict[str, Any] = {
        "max_turns": 5,
        "max_tokens": 400,
        "tools": {"search": ["search-1"], "call_expert": ["expert-1", "expert-2"], "answer": ["answer-1", "answer-2"]},
        "experts": ["expert-1", "expert-2"],
        "model_mapping": {
            "search-1": "cheap", "expert-1": "clever", "expert-2": "cheap", "answer-1": "clever", "answer-2": "cheap",
        },
        "models": {
            "clever": {**model, "price": {"input": 10, "output": 30}, "latency_s": 20},
            "cheap": {**model, "price": {"input": 1, "output": 2}, "latency_s": 2},
        },
        "search": {"url": f"{url}/retrieve", "max_retries": 0},
        "environment": {"path": "tests.small_env.SmallEnvironmentFactory"},
        "latency": "declared",
    }  # fmt: skip
    return make_recipe(
        ToolOrchestraRecipe,
        method="toolorchestra",
        roles={"frozen": "http://127.0.0.1:9"},
        toolorchestra={**section, **changes},
    )


@dataclass
class Story:
    """A rollout, and what the orchestrator was shown at each turn."""

    trajectory: Trajectory
    policy: ScriptedPolicy
    method: ToolOrchestra

    @property
    def prompts(self) -> list[str]:
        return [str(self.method.renderer.tokenizer.decode(call.prompt_ids)) for call in self.policy.calls]

    @property
    def metrics(self) -> Mapping[str, float]:
        return self.trajectory.metrics


Tell = Callable[..., Any]
QUESTION = Task("q", "What does a lamp cost?", ("42",))


@pytest.fixture
def tell(tokenizer: Any, services: Services) -> Tell:
    """Run one task with an orchestrator that writes `texts`, the last one for ever."""

    async def run(
        texts: Sequence[str | Exception],
        task: Task = QUESTION,
        roles: Mapping[str, ScriptedPolicy] | None = None,
        **changes: Any,
    ) -> Story:
        answers = [t if isinstance(t, Exception) else tokenizer.encode(t, add_special_tokens=False) for t in texts]
        policy = script_policy(tokenizer, answers)
        method = ToolOrchestra(recipe(services, **changes), tokenizer)
        try:
            made = await method.rollout(task, Roles({"policy": policy, **(roles or {})}), Sampling(seed=3))
        finally:
            await method.close()
        return Story(made, policy, method)

    return run
