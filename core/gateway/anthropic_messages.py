"""The protocol of Anthropic's Messages, `POST /v1/messages` and `POST /v1/messages/count_tokens`.

A thinking block carries its node in the signature, which clients send back untouched.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from core.gateway.bodies import MAX_TOOL_BYTES, Body, read_schema, read_text, remember
from core.gateway.messages import AgentRequest, GatewayError, MessageRole, WireCall, WireMessage, refuse
from core.gateway.session import GatewaySession, Node
from core.text.tool_calls import ToolSchema

ERROR_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 410: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error",
}  # fmt: skip

_WITHOUT_EFFECT = ("metadata", "service_tier", "thinking", "context_management", "betas")


def read_request(value: Any, *, counting: bool = False) -> AgentRequest:
    """Read a request body; one that only counts tokens has no limit. Raises GatewayError as openai_chat."""
    body = Body(value)
    choice = Body(body.take("tool_choice", dict, {}), "tool_choice")
    choice.take_only("type", "auto")
    choice.close()
    output = Body(body.take("output_config", dict, {}), "output_config")
    output.ignore(("effort",))  # a `format` is refused, as `response_format` is elsewhere
    output.close()
    body.ignore(_WITHOUT_EFFECT)
    system = read_text(body.take("system", (str, list)), "system", ("text",))
    messages = [WireMessage("system", system)] if system else []
    for read in body.take_each("messages", _read_message_again):
        messages += read
    request = AgentRequest(
        model=body.need("model", str),
        messages=tuple(messages),
        tools=body.take_each("tools", _read_tool_again),
        temperature=body.take_number("temperature", 0, 1),
        top_p=body.take_number("top_p", 0, 1),
        top_k=body.take_count("top_k"),
        max_tokens=None if counting else _need_limit(body),
        stop=body.take_stops("stop_sequences"),
        stream=body.take("stream", bool, False),
    )
    body.close()
    return request


def _need_limit(body: Body) -> int:
    limit = body.take_count("max_tokens")
    if limit is None:
        raise refuse("max_tokens", "is missing")
    return limit


def _read_tool(tool: Body) -> ToolSchema:
    tool.take_only("type", "custom")
    schema = read_schema(tool.need("name", str), tool.take("description", str), tool.need("input_schema", dict))
    tool.ignore(("cache_control", "strict", "eager_input_streaming", "defer_loading", "input_examples"))
    tool.close()
    return schema


def _read_message(message: Body) -> list[WireMessage]:
    """Read one message; the results of tools in a user's message become messages of their own."""
    role, content = message.need("role", str), message.need("content", (str, list))
    message.close()
    if role not in ("user", "assistant", "system"):
        raise refuse(message.at("role"), f"{role!r} is neither user nor assistant")
    if isinstance(content, str):
        return [WireMessage(role, content)]
    blocks = [Body(block, f"{message.at('content')}.{place}") for place, block in enumerate(content)]
    return [_read_assistant(blocks)] if role == "assistant" else _read_user(blocks, role)


def _read_user(blocks: list[Body], role: MessageRole) -> list[WireMessage]:
    messages: list[WireMessage] = []
    texts: list[str] = []  # of blocks that follow each other
    for block in blocks:
        kind = block.need("type", str)
        if kind == "text":
            texts.append(block.take("text", str, ""))
            block.ignore(("citations",))
        elif kind == "tool_result":
            if texts:
                messages.append(WireMessage(role, "\n\n".join(texts)))
                texts = []
            text = read_text(block.take("content", (str, list)), block.at("content"), ("text",))
            messages.append(WireMessage("tool", text, call_id=block.need("tool_use_id", str)))
            block.take("is_error", bool)
        else:
            raise refuse(block.at("type"), f"{kind!r} is not implemented; only text and tool_result")
        block.ignore(("cache_control",))
        block.close()
    return [*messages, WireMessage(role, "\n\n".join(texts))] if texts else messages


def _read_assistant(blocks: list[Body]) -> WireMessage:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[WireCall] = []
    marks: list[str] = []
    for block in blocks:
        kind = block.need("type", str)
        if kind == "text":
            texts.append(block.take("text", str, ""))
            block.ignore(("citations",))
        elif kind == "thinking":
            thoughts.append(block.take("thinking", str, ""))
            marks.append(block.take("signature", str, ""))
        elif kind == "tool_use":
            arguments = json.dumps(block.take("input", dict, {}), ensure_ascii=False)
            calls.append(WireCall(block.need("id", str), block.need("name", str), arguments))
            block.ignore(("caller",))
        else:
            raise refuse(block.at("type"), f"{kind!r} is not implemented; only text, thinking and tool_use")
        block.ignore(("cache_control",))
        block.close()
    return WireMessage("assistant", "".join(texts), "".join(thoughts) or None, tuple(calls), marks=tuple(marks))


_read_tool_again, _read_message_again = remember(_read_tool, MAX_TOOL_BYTES), remember(_read_message)


def write_reply(session: GatewaySession, node: Node, request: AgentRequest, created: int) -> dict[str, Any]:
    """Return the body of an answer."""
    return {
        **_write_head(session, node, request),
        "content": _write_blocks(session, node),
        "stop_reason": stop_reason(node),
        "stop_sequence": node.stop_text,
        "usage": {**_write_usage(node), "output_tokens": len(node.completion.token_ids)},
    }


def write_events(session: GatewaySession, node: Node, request: AgentRequest, created: int) -> Iterator[str]:
    """Yield the server-sent events of an answer."""
    head = {**_write_head(session, node, request), "content": [], "stop_reason": None, "stop_sequence": None}
    yield _write_event("message_start", message={**head, "usage": {**_write_usage(node), "output_tokens": 0}})
    for index, block in enumerate(_write_blocks(session, node)):
        begun, deltas = _split_block(block)
        yield _write_event("content_block_start", index=index, content_block=begun)
        for delta in deltas:
            yield _write_event("content_block_delta", index=index, delta=delta)
        yield _write_event("content_block_stop", index=index)
    delta = {"stop_reason": stop_reason(node), "stop_sequence": node.stop_text}
    yield _write_event(
        "message_delta", delta=delta, usage={**_write_usage(node), "output_tokens": len(node.completion.token_ids)}
    )
    yield _write_event("message_stop")


def write_error(error: GatewayError) -> dict[str, Any]:
    """Return the body of an error."""
    kind = ERROR_TYPES.get(error.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def _write_event(kind: str, **fields: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields}, ensure_ascii=False)}\n\n"


def _write_head(session: GatewaySession, node: Node, request: AgentRequest) -> dict[str, Any]:
    return {
        "id": session.wire_id("msg", node.number),
        "type": "message",
        "role": "assistant",
        "model": request.model,
    }


def _write_blocks(session: GatewaySession, node: Node) -> list[dict[str, Any]]:
    message = node.message
    blocks: list[dict[str, Any]] = []
    if message.reasoning:
        signature = session.wire_id("sig", node.number)
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


def stop_reason(node: Node) -> str:
    """Return why an answer ended, in Anthropic's words."""
    if node.completion.finish_reason == "length":
        return "max_tokens"
    if node.stop_text is not None:
        return "stop_sequence"
    return "tool_use" if node.message.calls else "end_turn"


def _write_usage(node: Node) -> dict[str, Any]:
    # Anthropic counts the cached tokens apart from the others.
    cached = node.completion.cached_tokens
    return {
        "input_tokens": len(node.prompt_ids) - cached,
        "cache_read_input_tokens": cached,
        "cache_creation_input_tokens": 0,
    }
