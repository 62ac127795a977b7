"""The only way to an LLM: `await policy.generate(prompt_ids, sampling, session)`; and the table role -> policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

from core.types import Completion, Sampling

Fault = Literal["bad_request", "engine", "unavailable", "timeout", "bad_reply"]
"""Why there is no completion; the same fault has the same name whatever is behind the policy.

`bad_request`: the call can never succeed as it is (HTTP 4xx, but for those below).
`engine`: the engine failed while it held the call (HTTP 5xx, but for those below).
`unavailable`: nobody takes calls now, or it went away: a closed policy, a lost connection, HTTP 408, 429, 502 to 504.
`timeout`: no completion within the policy's own limit.
`bad_reply`: what came back is not JSON, lacks a field, or contradicts itself.
"""


class PolicyError(RuntimeError):
    """A call that gave no completion. `kind` is its name in the failure counts."""

    def __init__(self, kind: Fault, message: str):
        super().__init__(message)
        self.kind = kind


class Policy(Protocol):
    """An LLM behind token ids. Implementations: embedded, SGLang over HTTP, scripted."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        """Sample one completion of `prompt_ids`.

        `session` names a conversation: turns of one session go to the same worker and reuse its cache.
        Cancelling the call aborts the request on the worker.

        Raises:
            PolicyError: no completion could be had.
        """
        ...


class Roles:
    """Role name -> Policy. Method code asks for `roles["policy"]`; where that lives is the recipe's business."""

    def __init__(self, policies: Mapping[str, Policy]):
        self._policies = dict(policies)

    def __getitem__(self, role: str) -> Policy:
        try:
            return self._policies[role]
        except KeyError:
            known = ", ".join(sorted(self._policies)) or "none"
            raise KeyError(f"role {role!r} has no endpoint; defined: {known}. Add it under `roles`.") from None


Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens included: `tokenizer.decode`."""


def completes_a_stop(token_ids: Sequence[int], stop: Sequence[str], decode: Decode) -> bool:
    """Whether the last of `token_ids` completes one of the texts `stop`, asked after every token.

    A token is a byte at least, so a text of n bytes lies within the last n tokens.
    """
    longest = max(len(text.encode()) for text in stop)
    said = decode(token_ids[-longest:])
    return any(text in said for text in stop)
