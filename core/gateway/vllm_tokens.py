"""The protocol of vLLM's `POST /inference/v1/generate`: the client holds the ids, and the session keeps the turns.

verifiers, and whatever else renders prompts itself, asks so. No template and no tool is read here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pydantic import ValidationError

from core.gateway.history import Answer
from core.gateway.messages import AgentRequest, GatewayError, refuse
from core.gateway.openai_chat import LIMIT_STATUS, PING, write_error, write_error_event
from core.serving import describe_invalid
from core.vllm_wire import TokensBody, write_chunks, write_completion

__all__ = ["LIMIT_STATUS", "PING", "read_request", "write_error", "write_error_event", "write_events", "write_reply"]


def read_request(value: Any) -> AgentRequest:
    """Read a request body. Raises GatewayError as openai_chat."""
    try:
        body = TokensBody.model_validate(value)
    except ValidationError as error:
        raise GatewayError(400, "bad_request", describe_invalid(error)) from error
    params = body.sampling_params
    given = {name: getattr(params, name) for name in ("temperature", "top_p") if name in params.model_fields_set}
    if params.frequency_penalty:
        raise refuse("sampling_params.frequency_penalty", "is not implemented; only 0")
    return AgentRequest(
        model=body.model or "policy",
        messages=(),
        top_k=None if params.top_k in (-1, 0) else params.top_k,
        seed=params.seed,
        max_tokens=params.max_tokens,
        stop=params.stops,
        stream=bool(body.stream),
        tokens=body,
        **given,
    )


def write_reply(answers: Sequence[Answer], request: AgentRequest, created: int) -> dict[str, Any]:
    """Return the body of an answer."""
    (answer,) = answers
    assert request.tokens is not None
    rid = request.tokens.request_id or answer.wire_id("generate")
    return write_completion(request.tokens, answer.completion, rid, request.model, created, answer.message.text)


def write_events(answers: Sequence[Answer], request: AgentRequest, created: int) -> Iterator[str]:
    """Yield the server-sent events of an answer."""
    assert request.tokens is not None
    return write_chunks(request.tokens, write_reply(answers, request, created))
