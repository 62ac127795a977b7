"""The protocol of OpenAI's Chat Completions, `POST /v1/chat/completions`.

Thoughts go out and come back as `reasoning_content`, as with SGLang, vLLM and DeepSeek; most clients drop it.
`return_token_ids` and `logprobs` give the tokens of prompt and answers, in vLLM's form.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from core.gateway.bodies import FORCED, MAX_TOOL_BYTES, Body, read_schema, read_text, remember
from core.gateway.history import Answer
from core.gateway.messages import AgentRequest, GatewayError, MessageRole, WireCall, WireMessage, refuse
from core.text.tool_calls import ToolSchema
from core.vllm_wire import write_logprobs

LIMIT_STATUS = 404
"""Refuses a client that has had all its turns. LiteLLM's own clients, such as mini-swe-agent, retry on any other."""

PING = ": keep-alive\n\n"
"""Keeps a stream alive until the answer is there: a comment, which clients skip."""

MAX_ANSWERS = 128
"""Bounds the answers to one request."""

_WITHOUT_EFFECT = (
    "user", "metadata", "store", "service_tier", "prompt_cache_key", "prompt_cache_retention", "safety_identifier",
    "reasoning_effort", "verbosity", "cache_control", "prompt_cache_options", "prediction",
)  # fmt: skip
_WITHOUT_EFFECT_ON_AN_ANSWER = (
    "refusal", "annotations", "provider_specific_fields", "reasoning_details", "reasoning", "thinking_blocks",
)  # fmt: skip
ROLES: Mapping[str, MessageRole] = {"system": "system", "developer": "system", "user": "user"}


def read_request(value: Any) -> AgentRequest:
    """Read a request, as `parse_body` gives it or of plain values.

    Raises GatewayError with the path of a field that cannot be served.
    """
    body = Body(value)
    n = body.take_count("n") or 1
    if n > MAX_ANSWERS:
        raise refuse("n", f"must be at most {MAX_ANSWERS}, is {n}")
    tools = body.take_each("tools", _read_tool_again)
    hides_tools = body.take_only("tool_choice", "auto", "none", why=FORCED) == "none"
    single_call = not body.take("parallel_tool_calls", bool, True)
    body.take_only("modalities", ["text"])
    body.take_only("frequency_penalty", 0)
    body.take_only("presence_penalty", 0)
    body.take_only("repetition_penalty", 1)
    body.take_only("top_logprobs", 0, why="would need log-probs of tokens that were not sampled")
    extra = body.take_body("extra_body")  # rLLM's gateway sends the field here and at its place
    extra.take("return_token_ids", bool)
    extra.close()
    top_k = body.take("top_k", int)
    stream_options = body.take_body("stream_options")
    stream_usage = stream_options.take("include_usage", bool, False)
    stream_options.close("include_obfuscation")
    limits = [body.take_count(name) for name in ("max_completion_tokens", "max_tokens")]
    request = AgentRequest(
        model=body.need("model", str),
        messages=body.take_each("messages", _read_message_again),
        tools=() if hides_tools else tools,
        temperature=body.take_number("temperature", 0, 2),
        top_p=body.take_number("top_p", 0, 1),
        top_k=None if top_k in (-1, 0) else top_k,
        seed=body.take("seed", int),
        max_tokens=next((limit for limit in limits if limit is not None), None),
        stop=body.take_stops("stop"),
        stream=body.take("stream", bool, False),
        stream_usage=stream_usage,
        hides_tools=hides_tools and bool(tools),
        single_call=single_call,
        n=n,
        wants_json=body.take_format("response_format"),
        wants_ids=body.take("return_token_ids", bool, False),
        wants_logprobs=body.take("logprobs", bool, False),
    )
    body.close(*_WITHOUT_EFFECT)
    return request


def _read_tool(tool: Body) -> ToolSchema:
    tool.take_only("type", "function")
    function = tool.need_body("function")
    schema = read_schema(
        function.need("name", str),
        function.take("description", str),
        function.take("parameters", dict),
        strict=function.take("strict", bool, False),
    )
    function.close()
    tool.close("cache_control")
    return schema


def _read_message(message: Body) -> WireMessage:
    role = message.need("role", str)
    between = "" if role == "assistant" else "\n"
    text = read_text(message.take("content", (str, list)), message.at("content"), ("text",), between)
    without_effect = ["name", "cache_control"]
    if role == "tool":
        read = WireMessage("tool", text, call_id=message.need("tool_call_id", str))
    elif role == "assistant":
        reasoning = message.take("reasoning_content", str) or message.take("reasoning", str)
        calls = message.take_each("tool_calls", _read_call)
        read = WireMessage("assistant", text, reasoning, calls)
        without_effect += _WITHOUT_EFFECT_ON_AN_ANSWER
    elif role in ROLES:
        read = WireMessage(ROLES[role], text)
    else:
        raise refuse(message.at("role"), f"{role!r} is none of system, developer, user, assistant, tool")
    message.close(*without_effect)
    return read


