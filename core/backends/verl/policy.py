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
from core.text.tokenizer import Tokenizer, find_turn_end
from core.types import Completion, Fault, FinishReason, Sampling

SEED_KEYS = {"vllm": "seed", "sglang": "sampling_seed"}
"""Names the seed among the sampling parameters of each of verl's engines."""


class VerlPolicy:
    """Samples one rollout's completions. `steps` are the versions of the weights that sampled, `seconds` the time."""

    def __init__(self, client: Any, rollout: Any, tokenizer: Tokenizer):
        """Take verl's `server_manager` and the section `actor_rollout_ref.rollout` of its configuration."""
        self.steps: set[int] = set()
        self.seconds = 0.0
        self._client = client
        self._engine = rollout.get("name")
        self._max_model_len = rollout.get("max_model_len")
        self._tokenizer = tokenizer

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        """Sample one completion of `prompt_ids`; `session` makes the calls of a rollout go to one server."""
        wanted = len(prompt_ids) + sampling.max_new_tokens
        if self._max_model_len is not None and wanted > self._max_model_len:
            raise PolicyError("too_long", f"the call needs {wanted} tokens, max_model_len is {self._max_model_len}")
        start = time.monotonic()
        try:
            output = await self._client.generate(
                session, prompt_ids=list(prompt_ids), sampling_params=self._parameters(sampling)
            )
        except Exception as error:  # Ray gives the errors of a server a type of its own
            raise PolicyError(find_fault(error), f"{type(error).__name__}: {str(error)[-500:]}") from error
        finally:
            self.seconds += time.monotonic() - start
        return self._read(output, sampling)

    def _parameters(self, sampling: Sampling) -> dict[str, Any]:
        """Return verl's sampling parameters, without those that say nothing: an engine refuses a key that it lacks."""
        seed_key = SEED_KEYS.get(self._engine, "seed")
        options = {
            "stop_token_ids": list(sampling.stop_token_ids) or None,
            "stop": list(sampling.stop) or None,
            "frequency_penalty": sampling.frequency_penalty or None,
            seed_key: sampling.seed,
        }
        return {
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "logprobs": True,
            **{name: value for name, value in options.items() if value is not None},
        }

    def _read(self, output: Any, sampling: Sampling) -> Completion:
        tokens = tuple(output.token_ids)
        aborted = output.stop_reason in ("abort", "aborted")
        if not aborted and (output.log_probs is None or len(output.log_probs) != len(tokens)):
            raise PolicyError("bad_reply", f"{len(tokens)} tokens came without as many log-probs")
        steps = [output.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps", "global_steps")]
        known = [step for step in steps if step is not None]
        self.steps.update(known)
        return Completion(
            token_ids=() if aborted else tokens,
            logprobs=() if aborted else tuple(output.log_probs),
            finish_reason="abort" if aborted else self._find_end(output.stop_reason, tokens, sampling),
            weight_version=str(max(known, default=0)),
            cached_tokens=output.extra_fields.get("num_cached_tokens") or 0,
        )

    def _find_end(self, reason: str | None, tokens: Sequence[int], sampling: Sampling) -> FinishReason:
        if reason in ("stop", "length"):
            return "stop" if reason == "stop" else "length"
        if len(tokens) < sampling.max_new_tokens:
            return "stop"
        ends = {self._tokenizer.eos_token_id, find_turn_end(self._tokenizer), *sampling.stop_token_ids}
        stopped = tokens[-1] in ends or (
            bool(sampling.stop) and completes_a_stop(tokens, sampling.stop, self._tokenizer.decode)
        )
        return "stop" if stopped else "length"


def find_fault(error: Exception) -> Fault:
    """Name what went wrong by the error of verl's client, or of Ray, which repeats the server's in its text."""
    text, names = str(error).lower(), " ".join(kind.__name__ for kind in type(error).__mro__)
    if "context length" in text:
        return "too_long"
    if "no available servers" in text or "ConnectionError" in names or ("Actor" in names and "Ray" in names):
        return "unavailable"
    return "timeout" if "Timeout" in names else "engine"
