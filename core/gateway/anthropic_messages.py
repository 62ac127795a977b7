"""The protocol of Anthropic's Messages, `POST /v1/messages` and `POST /v1/messages/count_tokens`.

A thinking block carries its answer in the signature, which clients send back untouched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from core.gateway.bodies import FORCED, MAX_TOOL_BYTES, Body, read_schema, read_text, remember
from core.gateway.history import Answer
from core.gateway.messages import (
    AgentRequest,
    ContextFullError,
    GatewayError,
    MessageRole,
    WireCall,
    WireMessage,
    join_parts,
    refuse,
    refuse_part,
    show_failure,
    write_event,
)
from core.text.tool_calls import ToolSchema

ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 410: "not_found_error",
    413: "request_too_large",
}  # fmt: skip

LIMIT_STATUS = 400
"""Refuses a client that has had all its turns. Claude Code asks once more after a 404."""

PING = 'event: ping\ndata: {"type": "ping"}\n\n'
"""Keeps a stream alive until the answer is there."""

_BLOCKS = {"assistant": ("text", "thinking", "tool_use"), "user": ("text", "tool_result")}
_WITHOUT_EFFECT = (
    "metadata", "service_tier", "thinking", "context_management", "betas", "cache_control", "inference_geo", "speed",
    "user_profile_id", "workspace_id", "diagnostics", "fallbacks",
)  # fmt: skip


def read_request(value: Any, *, counting: bool = False) -> AgentRequest:
    """Read a request body; one that only counts tokens has no limit. Raises GatewayError as openai_chat."""
    body = Body(value)
    tools = body.take_each("tools", _read_tool_again)
    choice = body.take_body("tool_choice")
    hides_tools = choice.take_only("type", "auto", "none", why=FORCED) == "none"
    single_call = choice.take("disable_parallel_tool_use", bool, False)
    choice.close()
    body.take_body("output_config").close("effort")  # a `format` is refused: Claude Code wants one for titles
    system = read_text(body.take("system", (str, list)), "system", ("text",))
    messages = [WireMessage("system", system)] if system else []
    for read in body.take_each("messages", _read_message_again):
        messages += read
    request = AgentRequest(
        model=body.need("model", str),
        messages=tuple(messages),
        tools=() if hides_tools else tools,
        temperature=body.take_number("temperature", 0, 1),
        top_p=body.take_number("top_p", 0, 1),
        top_k=body.take_count("top_k"),
        max_tokens=None if counting else body.take_count("max_tokens", needed=True),
        stop=body.take_stops("stop_sequences"),
        stream=body.take("stream", bool, False),
        hides_tools=hides_tools and bool(tools),
        single_call=single_call,
    )
    body.close(*_WITHOUT_EFFECT)
    return request


def _read_tool(tool: Body) -> ToolSchema:
    tool.take_only("type", "custom")
    schema = read_schema(
        tool.need("name", str),
        tool.take("description", str),
        tool.need("input_schema", dict),
        strict=tool.take("strict", bool, False),
    )
    tool.close("cache_control", "eager_input_streaming", "defer_loading", "input_examples")
    return schema


def _read_message(message: Body) -> list[WireMessage]:
    """Read one message; the results of tools in a user's message become messages of their own."""
    role, content = message.need("role", str), message.need("content", (str, list))
    message.close()
    if role not in ("user", "assistant", "system"):
        raise refuse(message.at("role"), f"{role!r} is none of user, assistant, system")
    if isinstance(content, str):
        return [WireMessage(role, content)]
    path = message.at("content")
    parts = [_read_block(Body(block, f"{path}.{i}"), role) for i, block in enumerate(content)]
    if role == "assistant":
        return [join_parts(parts)]
    messages: list[WireMessage] = []
    for kind, adjacent in groupby(parts, lambda part: part.role):
        group = list(adjacent)
        messages += group if kind == "tool" else [WireMessage(role, "\n\n".join(part.text for part in group))]
    return messages


