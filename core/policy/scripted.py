"""A policy for tests: a function decides what comes back, and every call is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from core.policy.base import Decode, PolicyError, completes_a_stop
from core.types import Completion, FinishReason, Sampling


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """Records the arguments of one `generate`."""

    prompt_ids: tuple[int, ...]
    sampling: Sampling
    session: str | None


class ScriptedPolicy:
    """A policy that answers with `respond(prompt_ids, sampling)`: ids, or an exception (returned or raised).

    Like a real policy, it ends after the first stop id or stop text (`stop`; texts need `decode`) or after
    `max_new_tokens` ids (`length`); ids that run out before either also end with `stop`. `latency` is in seconds.
    `calls` lists the calls in order of arrival; `cancelled` counts those that were cancelled while they waited.
    """

    def __init__(
        self,
        respond: Callable[[tuple[int, ...], Sampling], Sequence[int] | Exception],
        *,
        logprob: float = 0.0,
        latency: float = 0.0,
        decode: Decode | None = None,
    ):
        self._respond = respond
        self._logprob = logprob
        self._latency = latency
        self._decode = decode
        self.calls: list[RecordedCall] = []
        self.cancelled = 0

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        call = RecordedCall(tuple(prompt_ids), sampling, session)
        self.calls.append(call)
        try:
            # Even without latency other coroutines get their turn, as they would during a real call.
            await asyncio.sleep(self._latency)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        response = self._respond(call.prompt_ids, sampling)
        if isinstance(response, Exception):
            raise response
        if "" in sampling.stop or (sampling.stop and self._decode is None):
            raise PolicyError("bad_request", "stop: texts need decode, and none may be empty")
        token_ids, finish_reason = _cut(tuple(response), sampling, self._decode)
        return Completion(token_ids, (self._logprob,) * len(token_ids), finish_reason)


def _cut(token_ids: tuple[int, ...], sampling: Sampling, decode: Decode | None) -> tuple[tuple[int, ...], FinishReason]:
    """Return the part of `token_ids` that a real policy would have produced, and why it ended there."""
    budget = token_ids[: sampling.max_new_tokens]
    for end, token_id in enumerate(budget, 1):
        if token_id in sampling.stop_token_ids:
            return budget[:end], "stop"
        if sampling.stop and decode is not None and completes_a_stop(budget[:end], sampling.stop, decode):
            return budget[:end], "stop"
    return budget, "length" if len(token_ids) > len(budget) else "stop"
