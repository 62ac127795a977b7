"""What the policies over HTTP share: what calls and replies must hold, a health check, new weights."""

from __future__ import annotations

import asyncio
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from core.http_client import HTTPClient
from core.policy.base import PolicyError
from core.policy.server_process import find_health_problem
from core.types import Completion, Sampling


class HTTPPolicy(HTTPClient, ABC):
    """A policy that asks the LLM at `url` (`http://host:port`); HTTPClient explains the options.

    `engine` and `unavailable` faults are retried; any other fault would only fail again, so it fails at once.
    """

    error = PolicyError
    kept_back: ClassVar[int] = 0
    """Counts the tokens of its context that an engine never fills."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        _check_call(prompt_ids, sampling)
        completion = await self.retry(lambda: self._attempt(prompt_ids, sampling, session))
        _check_completion(completion, sampling, self.url)
        count, budget = len(completion.token_ids), sampling.max_new_tokens
        if completion.finish_reason == "length" and count + self.kept_back < budget:
            # vLLM and SGLang end where their context or their cache is full; our engine refuses such a call.
            size, prompt = f"{len(prompt_ids) + count} tokens", f"a prompt of {len(prompt_ids)}; shorten the prompt"
            raise PolicyError("too_long", f"{self.url}: the context of {size} is too short for {budget} after {prompt}")
        return completion

    @abstractmethod
    async def _attempt(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None) -> Completion:
        """Make one attempt. One that is given up (cancelled, timed out, disconnected) must not go on decoding.

        Raises:
            PolicyError: there was no completion. `bad_reply`: fields are missing or contradict each other.
        """

    async def update_weights(self, folder: Path, version: str, limit_s: float) -> None:
        """Make the server sample from the weights in `folder`, which it reads from its own disk, as `version`.

        Raises:
            PolicyError: it did not within `limit_s` seconds.
        """
        try:
            async with asyncio.timeout(limit_s):
                await self._load_weights(str(folder.resolve()), version)
        except TimeoutError:
            raise PolicyError("timeout", f"{self.url}: no new weights within {limit_s:g} s") from None

    @abstractmethod
    async def _load_weights(self, folder: str, version: str) -> None:
        """Call what loads weights."""

    async def is_healthy(self) -> bool:
        """Return whether the server says that it is well."""
        return await asyncio.to_thread(find_health_problem, self.url, 5.0) is None

    async def _post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """Return the JSON that the server answers with.

        Raises:
            PolicyError: there was no answer, its status is not 200, or it is not JSON.
        """
        reply = await self.post(path, body, headers)
        try:
            return json.loads(reply)
        except ValueError as error:
            where = f"{self.url}{path}"
            raise PolicyError("bad_reply", f"{where}: reply is not JSON ({error}): {reply[:200]!r}") from error


def make_params(sampling: Sampling) -> dict[str, Any]:
    """Return the sampling parameters that SGLang and vLLM call the same."""
    params = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "stop_token_ids": list(sampling.stop_token_ids),
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    optional = {"stop": list(sampling.stop), "frequency_penalty": sampling.frequency_penalty}
    return params | {name: value for name, value in optional.items() if value}


def _check_call(prompt_ids: Sequence[int], sampling: Sampling) -> None:
    """Refuse what servers let through: an empty prompt ends SGLang's, and a budget of 0 is answered with no token."""
    if not prompt_ids:
        raise PolicyError("bad_request", "input_ids: empty prompt")
    if min(prompt_ids) < 0:
        raise PolicyError("bad_request", f"input_ids: ids must not be negative, one is {min(prompt_ids)}")
    if sampling.max_new_tokens < 1:
        raise PolicyError("bad_request", f"max_new_tokens: must be at least 1, is {sampling.max_new_tokens}")
    if "" in sampling.stop:
        raise PolicyError("bad_request", "stop: a text must not be empty")


def _check_completion(completion: Completion, sampling: Sampling, url: str) -> None:
    """Raise PolicyError `bad_reply` if a reply says what cannot be."""
    ids, reason = completion.token_ids, completion.finish_reason
    faults = {
        f"its finish reason is {reason!r}, not stop, length or abort": reason not in ("stop", "length", "abort"),
        f"{len(ids)} tokens came back, max_new_tokens was {sampling.max_new_tokens}": (
            len(ids) > sampling.max_new_tokens
        ),
        f"no tokens came back though the request ended with {reason!r}": not ids and reason != "abort",
        "it holds a token id that is not an integer >= 0": not all(type(each) is int and each >= 0 for each in ids),
        "it holds a log-prob that is not finite": not all(map(math.isfinite, completion.logprobs)),
    }
    for fault, holds in faults.items():
        if holds:
            raise PolicyError("bad_reply", f"{url}: {fault}")
