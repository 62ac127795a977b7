"""Reads and writes SGLang's wire format: request bodies, checked field by field, replies and errors.

A field that is not implemented is refused unless it is off (null, false, 0, empty; 1 for `n` and `repetition_penalty`),
so a client never gets something else than it asked for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Literal

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError

from core.policy.base import PolicyError
from core.serving import SamplingBody, StrictBody, describe_invalid
from core.types import Completion, Fault, Sampling

_STATUS: dict[Fault, int] = {"bad_request": 400, "too_long": 400, "unavailable": 503}


class SamplingParams(SamplingBody):
    max_new_tokens: int = 128
    sampling_seed: int | None = None
    no_stop_trim: bool = False
    """Says whether the reply's text keeps the stop text that ended it; ids and log-probs do."""

    def to_sampling(self) -> Sampling:
        return self.make_sampling(self.max_new_tokens, self.sampling_seed)


class GenerateBody(StrictBody):
    input_ids: list[int] | None = None
    text: str | None = None
    sampling_params: SamplingParams = SamplingParams()
    return_logprob: bool = False
    logprob_start_len: int = -1
    stream: bool = False
    rid: str | None = None
    # SGLang's router adds this field to every body; it has no effect here.
    log_metrics: bool = True


class UpdateWeightsBody(BaseModel):
    """Names the weights to load. It ignores options such as `load_format` and `flush_cache`: loading always flushes."""

    model_config = ConfigDict(protected_namespaces=())
    model_path: str
    weight_version: str | None = None


class PauseBody(BaseModel):
    """Accepts the mode `abort` alone of SGLang's modes: no request is kept through a pause."""

    mode: Literal["abort"] = "abort"


class AbortBody(BaseModel):
    rid: str | None = None
    abort_all: bool = False


def make_meta_info(completion: Completion, rid: str, prompt_tokens: int, *, with_logprobs: bool) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "id": rid,
        "finish_reason": {"type": completion.finish_reason},
        "prompt_tokens": prompt_tokens,
        "completion_tokens": len(completion.token_ids),
        "cached_tokens": completion.cached_tokens or 0,
        "weight_version": completion.weight_version,
        "earlier_weight_versions": completion.earlier_versions,
    }
    if with_logprobs:
        pairs = zip(completion.logprobs, completion.token_ids, strict=True)
        meta["output_token_logprobs"] = [[logprob, token_id, None] for logprob, token_id in pairs]
        meta["input_token_logprobs"] = []
    return meta


class BadRequest(Exception):
    """Reports a client's mistake: status 400 or another, with a message that names the field."""

    def __init__(self, message: str, status: int = 400):
        super().__init__(message)
        self.status = status


@web.middleware
async def reply_errors_as_json(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except ValidationError as error:
        status, message = 400, describe_invalid(error)
    except BadRequest as error:
        status, message = error.status, str(error)
    except PolicyError as error:
        status, message = _STATUS.get(error.kind, 500), str(error)
    return web.json_response({"error": {"message": message}}, status=status)
