"""Defines how a model is called by token ids, `await policy.generate(prompt_ids, sampling, session)`, and the roles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

from core.types import Completion, Sampling, ServiceError


class PolicyError(ServiceError):
    """Reports a call that gave no completion; `kind` is its name in the failure counts."""


class Policy(Protocol):
    """Hides an LLM behind token ids: our engine in this process, SGLang or vLLM over HTTP, a script."""

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


def completes_a_stop(token_ids: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Return whether the last of `token_ids` completes one of the texts `stop`. Callers ask after every token."""
    # A token is a byte at least: n bytes lie within n tokens. Of the first token SentencePiece drops the space.
    longest = max(len(text.encode()) for text in stop)
    tail = decode(token_ids[-longest - 1 :])
    return any(text in tail for text in stop)
