"""A Strands model over a session, without HTTP, for Strands agents in this process.

    async def run(task: Task, endpoint: Endpoint) -> str:
        agent = Agent(model=SessionModel(endpoint.session), tools=tools)
        return str(await agent.invoke_async(task.question))

It needs the package `strands-agents`. Its rows are those that the same agent has over HTTP.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from strands.models import Model
from strands.types.exceptions import ContextWindowOverflowException

from core.gateway.anthropic_messages import stop_reason
from core.gateway.bodies import FORCED
from core.gateway.history import Answer
from core.gateway.messages import (
    AgentRequest,
    ContextFullError,
    WireCall,
    WireMessage,
    join_parts,
    refuse,
    show_failure,
)
from core.gateway.session import GatewaySession
from core.text.tool_calls import ToolSchema


class SessionModel(Model):
    """Asks a session. `model` says which role answers, as the name of a model does over HTTP.

    A full context is Strands' ContextWindowOverflowException, after which its agent trims or sums up.
    """

    def __init__(self, session: GatewaySession, model: str = "policy", max_tokens: int | None = None):
        self._session = session
        self._config: dict[str, Any] = {"model_id": model, "max_tokens": max_tokens}

    def update_config(self, **config: Any) -> None:
        """Replace `model_id` or `max_tokens`."""
        if unknown := config.keys() - self._config.keys():
            raise ValueError(f"{', '.join(sorted(unknown))}: only model_id and max_tokens can be set")
        self._config |= config

    def get_config(self) -> dict[str, Any]:
        """Return `model_id` and `max_tokens`."""
        return self._config

    def structured_output(self, *arguments: Any, **options: Any) -> Any:
        """Refuse: no grammar binds the policy. Give the agent a tool that takes the answer."""
        raise NotImplementedError("structured output is not implemented; give the agent a tool that takes the answer")

    async def stream(
        self,
        messages: Sequence[Mapping[str, Any]],
        tool_specs: Sequence[Mapping[str, Any]] | None = None,
        system_prompt: str | None = None,
        *,
        tool_choice: Mapping[str, Any] | None = None,
        **_: Any,
    ) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of one answer."""

        def read() -> AgentRequest:
            if tool_choice and "auto" not in tool_choice:
                raise refuse("tool_choice", f"{json.dumps(tool_choice)} {FORCED}; only auto")
            said = [WireMessage("system", system_prompt)] if system_prompt else []
            for i, message in enumerate(messages):
                said += _read_message(message, f"messages.{i}")
            tools = tuple(
                ToolSchema(spec["name"], spec["description"], spec["inputSchema"]["json"], bool(spec.get("strict")))
                for spec in tool_specs or ()
            )
            return AgentRequest(self._config["model_id"], tuple(said), tools, max_tokens=self._config["max_tokens"])

        try:
            answer = await self._session.ask(read)
        except ContextFullError as error:
            raise ContextWindowOverflowException(str(error)) from error
        try:
            for event in _write_events(answer):
                yield event
        except BaseException:  # the agent was stopped, and throws the answer away
            self._session.mark_lost(answer)
            raise


def _read_message(message: Mapping[str, Any], path: str) -> list[WireMessage]:
    """Read one message; the results of tools in a user's message become messages of their own."""
    parts: list[WireMessage] = []
    results: list[WireMessage] = []
    for block in message["content"]:
        if "text" in block:
            parts.append(WireMessage("assistant", block["text"]))
        elif "toolUse" in block:
            use = block["toolUse"]
            call = WireCall(use["toolUseId"], use["name"], json.dumps(use["input"], ensure_ascii=False))
            parts.append(WireMessage("assistant", "", calls=(call,)))
        elif "toolResult" in block:
            result = block["toolResult"]
            text = "\n".join(_read_result(part, path) for part in result["content"])
            text = show_failure(text) if result.get("status") == "error" else text
            results.append(WireMessage("tool", text, call_id=result["toolUseId"]))
        elif "reasoningText" in block.get("reasoningContent", ()):
            thought = block["reasoningContent"]["reasoningText"]
            parts.append(WireMessage("assistant", "", thought["text"], marks=(thought.get("signature", ""),)))
        else:
            raise refuse(path, f"a block of {', '.join(block)} is not implemented")
    if message["role"] == "assistant":
        return [join_parts(parts)]
    return [*results, WireMessage("user", "\n\n".join(part.text for part in parts))] if parts else results


def _read_result(part: Mapping[str, Any], path: str) -> str:
    if "json" in part:
        return json.dumps(part["json"], ensure_ascii=False)
    if "text" not in part:
        raise refuse(path, f"a result of {', '.join(part)} is not implemented; only text and json")
    return str(part["text"])


def _write_events(answer: Answer) -> Iterator[dict[str, Any]]:
    yield {"messageStart": {"role": "assistant"}}
    if answer.message.reasoning:
        signature = answer.wire_id("sig")
        for delta in ({"text": answer.message.reasoning}, {"signature": signature}):
            yield {"contentBlockDelta": {"delta": {"reasoningContent": delta}}}
        yield {"contentBlockStop": {}}
    if answer.message.text or not answer.message.calls:
        yield {"contentBlockStart": {"start": {}}}
        yield {"contentBlockDelta": {"delta": {"text": answer.message.text}}}
        yield {"contentBlockStop": {}}
    for call in answer.message.calls:
        yield {"contentBlockStart": {"start": {"toolUse": {"toolUseId": call.call_id, "name": call.name}}}}
        yield {"contentBlockDelta": {"delta": {"toolUse": {"input": call.arguments}}}}
        yield {"contentBlockStop": {}}
    yield {"messageStop": {"stopReason": stop_reason(answer)}}
    prompt, sampled = len(answer.prompt_ids), len(answer.completion.token_ids)
    usage = {"inputTokens": prompt, "outputTokens": sampled, "totalTokens": prompt + sampled}
    yield {"metadata": {"usage": usage, "metrics": {"latencyMs": 0}}}
