"""The tiny preset's experts over HTTP: whatever is sent gets an answer or an error that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer

from agentic.toolorchestra.scripted_experts import make_service

QUESTION = {"role": "user", "content": "What is 3 plus 4?"}


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        ({"model": "sage", "messages": [{"content": None}]}, 400, "messages.0.content"),
        ({"model": "nobody", "messages": [QUESTION]}, 404, "no model 'nobody'"),
        ({"model": "sage", "messages": [{"content": "hello"}]}, 400, "no question"),
        ({"model": "sage", "messages": [{"content": f"What is {'9' * 5000} times 3?"}]}, 400, "digits"),
    ],
)
async def test_a_broken_request_names_its_field(body: Any, status: int, says: str) -> None:
    async with TestClient(TestServer(make_service())) as client:
        reply = await client.post("/v1/chat/completions", json=body)
        assert (reply.status, says in (await reply.json())["error"]["message"]) == (status, True)
        reply = await client.post("/v1/chat/completions", json={"model": "sage", "messages": [QUESTION]})
        assert "boxed{7}" in (await reply.json())["choices"][0]["message"]["content"]
