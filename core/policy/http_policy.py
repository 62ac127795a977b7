"""What the policies over HTTP share: connections, retries, a limit of time, and what calls and replies must hold."""

from __future__ import annotations

import asyncio
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp

from core.policy.base import Fault, PolicyError, call_with_retries, classify_status, read_key_header
from core.types import Completion, Sampling

_RETRIED: tuple[Fault, ...] = ("engine", "unavailable")


class HTTPPolicy(ABC):
    """A policy that asks the LLM at `url` (`http://host:port`).

    Each call may take `timeout_s` seconds, retries included. `engine` and `unavailable` faults are retried
    `max_retries` times, with a pause that doubles from `backoff_s` seconds; any other fault fails at once, for it would
    fail again.

    The key of a server that wants one is read from `api_key_file` at the first call.

    The HTTP session opens on the first call, belongs to that event loop, and is closed by `close()` or `async with`.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 600.0,
        max_retries: int = 3,
        backoff_s: float = 0.5,
        api_key_file: str | Path | None = None,
    ):
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"policy url {url!r} has no scheme; write it as http://host:port")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._backoff_s = backoff_s
        self._key_file = api_key_file
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        _check_call(prompt_ids, sampling)
        try:
            async with asyncio.timeout(self._timeout_s):
                completion = await call_with_retries(
                    lambda: self._attempt(prompt_ids, sampling, session),
                    _RETRIED,
                    self._max_retries,
                    self._backoff_s,
                )
        except TimeoutError:
            raise PolicyError("timeout", f"{self.url}: no completion within {self._timeout_s:g} s") from None
        _check_completion(completion, sampling, self.url)
        return completion

    @abstractmethod
    async def _attempt(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None) -> Completion:
        """Make one attempt. One that is given up (cancelled, timed out, disconnected) must not go on decoding.

        Raises:
            PolicyError: there was no completion. `bad_reply`: fields are missing or contradict each other.
        """

    @abstractmethod
    async def update_weights(self, folder: Path, version: str, limit_s: float) -> None:
        """Make the server sample from the weights in `folder`, which it reads from its own disk, as `version`.

        Raises:
            PolicyError: it did not within `limit_s` seconds.
        """

    async def is_healthy(self, limit_s: float = 5.0) -> bool:
        """Return whether the server says within `limit_s` seconds that it is well."""
        try:
            async with asyncio.timeout(limit_s), self._http().get(f"{self.url}/health") as response:
                return response.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return False

    async def _post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Any:
        """Return the JSON that the server answers with.

        Raises:
            PolicyError: there was no answer, its status is not 200, or it is not JSON.
        """
        where = f"{self.url}{path}"
        try:
            async with self._http().post(where, json=body, headers=headers) as response:
                reply = await response.read()
        except aiohttp.ClientError as error:
            raise PolicyError("unavailable", f"{where}: {type(error).__name__}: {error}") from error
        if response.status != 200:
            text = reply.decode(errors="replace")[:500]
            raise PolicyError(classify_status(response.status, text), f"{where}: HTTP {response.status}: {text}")
        try:
            return json.loads(reply)
        except ValueError as error:
            raise PolicyError("bad_reply", f"{where}: reply is not JSON ({error}): {reply[:200]!r}") from error

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit of our own on connections: how many rollouts run at once is the caller's choice.
            self._session = aiohttp.ClientSession(
                headers=read_key_header(self._key_file),
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=30.0),
            )
        return self._session


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
