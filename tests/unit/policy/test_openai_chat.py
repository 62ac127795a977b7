"""The OpenAI-compatible client against a service that does all that services do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from core.policy.base import PolicyError
from core.policy.openai_chat import CalledTool, ChatReply, OpenAIChat
from tests.kit import serve_here

HELLO = [{"role": "user", "content": "hello"}]
REPLY: dict[str, Any] = {
    "choices": [{"message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2},
}


class FakeService:
    """Answers with `answers` in their order, the last one for ever: a reply, a status, bytes, or seconds to wait."""

    def __init__(self) -> None:
        self.answers: list[Any] = [REPLY]
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.url = ""

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(await request.json())
        self.keys.append(request.headers.get("Authorization"))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, float):
            await asyncio.sleep(answer)
            answer = REPLY
        if isinstance(answer, int):
            return web.Response(status=answer, text="no")
        if answer is None:
            assert request.transport is not None
            request.transport.close()
        return web.Response(body=answer if isinstance(answer, bytes) else json.dumps(answer))


@pytest.fixture
async def service() -> AsyncIterator[FakeService]:
    service = FakeService()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", service.handle)
    async with serve_here(app) as url:
        service.url = f"{url}/v1"
        yield service


async def ask(service: FakeService, **options: Any) -> ChatReply:
    call = {name: options.pop(name) for name in ("tools", "temperature") if name in options}
    async with OpenAIChat(service.url, "m", **{"backoff_s": 0.001, **options}) as chat:
        return await chat.chat(HELLO, max_tokens=9, **call)


async def test_a_reply_and_what_was_asked(service: FakeService, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("secret\n")
    body = {"top_k": 1, "max_tokens": None, "max_completion_tokens": 5}
    reply = await ask(service, temperature=0.5, tools=[{"type": "function"}], api_key_file=tmp_path / "key", body=body)
    assert (reply.text, reply.calls, reply.prompt_tokens, reply.completion_tokens) == ("hi", (), 7, 2)
    assert service.requests == [
        {"model": "m", "messages": HELLO, "temperature": 0.5, "tools": [{"type": "function"}],
         "top_k": 1, "max_completion_tokens": 5}
    ]  # fmt: skip
    assert service.keys == ["Bearer secret"]


async def test_tool_calls(service: FakeService) -> None:
    function = {"name": "add", "arguments": '{"n": 1}'}
    message = {"content": None, "tool_calls": [{"id": "1", "type": "function", "function": function}]}
    service.answers = [{"choices": [{"message": message, "finish_reason": "tool_calls"}]}]
    reply = await ask(service)
    assert (reply.text, reply.calls, reply.prompt_tokens) == ("", (CalledTool("add", '{"n": 1}'),), 0)


@pytest.mark.parametrize(
    ("answer", "kind", "attempts"),
    [(500, "engine", 3), (429, "unavailable", 3), (None, "unavailable", 3), (b"{", "bad_reply", 3),
     (400, "bad_request", 1), (401, "bad_request", 1), (404, "bad_request", 1), (5.0, "timeout", 1)],
)  # fmt: skip
async def test_faults_have_names_and_retries_an_end(
    service: FakeService, answer: Any, kind: str, attempts: int
) -> None:
    service.answers = [answer]
    with pytest.raises(PolicyError) as caught:
        await ask(service, timeout_s=1.0 if kind == "timeout" else 60.0)
    assert caught.value.kind == kind
    assert len(service.requests) == attempts