def _read_block(block: Body, role: MessageRole) -> WireMessage:
    """Read a block as a message or a part of an answer."""
    kind, kinds = block.need("type", str), _BLOCKS["assistant" if role == "assistant" else "user"]
    if kind not in kinds:
        raise refuse_part(block.at("type"), kind, kinds)
    without_effect = ["cache_control"]
    if kind == "text":
        read = WireMessage(role, block.take("text", str, ""))
        without_effect += ["citations"]
    elif kind == "tool_result":
        text = read_text(block.take("content", (str, list)), block.at("content"), ("text",))
        failed = block.take("is_error", bool, False)
        read = WireMessage("tool", show_failure(text) if failed else text, call_id=block.need("tool_use_id", str))
    elif kind == "thinking":
        read = WireMessage(role, "", block.take("thinking", str, ""), marks=(block.take("signature", str, ""),))
    else:
        arguments = json.dumps(block.take("input", dict, {}), ensure_ascii=False)
        read = WireMessage(role, "", calls=(WireCall(block.need("id", str), block.need("name", str), arguments),))
        without_effect += ["caller"]
    block.close(*without_effect)
    return read


_read_tool_again, _read_message_again = remember(_read_tool, MAX_TOOL_BYTES), remember(_read_message)


def write_reply(answers: Sequence[Answer], request: AgentRequest, created: int) -> dict[str, Any]:
    """Return the body of an answer."""
    (answer,) = answers
    return {
        **_write_head(answer, request),
        "content": _write_blocks(answer),
        "stop_reason": stop_reason(answer),
        "stop_sequence": answer.stop_text,
        "usage": _write_usage(answer, len(answer.completion.token_ids)),
    }


def write_events(answers: Sequence[Answer], request: AgentRequest, created: int) -> Iterator[str]:
    """Yield the server-sent events of an answer."""
    (answer,) = answers
    head = {**_write_head(answer, request), "content": [], "stop_reason": None, "stop_sequence": None}
    yield write_event("message_start", message={**head, "usage": _write_usage(answer, 0)})
    for index, block in enumerate(_write_blocks(answer)):
        begun, deltas = _split_block(block)
        yield write_event("content_block_start", index=index, content_block=begun)
        for delta in deltas:
            yield write_event("content_block_delta", index=index, delta=delta)
        yield write_event("content_block_stop", index=index)
    delta = {"stop_reason": stop_reason(answer), "stop_sequence": answer.stop_text}
    yield write_event("message_delta", delta=delta, usage=_write_usage(answer, len(answer.completion.token_ids)))
    yield write_event("message_stop")


def write_error(error: GatewayError) -> dict[str, Any]:
    """Return the body of an error."""
    kind = ERROR_TYPES.get(error.status, "api_error")
    message = f"prompt is too long: {error.count}" if isinstance(error, ContextFullError) else str(error)
    return {"type": "error", "error": {"type": kind, "message": message}}


def write_error_event(error: GatewayError) -> str:
    """Return the event of an error in a stream that has begun."""
    return write_event("error", error=write_error(error)["error"])


def _write_head(answer: Answer, request: AgentRequest) -> dict[str, Any]:
    return {"id": answer.wire_id("msg"), "type": "message", "role": "assistant", "model": request.model}


def _write_blocks(answer: Answer) -> list[dict[str, Any]]:
    message = answer.message
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        signature = answer.wire_id("sig")
        blocks.append({"type": "thinking", "thinking": message.reasoning, "signature": signature})
    if message.text or not message.calls:
        blocks.append({"type": "text", "text": message.text})
    for call in message.calls:
        blocks.append({"type": "tool_use", "id": call.call_id, "name": call.name, "input": json.loads(call.arguments)})
    return blocks


def _split_block(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Split a block into its empty start and the deltas that fill it."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        deltas = [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
        return {**block, "thinking": "", "signature": ""}, deltas
    filled = json.dumps(block["input"], ensure_ascii=False)
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": filled}]


def stop_reason(answer: Answer) -> str:
    """Return why an answer ended, in Anthropic's words."""
    if answer.completion.finish_reason == "length":
        return "max_tokens"
    if answer.stop_text is not None:
        return "stop_sequence"
    return "tool_use" if answer.message.calls else "end_turn"


def _write_usage(answer: Answer, sent: int) -> dict[str, Any]:
    """Return the tokens of an answer, of which so many were sent."""
    # Anthropic counts the cached tokens apart from the others.
    cached = answer.completion.cached_tokens or 0
    return {
        "input_tokens": len(answer.prompt_ids) - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": sent,
    }
