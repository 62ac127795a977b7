"""The protocol of OpenAI's Responses, `POST /v1/responses`.

A request's items that belong to one answer (thoughts, text, calls) become one message again. The session keeps every
answer until it is finished, so `previous_response_id` works whatever `store` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count
from typing import Any

from core.gateway import openai_chat
from core.gateway.bodies import FORCED, MAX_TOOL_BYTES, Body, read_schema, read_text, remember
from core.gateway.history import Answer
from core.gateway.messages import (
    AgentRequest,
    GatewayError,
    WireCall,
    WireMessage,
    join_parts,
    refuse,
    refuse_part,
    write_event,
)
from core.gateway.openai_chat import PING, ROLES, write_usage
from core.text.tool_calls import ToolSchema

__all__ = ["LIMIT_STATUS", "PING", "read_request", "write_error", "write_error_event", "write_events", "write_reply"]

LIMIT_STATUS = 400
"""Refuses a client that has had all its turns. Codex retries on any other."""

_WITHOUT_EFFECT = (
    "store", "metadata", "user", "reasoning", "service_tier", "prompt_cache_key", "prompt_cache_retention",
    "safety_identifier", "client_metadata", "cache_control", "prompt_cache_options", "max_tool_calls",
)  # fmt: skip

_TOLD = ("code", "message", "param")


def read_request(value: Any) -> AgentRequest:
    """Read a request body. Raises GatewayError as openai_chat."""
    body = Body(value)
    tools = tuple(chain.from_iterable(body.take_each("tools", _read_tool_again)))
    hides_tools = body.take_only("tool_choice", "auto", "none", why=FORCED) == "none"
    single_call = not body.take("parallel_tool_calls", bool, True)
    body.take_only("truncation", "disabled", "auto")
    body.take_only("background", False)
    text = body.take_body("text")
    wants_json = text.take_format("format")
    text.close("verbosity")
    given = body.need("input", (str, list))
    items = given if isinstance(given, list) else [{"content": given}]
    messages = _join_answers(Body({"input": items}).take_each("input", _read_item_again))
    body.take_body("stream_options").close("include_obfuscation")
    if (asked := "message.output_text.logprobs") in body.take("include", list, []):
        raise refuse("include", f"{asked} is not implemented; Chat Completions has log-probs")
    request = AgentRequest(
        model=body.need("model", str),
        messages=tuple(messages),
        tools=() if hides_tools else tools,
        temperature=body.take_number("temperature", 0, 2),
        top_p=body.take_number("top_p", 0, 1),
        max_tokens=body.take_count("max_output_tokens"),
        stream=body.take("stream", bool, False),
        continues=body.take("previous_response_id", str),
        instructions=body.take("instructions", str),
        hides_tools=hides_tools and bool(tools),
        single_call=single_call,
        wants_json=wants_json,
    )
    body.close(*_WITHOUT_EFFECT)
    return request


def _read_tool(tool: Body, about: str = "", prefix: str = "") -> tuple[ToolSchema, ...]:
    """Read one tool, or those of a namespace, which the policy sees as NAMESPACE.NAME and calls so."""
    kind, name = tool.take("type", str, "function"), tool.need("name", str)
    if "." in name:
        raise refuse(tool.at("name"), f"{name!r} has a dot, which only parts a namespace from a name")
    description = " ".join(filter(None, (about, tool.take("description", str))))
    if kind == "namespace" and not prefix:
        inner = tool.take_each("tools", lambda each, path: _read_tool(Body(each, path), description, f"{name}."))
        schemas = tuple(chain.from_iterable(inner))
    elif kind == "function":
        strict = tool.take("strict", bool, False)
        schemas = (read_schema(prefix + name, description, tool.take("parameters", dict), strict=strict),)
    else:
        raise refuse(tool.at("type"), f"{kind!r} is not implemented; only function and namespace")
    tool.close()
    return schemas


_read_tool_again = remember(_read_tool, MAX_TOOL_BYTES)


def _read_item(item: Body) -> tuple[WireMessage, frozenset[str]]:
    """Read one item as a message or a part of an answer; return it, and the numbers of the answer that its ids name."""
    kind = item.take("type", str, "message")
    role = item.take("role", str, "user") if kind == "message" else ""
    without_effect = ["id", "status"]
    if kind == "function_call_output":
        read = WireMessage("tool", _read_texts(item, "output"), call_id=item.need("call_id", str))
    elif role in ROLES:
        read = WireMessage(ROLES[role], _read_texts(item, "content"))
    elif kind == "message" and role != "assistant":
        raise refuse(item.at("role"), f"{role!r} is none of user, system, developer, assistant")
    else:
        read = _read_part(item, kind)
        without_effect += ["phase"]
    item.close(*without_effect)
    ids = (*(call.call_id for call in read.calls), *read.marks, *read.references)
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
    return [join_parts(message) if isinstance(message, list) else message for message in messages]


def _read_texts(item: Body, name: str, between: str = "\n") -> str:
    return read_text(item.need(name, (str, list)), item.at(name), ("input_text", "output_text", "text"), between)


def _read_part(item: Body, kind: str) -> WireMessage:
    """Read a part of an answer."""
    mark = item.take("id", str, "")
    if kind == "message":
        return WireMessage("assistant", _read_texts(item, "content", ""), marks=(mark,))
    if kind == "function_call":
        name = ".".join(filter(None, (item.take("namespace", str), item.need("name", str))))
        call = WireCall(item.need("call_id", str), name, item.take("arguments", str, ""))
        return WireMessage("assistant", "", calls=(call,), marks=(mark,))
    if kind == "item_reference":
        return WireMessage("assistant", "", references=(mark,))
    if kind == "reasoning":
        thoughts = read_text(item.take("content", list), item.at("content"), ("reasoning_text", "text"), "")
        summary = read_text(item.take("summary", list), item.at("summary"), ("summary_text",), "")
        sealed = item.take("encrypted_content", str, "")
        return WireMessage("assistant", "", (thoughts or summary) or None, marks=(mark, sealed))
    known = ("message", "reasoning", "function_call", "function_call_output", "item_reference")
    raise refuse_part(item.at("type"), kind, known)


def write_reply(answers: Sequence[Answer], request: AgentRequest, created: int) -> dict[str, Any]:
    """Return the body of an answer."""
    (answer,) = answers
    cut = answer.completion.finish_reason == "length"
    return {
        **_write_head(answer, request, created),
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
        "output": _write_items(answer),
        "usage": write_usage(answers, "input", "output"),
    }


def write_events(answers: Sequence[Answer], request: AgentRequest, created: int) -> Iterator[str]:
    """Yield the server-sent events of an answer."""
    (answer,) = answers
    numbers = count()

    def event(kind: str, **fields: Any) -> str:
        return write_event(kind, sequence_number=next(numbers), **fields)

    begun = {**_write_head(answer, request, created), "status": "in_progress", "output": [], "usage": None}
    yield event("response.created", response={**begun, "incomplete_details": None})
    yield event("response.in_progress", response={**begun, "incomplete_details": None})
    for index, item in enumerate(_write_items(answer)):
        at = {"item_id": item["id"], "output_index": index}
        is_call = item["type"] == "function_call"
        empty = {**item, "status": "in_progress", **({"arguments": ""} if is_call else {"content": list[str]()})}
        yield event("response.output_item.added", output_index=index, item=empty)
        if is_call:
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
    whole = write_reply(answers, request, created)
    yield event("response.incomplete" if whole["status"] == "incomplete" else "response.completed", response=whole)


def write_error(error: GatewayError) -> dict[str, Any]:
    """Return the body of an error. The messages of a request are its `input`."""
    body = openai_chat.write_error(error)
    if error.path == "messages":
        body["error"]["param"] = "input"
    return body


def write_error_event(error: GatewayError) -> str:
    """Return the events of an error in a stream that has begun: SDKs read the first one, and Codex the second."""
    told = write_error(error)["error"]
    failed = {"object": "response", "status": "failed", "error": {"code": told["code"], "message": told["message"]}}
    first = write_event("error", sequence_number=0, error=told, **{name: told[name] for name in _TOLD})
    return first + write_event("response.failed", sequence_number=1, response={"id": "", "output": [], **failed})


def _write_head(answer: Answer, request: AgentRequest, created: int) -> dict[str, Any]:
    return {
        "id": answer.wire_id("resp"),
        "object": "response",
        "created_at": created,
        "model": request.model,
        "error": None,
        "instructions": None,
        "metadata": {},
        "parallel_tool_calls": not request.single_call,
        "previous_response_id": request.continues,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "tool_choice": "none" if request.hides_tools else "auto",
        "tools": [],
    }


def _write_items(answer: Answer) -> list[dict[str, Any]]:
    message = answer.message
    items: list[dict[str, Any]] = []
    if message.reasoning:
        items.append(
            {
                "type": "reasoning", "id": answer.wire_id("rs"), "status": "completed", "summary": [],
                "content": [{"type": "reasoning_text", "text": message.reasoning}],
                "encrypted_content": answer.wire_id("enc"),
            }
        )  # fmt: skip
    if message.text or not message.calls:
        text = {"type": "output_text", "text": message.text, "annotations": [], "logprobs": []}
        items.append(
            {
                "type": "message", "id": answer.wire_id("msg"), "role": "assistant", "status": "completed",
                "content": [text],
            }
        )  # fmt: skip
    for index, call in enumerate(message.calls):
        namespace, _, name = call.name.rpartition(".")
        items.append(
            {
                "type": "function_call", "id": answer.wire_id("fc", index), "call_id": call.call_id,
                "name": name, "arguments": call.arguments, "status": "completed",
                **({"namespace": namespace} if namespace else {}),
            }
        )  # fmt: skip
    return items
