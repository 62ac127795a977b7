"""Defines the only way to call an LLM, `await policy.generate(prompt_ids, sampling, session)`, and the roles."""

from __future__ import annotations

import asyncio
import logging
import random
import re
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from core.types import Completion, Sampling

logger = logging.getLogger(__name__)
T = TypeVar("T")

Fault = Literal["bad_request", "too_long", "engine", "unavailable", "timeout", "bad_reply"]
"""Names why there is no completion; the same fault has the same name whatever is behind the policy.

`bad_request`: the call can never succeed as it is (HTTP 4xx, but for those below).
`too_long`: the prompt and the completion that it asks for do not fit the model's context (an HTTP 400 that says so).
`engine`: the engine failed during the call (HTTP 5xx, but for those below).
`unavailable`: nobody takes calls now, or the connection was lost: a closed policy, HTTP 408, 429, 502 to 504.
`timeout`: there was no completion within the policy's own limit.
`bad_reply`: the reply is not JSON, lacks a field, or contradicts itself.
"""


class PolicyError(RuntimeError):
    """Reports a call that gave no completion; `kind` is its name in the failure counts."""

    def __init__(self, kind: Fault, message: str):
        super().__init__(message)
        self.kind = kind


class Policy(Protocol):
    """Hides an LLM behind token ids. Implementations: embedded, SGLang and vLLM over HTTP, scripted."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        """Sample one completion of `prompt_ids`.

        `session` names a conversation: turns of one session go to the same worker and reuse its cache.
        Cancelling the call aborts the request on the worker.

        Raises:
            PolicyError: no completion could be had.
        """
        ...


class Roles:
    """Maps role names to policies. A method asks for `roles["policy"]`; the recipe says where that policy runs."""

    def __init__(self, policies: Mapping[str, Policy]):
        self._policies = dict(policies)

    def __iter__(self) -> Iterator[str]:
        return iter(self._policies)

    def __getitem__(self, role: str) -> Policy:
        try:
            return self._policies[role]
        except KeyError:
            known = ", ".join(sorted(self._policies)) or "none"
            raise KeyError(f"role {role!r} has no endpoint; defined: {known}. Add it under `roles`.") from None


Decode = Callable[[Sequence[int]], str]
"""Turns token ids into text, special tokens included: `tokenizer.decode`."""


# What engines say of a prompt that does not fit: SGLang `context length`, vLLM that or `model length`, ours the rest.
_TOO_LONG = re.compile(r"context length|maximum model length|the context of \d")


def read_key_header(file: str | Path | None) -> dict[str, str]:
    """Return the header that carries the API key in `file`; none without a file.

    Raises:
        PolicyError: the file cannot be read.
    """
    if file is None:
        return {}
    try:
        return {"Authorization": f"Bearer {Path(file).read_text(encoding='utf-8').strip()}"}
    except (OSError, UnicodeDecodeError) as error:
        raise PolicyError("bad_request", f"api_key_file: {error}; write the key into it") from error


def completes_a_stop(token_ids: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Return whether the last of `token_ids` completes one of the texts `stop`. Callers ask after every token."""
    # A token is a byte at least, so a text of n bytes lies within the last n tokens.
    longest = max(len(text.encode()) for text in stop)
    tail = decode(token_ids[-longest:])
    return any(text in tail for text in stop)


def classify_status(status: int, text: str = "") -> Fault:
    """Return the fault that an HTTP status other than 200 means, with the text of the reply."""
    if status == 400 and _TOO_LONG.search(text):
        return "too_long"
    if status in (408, 429, 502, 503, 504):
        return "unavailable"
    return "bad_request" if 400 <= status < 500 else "engine"


async def call_with_retries(
    call: Callable[[], Awaitable[T]], retried: Collection[Fault], max_retries: int, backoff_s: float
) -> T:
    """Return what `call` returns; call it again after a `retried` fault, at most `max_retries` times.

    The pause doubles from `backoff_s`. Jitter keeps a fleet of rollouts from coming back in one wave.
    """
    for attempt in range(max_retries + 1):
        try:
            return await call()
        except PolicyError as error:
            if error.kind not in retried or attempt == max_retries:
                raise
            logger.warning("%s; retry %d of %d", error, attempt + 1, max_retries)
            await asyncio.sleep(backoff_s * 2**attempt * random.uniform(0.5, 1.0))
    raise AssertionError("the last attempt returns or raises")
