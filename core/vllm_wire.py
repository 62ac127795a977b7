"""Reads and writes vLLM's token wire for servers: `POST /inference/v1/generate` and `GET /v1/models`.

Ids come in, ids and log-probs go out, in the form of vLLM 0.32. A log-prob also has `token: "token_id:7"`, as vLLM had
it before and as renderers wants it. Departures: one choice a request; log-probs of the sampled tokens alone, under the
distribution before `top_p` and `top_k` cut it; `top_p` is a share of it too, not of what `top_k` leaves; `stream` sends
the whole completion as one event; `cache_salt`, `priority`, `routed_experts_prompt_start` and what only changes the
text have no effect.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveInt

from core.serving import SamplingBody, StrictBody
from core.types import Completion, Sampling


class TokensParams(SamplingBody):
    max_tokens: PositiveInt | None = None
    seed: int | None = None
    logprobs: Literal[0, 1] | None = None
    prompt_logprobs: None = None  # 0 is not off: it asks for those of the prompt's own tokens
    # These have no effect here.
    detokenize: bool = True
    include_stop_str_in_output: bool = False
    routed_experts_prompt_start: int = 0  # verifiers' client sends it with each prompt that continues its last one

    def to_sampling(self, room: int) -> Sampling:
        """Return it with at most `room` new tokens, the room that the context has."""
        sampling = self.make_sampling(room if self.max_tokens is None else min(room, self.max_tokens), self.seed)
        return replace(sampling, top_k=self.top_k or -1)


class StreamOptions(StrictBody):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class TokensBody(StrictBody):
    token_ids: list[Annotated[int, Field(ge=0, lt=1 << 31)]] = Field(min_length=1)
    sampling_params: TokensParams = TokensParams()
    model: str | None = None
    request_id: str | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens"] = "tokens"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    cache_salt: str | None = None
    priority: int = 0

    def find_room(self, max_model_len: int) -> int:
        """Return how many tokens may follow the prompt.

        Raises:
            ValueError: none may; the message has vLLM's words, which clients know.
        """
        room = max_model_len - len(self.token_ids)
        if room < 1:
            raise ValueError(
                f"token_ids: the prompt of {len(self.token_ids)} tokens leaves no room below the maximum model length "
                f"of {max_model_len}; shorten it"
            )
        return room


def write_logprobs(completion: Completion) -> dict[str, Any]:
    """Return the log-probs of the sampled tokens. Tokens have ids as names, as with `--return-tokens-as-token-ids`."""
    return {
        "content": [
            {"token": f"token_id:{i}", "token_id": i, "logprob": logprob, "bytes": None, "top_logprobs": []}
            for i, logprob in zip(completion.token_ids, completion.logprobs, strict=True)
        ]
    }


def write_usage(prompt: int, completion: Completion) -> dict[str, Any]:
    """Return the tokens of an answer."""
    sampled = len(completion.token_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": completion.cached_tokens or 0},
    }


def write_completion(
    body: TokensBody, completion: Completion, request_id: str, model: str, created: int, text: str
) -> dict[str, Any]:
    """Return the body of the answer to a request; stop texts are looked for in `text`, that of the completion."""
    spans, start = [], 0
    for version, count in completion.count_versions():
        spans.append({"version": version, "start": start, "end": start + count})
        start += count
    wanted = body.sampling_params.logprobs is not None
    choice = {
        "index": 0,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": _find_stop_reason(body.sampling_params, completion, text),
        "logprobs": write_logprobs(completion) if wanted else None,
        "weight_versions": spans,
    }
    return {
        "request_id": request_id,
        "model": model,
        "created": created,
        "output_mode": "tokens",
        "choices": [choice],
        "usage": write_usage(len(body.token_ids), completion),
        "prompt_token_ids": body.token_ids if body.return_token_ids else None,
    }


def _find_stop_reason(params: TokensParams, completion: Completion, text: str) -> int | str | None:
    """Return which of the client's ids or texts ended the completion; None for another end token."""
    if completion.finish_reason != "stop":
        return None
    asked: list[int | str] = [i for i in completion.token_ids[-1:] if i in (params.stop_token_ids or ())]
    return next(iter([*asked, *(stop for stop in params.stops if stop in text)]), None)


def write_chunks(body: TokensBody, reply: dict[str, Any]) -> Iterator[str]:
    """Yield the server-sent events of an answer."""
    usage = reply["usage"] if body.stream_options and body.stream_options.include_usage else None
    yield f"data: {json.dumps({**reply, 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def write_models(names: Sequence[str], max_model_len: int) -> dict[str, Any]:
    """Return the list of models, each with its context, in OpenAI's form and with the fields of Anthropic's."""
    each = {"object": "model", "type": "model", "created": 0, "owned_by": "tokentrue", "max_model_len": max_model_len}
    models = [{"id": name, "display_name": name, "root": name, "parent": None, **each} for name in names]
    return {"object": "list", "data": models, "has_more": False}