def _read_call(value: Any, path: str) -> WireCall:
    call = Body(value, path)
    call.take_only("type", "function")
    function = call.need_body("function")
    read = WireCall(call.take("id", str, ""), function.need("name", str), function.take("arguments", str, ""))
    function.close()
    call.close("index", "provider_specific_fields", "extra_content")
    return read


_read_tool_again, _read_message_again = remember(_read_tool, MAX_TOOL_BYTES), remember(_read_message)


def write_reply(answers: Sequence[Answer], request: AgentRequest, created: int) -> dict[str, Any]:
    """Return the body of the answers to a request."""
    return {
        **_write_head(answers, request, created),
        "object": "chat.completion",
        "choices": [
            {"index": i, "message": _write_message(answer), **_write_tokens(answer, request)}
            for i, answer in enumerate(answers)
        ],
        "usage": write_usage(answers, "prompt", "completion"),
        **_write_prompt(answers, request),
    }


def _write_message(answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.message.text or None}
    if answer.message.reasoning:
        message["reasoning_content"] = answer.message.reasoning
    if answer.message.calls:
        message["tool_calls"] = [_write_call(call) for call in answer.message.calls]
    elif message["content"] is None:
        message["content"] = ""
    return message


def _write_tokens(answer: Answer, request: AgentRequest) -> dict[str, Any]:
    """Return why an answer ended, and its tokens as far as the client wants them, as fields of a choice."""
    ids = answer.completion.token_ids
    return {
        "finish_reason": finish_reason(answer),
        "logprobs": write_logprobs(answer.completion) if request.wants_logprobs else None,
        **({"token_ids": ids} if request.wants_ids else {}),
    }


def _write_prompt(answers: Sequence[Answer], request: AgentRequest) -> dict[str, Any]:
    return {"prompt_token_ids": answers[0].prompt_ids} if request.wants_ids else {}


def write_events(answers: Sequence[Answer], request: AgentRequest, created: int) -> Iterator[str]:
    """Yield the server-sent events of the answers: the prompt's ids in the first one, an answer's in its last."""
    head = {**_write_head(answers, request, created), "object": "chat.completion.chunk"}
    prompt = _write_prompt(answers, request)
    for index, answer in enumerate(answers):
        for delta, end in _list_deltas(answer, request):
            choice = {"index": index, "delta": delta, "finish_reason": None, "logprobs": None, **end}
            yield _write_event({**head, **prompt, "choices": [choice]})
            prompt = {}
    if request.stream_usage:
        yield _write_event({**head, "choices": [], "usage": write_usage(answers, "prompt", "completion")})
    yield "data: [DONE]\n\n"


def _list_deltas(answer: Answer, request: AgentRequest) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield each part of an answer, with the other fields of its choice."""
    yield {"role": "assistant", "content": ""}, {}
    if answer.message.reasoning:
        yield {"reasoning_content": answer.message.reasoning}, {}
    if answer.message.text:
        yield {"content": answer.message.text}, {}
    for index, call in enumerate(answer.message.calls):
        begun = _write_call(call)
        begun["function"] = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, **begun}]}, {}
        yield {"tool_calls": [{"index": index, "function": {"arguments": call.arguments}}]}, {}
    yield {}, _write_tokens(answer, request)


def write_error(error: GatewayError) -> dict[str, Any]:
    """Return the body of an error."""
    kind = "invalid_request_error" if error.status < 500 else "server_error"
    return {"error": {"message": str(error), "type": kind, "param": error.path, "code": error.kind}}


def write_error_event(error: GatewayError) -> str:
    """Return the event of an error in a stream that has begun."""
    return _write_event(write_error(error))


def _write_event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value)}\n\n"  # in ASCII: some clients end a line at U+2028, which a text may hold


def _write_head(answers: Sequence[Answer], request: AgentRequest, created: int) -> dict[str, Any]:
    return {"id": answers[0].wire_id("chatcmpl"), "created": created, "model": request.model}


def _write_call(call: WireCall) -> dict[str, Any]:
    return {"id": call.call_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def finish_reason(answer: Answer) -> str:
    """Return why an answer ended, in OpenAI's words."""
    if answer.completion.finish_reason == "length":
        return "length"
    return "tool_calls" if answer.message.calls else "stop"


def write_usage(answers: Sequence[Answer], asked: str, given: str) -> dict[str, Any]:
    """Return the tokens of answers to one prompt, under a protocol's words for what was asked and what was given."""
    prompt = len(answers[0].prompt_ids)
    sampled = sum(len(answer.completion.token_ids) for answer in answers)
    return {
        f"{asked}_tokens": prompt,
        f"{given}_tokens": sampled,
        "total_tokens": prompt + sampled,
        f"{asked}_tokens_details": {"cached_tokens": answers[0].completion.cached_tokens or 0},
        f"{given}_tokens_details": {"reasoning_tokens": sum(answer.reasoning_tokens for answer in answers)},
    }
