"""Asks the policy of one rollout through verl's client of its servers.

What differs from a server over HTTP: vLLM's replicas say `completed` for a reply that ran to its limit, too, and verl
shortens a request that does not fit the context. So the limits are checked here. verl's client cannot abort a request;
a rollout that is broken off leaves it to the server to finish.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from core.policy.base import PolicyError, completes_a_stop
from core.policy.http_policy import make_params
from core.text.tokenizer import Tokenizer, find_turn_end
from core.types import Completion, Fault, FinishReason, Sampling


class VerlPolicy:
    """Samples one rollout's completions. `steps` are the versions of the weights that sampled, `seconds` the time."""

    def __init__(self, client: Any, rollout: Any, tokenizer: Tokenizer):
        """Take verl's `server_manager` and the section `actor_rollout_ref.rollout` of its configuration."""
        self.steps: set[int] = set()
        self.seconds = 0.0
        self._client = client
        self._seed_key = "sampling_seed" if rollout.get("name") == "sglang" else "seed"
        self._max_model_len = rollout.get("max_model_len")
        self._tokenizer = tokenizer

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        """Sample one completion of `prompt_ids`; `session` makes the calls of a rollout go to one server."""
        wanted = len(prompt_ids) + sampling.max_new_tokens
        if self._max_model_len and wanted > self._max_model_len:
            raise PolicyError("too_long", f"the call needs {wanted} tokens, max_model_len is {self._max_model_len}")
        params = {**make_params(sampling), "max_tokens": sampling.max_new_tokens, "logprobs": True}
        if sampling.seed is not None:
            params[self._seed_key] = sampling.seed
        start = time.monotonic()
        try:
            output = await self._client.generate(session, prompt_ids=list(prompt_ids), sampling_params=params)
        except Exception as error:  # Ray gives the errors of a server a type of its own
            raise PolicyError(find_fault(error), f"{type(error).__name__}: {str(error)[-500:]}") from error
        finally:
            self.seconds += time.monotonic() - start
        return self._read(output, sampling)

    def _read(self, output: Any, sampling: Sampling) -> Completion:
        extra, aborted = output.extra_fields, output.stop_reason in ("abort", "aborted")
        tokens, logprobs = ((), ()) if aborted else (tuple(output.token_ids), tuple(output.log_probs or ()))
        if len(logprobs) != len(tokens):
            raise PolicyError("bad_reply", f"{len(tokens)} tokens came without as many log-probs")
        reason = "abort" if aborted else self._find_end(output.stop_reason, tokens, sampling)
        names = ("min_global_steps", "max_global_steps", "global_steps")
        steps = [extra[name] for name in names if extra.get(name) is not None]
        self.steps.update(steps)
        return Completion(tokens, logprobs, reason, str(max(steps, default=0)), extra.get("num_cached_tokens"))

    def _find_end(self, reason: str | None, tokens: Sequence[int], sampling: Sampling) -> FinishReason:
        if reason == "length":
            return "length"
        if reason == "stop" or len(tokens) < sampling.max_new_tokens:
            return "stop"
        ends = {self._tokenizer.eos_token_id, find_turn_end(self._tokenizer), *sampling.stop_token_ids}
        if tokens[-1] in ends or (sampling.stop and completes_a_stop(tokens, sampling.stop, self._tokenizer.decode)):
            return "stop"
        return "length"


def find_fault(error: Exception) -> Fault:
    """Name what went wrong by the error of verl's client, or of Ray, which repeats the server's in its text."""
    text, names = str(error).lower(), " ".join(kind.__name__ for kind in type(error).__mro__)
    if "context length" in text:
        return "too_long"
    if "no available servers" in text or "ConnectionError" in names or ("Actor" in names and "Ray" in names):
        return "unavailable"
    return "timeout" if "Timeout" in names else "engine"
