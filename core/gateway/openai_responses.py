"""The protocol of OpenAI's Responses, `POST /v1/responses`.

A request's items that belong to one answer (thoughts, text, calls) become one message again. The session keeps every
answer until it is finished, so `previous_response_id` works whatever `store` says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

from core.gateway.bodies import MAX_TOOL_BYTES, Body, read_schema, read_text, remember
from core.gateway.messages import AgentRequest, WireCall, WireMessage, refuse
from core.gateway.session import GatewaySession, Node
from core.text.tool_calls import ToolSchema

_WITHOUT_EFFECT = (
    "store", "metadata", "user", "include", "reasoning", "service_tier", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "client_metadata",
)  # fmt: skip
_TEXTS = ("input_text", "output_text", "text")


def read_request(value: Any) -> AgentRequest:
    """Read a request body. Raises GatewayError as openai_chat."""
    body = Body(value)
    body.take_only("tool_choice", "auto")
    tools = tuple(chain.from_iterable(body.take_each("tools", _read_tool_again)))
    body.take_only("parallel_tool_calls", True, *([] if tools else [False]))
    body.take_only("truncation", "disabled", "auto")
    body.take_only("background", False)
    text = Body(body.take("text", dict, {}), "text")
    text.take_only("format", {"type": "text"})
    text.ignore(("verbosity",))
    text.close()
    body.ignore(_WITHOUT_EFFECT)
    messages: list[WireMessage] = []
    given = body.need("input", (str, list))
    if isinstance(given, str):
        messages.append(WireMessage("user", given))
    else:
        messages += _join_answers(Body({"input": given}).take_each("input", _read_item_again))
    stream_options = Body(body.take("stream_options", dict, {}), "stream_options")
    stream_options.ignore(("include_obfuscation",))
    stream_options.close()
    request = AgentRequest(
        model=body.need("model", str),
        messages=tuple(messages),
        tools=tools,
        temperature=body.take_number("temperature", 0, 2),
        top_p=body.take_number("top_p", 0, 1),
        max_tokens=body.take_count("max_output_tokens"),
        stream=body.take("stream", bool, False),
        continues=body.take("previous_response_id", str),
        instructions=body.take("instructions", str),
    )
    body.close()
    return request


def _read_tool(tool: Body, about: str = "", prefix: str = "") -> tuple[ToolSchema, ...]:
    """Read one tool, or those of a namespace, which the policy sees as NAMESPACE.NAME and calls so."""
    kind, name = tool.take("type", str, "function"), tool.need("name", str)
    if "." in name:
        raise refuse(tool.at("name"), f"{name!r} has a dot, which only parts a namespace from a name")
    description = " ".join(filter(None, (about, tool.take("description", str))))
    if kind == "namespace" and not prefix:
        inner = tool.take_bodies("tools")
        schemas = tuple(schema for each in inner for schema in _read_tool(each, description, f"{name}."))
    elif kind == "function":
        schemas = (read_schema(prefix + name, description, tool.take("parameters", dict)),)
    else:
        raise refuse(tool.at("type"), f"{kind!r} is not implemented; only function and namespace")
    tool.ignore(("strict",))
    tool.close()
    return schemas


_read_tool_again = remember(_read_tool, MAX_TOOL_BYTES)


def _read_item(item: Body) -> tuple[WireMessage, frozenset[str]]:
    """Read one item as a message or a part of an answer; return it, and the numbers of the answer that its ids name."""
    kind = item.take("type", str, "message")
    role = item.take("role", str, "user") if kind == "message" else ""
    if kind == "function_call_output":
        output = read_text(item.need("output", (str, list)), item.at("output"), _TEXTS)
        read = WireMessage("tool", output, call_id=item.need("call_id", str))
    elif kind == "message" and role != "assistant":
        if role not in ("user", "system", "developer"):
            raise refuse(item.at("role"), f"{role!r} is none of user, system, developer, assistant")
        content = read_text(item.need("content", (str, list)), item.at("content"), _TEXTS)
        read = WireMessage("user" if role == "user" else "system", content)
    else:
        read = _read_answer_item(item, kind)
    item.ignore(("id", "status"))
    item.close()
    ids = (*(call.call_id for call in read.calls), *read.marks)
    return read, frozenset(each.split("_")[1] for each in ids if "_" in each)


_read_item_again = remember(_read_item)


def _join_answers(items: Sequence[tuple[WireMessage, frozenset[str]]]) -> list[WireMessage]:
    """Make messages of items; thoughts, text and calls that follow each other are one answer.

    Some clients send a call's output before the next call of the same answer. Ids of one answer end in the same number,
    so such a call joins its answer, and the output stays behind it.
    """
    # An answer is the list of its parts until all items are read.
    messages: list[WireMessage | list[WireMessage]] = []
    answer: list[WireMessage] | None = None  # the last one, while it may still grow
    first_numbers: frozenset[str] = frozenset()  # those that its first part names
    for part, numbers in items:
        if part.role != "assistant":
            messages.append(part)
            answer = answer if part.role == "tool" else None
            continue
        adjacent = answer is not None and messages[-1] is answer
        belongs = bool(numbers & first_numbers) if numbers and first_numbers else adjacent
        if answer is None or not belongs:
            answer, first_numbers = [], numbers
            messages.append(answer)
        answer.append(part)
    return [_join(message) if isinstance(message, list) else message for message in messages]


def _read_answer_item(item: Body, kind: str) -> WireMessage:
    mark = item.take("id", str, "")
    if kind == "message":
        text = read_text(item.need("content", (str, list)), item.at("content"), _TEXTS)
        read = WireMessage("assistant", text, marks=(mark,))
    elif kind == "function_call":
        name = ".".join(filter(None, (item.take("namespace", str), item.need("name", str))))
        call = WireCall(item.need("call_id", str), name, item.take("arguments", str, ""))
        read = WireMessage("assistant", "", calls=(call,), marks=(mark,))
    elif kind == "reasoning":
        thoughts = read_text(item.take("content", list), item.at("content"), ("reasoning_text", "text"))
        summary = read_text(item.take("summary", list), item.at("summary"), ("summary_text",))
        sealed = item.take("encrypted_content", str, "")
        read = WireMessage("assistant", "", (thoughts or summary) or None, marks=(mark, sealed))
    else:
        raise refuse(
            item.at("type"),
            f"{kind!r} is not implemented; only message, reasoning, function_call and function_call_output",
        )
    item.ignore(("status", "phase"))
    item.close()
    return read


def _join(parts: Sequence[WireMessage]) -> WireMessage:
    texts, thoughts = list[str](), list[str]()
    calls, marks = list[WireCall](), list[str]()
    for part in parts:
        texts.append(part.text)
        thoughts.append(part.reasoning or "")
        calls += part.calls
        marks += part.marks
    return WireMessage("assistant", "".join(texts), "".join(thoughts) or None, tuple(calls), marks=tuple(marks))


def write_reply(session: GatewaySession, node: Node, request: AgentRequest, created: int) -> dict[str, Any]:
    """Return the body of an answer."""
    cut = node.completion.finish_reason == "length"
    return {
        **_write_head(session, node, request, created),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _write_items(session, node),
        "usage": _write_usage(node),
    }


def write_events(session: GatewaySession, node: Node, request: AgentRequest, created: int) -> Iterator[str]:
    """Yield the server-sent events of an answer."""
    sequence = 0

    def event(kind: str, **fields: Any) -> str:
        nonlocal sequence
        data = {"type": kind, "sequence_number": sequence, **fields}
        sequence += 1
        return f"event: {kind}\ndata: {json.dumps(data, ensure_ascii=False)}\n\n"

    begun = {**_write_head(session, node, request, created), "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response={**begun, "incomplete_details": None})
    yield event("response.in_progress", response={**begun, "incomplete_details": None})
    for index, item in enumerate(_write_items(session, node)):
        at = {"item_id": item["id"], "output_index": index}
        yield event("response.output_item.added", output_index=index, item=_empty_item(item))
        if item["type"] == "function_call":
            yield event("response.function_call_arguments.delta", **at, delta=item["arguments"])
            yield event("response.function_call_arguments.done", **at, arguments=item["arguments"])
        else:
            part = item["content"][0]
            at["content_index"] = 0
            name = "output_text" if item["type"] == "message" else "reasoning_text"
            logprobs: dict[str, Any] = {"logprobs": []} if item["type"] == "message" else {}
            yield event("response.content_part.added", **at, part={**part, "text": ""})
            yield event(f"response.{name}.delta", **at, delta=part["text"], **logprobs)
            yield event(f"response.{name}.done", **at, text=part["text"], **logprobs)
            yield event("response.content_part.done", **at, part=part)
        yield event("response.output_item.done", output_index=index, item=item)
    whole = write_reply(session, node, request, created)
    yield event("response.incomplete" if whole["status"] == "incomplete" else "response.completed", response=whole)


def _empty_item(item: dict[str, Any]) -> dict[str, Any]:
    if item["type"] == "function_call":
        return {**item, "status": "in_progress", "arguments": ""}
    return {**item, "status": "in_progress", "content": []}


def _write_head(session: GatewaySession, node: Node, request: AgentRequest, created: int) -> dict[str, Any]:
    return {
        "id": session.wire_id("resp", node.number),
        "object": "response",
        "created_at": created,
        "model": request.model,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": True,
        "previous_response_id": request.continues,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "tool_choice": "auto",
        "tools": [],
    }


def _write_items(session: GatewaySession, node: Node) -> list[dict[str, Any]]:
    message, number = node.message, node.number
    items: list[dict[str, Any]] = []
    if message.reasoning:
        thoughts = [{"type": "reasoning_text", "text": message.reasoning}]
        sealed = session.wire_id("enc", number)
        items.append(
            {
                "type": "reasoning", "id": session.wire_id("rs", number), "summary": [], "content": thoughts,
                "encrypted_content": sealed, "status": "completed",
            }
        )  # fmt: skip
    if message.text or not message.calls:
        text = [{"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}]
        items.append(
            {
                "type": "message", "id": session.wire_id("msg", number), "role": "assistant", "status": "completed",
                "content": text,
            }
        )  # fmt: skip
    for place, call in enumerate(message.calls):
        namespace, _, name = call.name.rpartition(".")
        items.append(
            {
                "type": "function_call", "id": session.wire_id("fc", number, place), "call_id": call.call_id,
                "name": name, "arguments": call.arguments, "status": "completed",
                **({"namespace": namespace} if namespace else {}),
            }
        )  # fmt: skip
    return items


def _write_usage(node: Node) -> dict[str, Any]:
    prompt, sampled = len(node.prompt_ids), len(node.completion.token_ids)
    return {
        "input_tokens": prompt,
        "output_tokens": sampled,
        "total_tokens": prompt + sampled,
        "input_tokens_details": {"cached_tokens": node.completion.cached_tokens},
        "output_tokens_details": {"reasoning_tokens": node.reasoning_tokens},
    }
