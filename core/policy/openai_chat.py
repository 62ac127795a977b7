"""A chat model behind an OpenAI-compatible service (vLLM, SGLang, hosted): text in, text or tool calls out.

For frozen models only: what is trained goes through token ids (http_policy.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.http_client import HTTPClient
from core.policy.base import PolicyError

Message = Mapping[str, Any]
"""Holds what OpenAI's protocol holds: {role, content, tool_calls, tool_call_id}."""


@dataclass(frozen=True, slots=True)
class CalledTool:
    """Holds a tool call as the service sent it: `arguments` is text, which need not be JSON."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatReply:
    """Holds one reply."""

    text: str
    calls: tuple[CalledTool, ...] = ()
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cut: bool = False
    """Says whether the reply ended at the limit of tokens; in a thought that the server keeps, there is no text."""


class OpenAIChat(HTTPClient):
    """Calls `model` at `url` (with the version, such as http://HOST:PORT/v1); HTTPClient explains the other options.

    Faults that may pass (a lost connection, HTTP 408, 429, 5xx, an unreadable reply) are retried. `body` holds further
    fields of a request and overrules ours; a field that is None is left out.
    """

    error = PolicyError
    retried = ("engine", "unavailable", "bad_reply")

    def __init__(
        self,
        url: str,
        model: str,
        api_key_file: str | Path | None = None,
        *,
        body: Mapping[str, Any] | None = None,
        timeout_s: float = 120.0,
        max_retries: int = 2,
        backoff_s: float = 0.5,
    ):
        super().__init__(
            url, timeout_s=timeout_s, max_retries=max_retries, backoff_s=backoff_s, api_key_file=api_key_file
        )
        self.model = model
        self._body = dict(body or {})

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        max_tokens: int,
        temperature: float = 0.0,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatReply:
        """Return one reply to `messages`; `tools` are function schemas in OpenAI's form.

        Raises:
            PolicyError: no reply could be had.
        """
        payload: dict[str, Any] = {
            "model": self.model,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "tools": list(tools) or None,
        }
        payload = {name: value for name, value in {**payload, **self._body}.items() if value is not None}
        return await self.retry(lambda: self._ask(payload))

    async def _ask(self, payload: Mapping[str, Any]) -> ChatReply:
        return read_reply(await self.post("/chat/completions", payload))


def read_reply(body: bytes) -> ChatReply:
    """Read the first choice of a reply.

    Raises:
        PolicyError: `bad_reply`: it is not JSON, lacks a field, has one of another type, or has neither text nor call
            and met no limit.
    """
    try:
        reply = json.loads(body)
        json.dumps(reply, ensure_ascii=False).encode()  # half a surrogate pair is JSON and no text
        choice = reply["choices"][0]
        message, usage = choice["message"], reply.get("usage") or {}
        text = message.get("content") or ""
        functions = [call["function"] for call in message.get("tool_calls") or ()]
        calls = tuple(CalledTool(function["name"], function["arguments"]) for function in functions)
        prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
        cut = choice.get("finish_reason") == "length"
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, RecursionError) as error:
        raise PolicyError("bad_reply", f"no reply of OpenAI's form: {error!r} in {body[:200]!r}") from error
    texts = [text, *(part for call in calls for part in (call.name, call.arguments))]
    if not all(isinstance(part, str) for part in texts):
        raise PolicyError("bad_reply", f"a content, name or arguments that is no string, in {body[:200]!r}")
    if not all(type(count) is int and 0 <= count < 1e12 for count in (prompt, completion)):
        raise PolicyError("bad_reply", f"usage has counts that are no numbers >= 0, in {body[:200]!r}")
    if not text.strip() and not calls and not cut:  # a reply that its limit cuts in a thought is paid
        raise PolicyError("bad_reply", f"neither content nor tool calls, in {body[:200]!r}")
    return ChatReply(text, calls, prompt, completion, cut=cut)
