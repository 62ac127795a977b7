"""The calls that one rollout makes: each is sampled under a seed of its own, and becomes a Turn just as it was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.policy.base import Policy
from core.rollout.method import RolloutError, derive_seed
from core.types import Completion, Sampling, Turn


class Turns:
    """`taken` are the turns so far.

    `sampling` holds for every call that brings no other. Give a `session` where prompts go on from what was sampled:
    the embedded engine then keeps what it computed for a completion, and a router sends all calls to one server.
    """

    def __init__(self, sampling: Sampling, session: str | None = None):
        self.taken: list[Turn] = []
        self._sampling, self._session, self._calls = sampling, session, 0

    async def ask(
        self,
        policy: Policy,
        role: str,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        trained: bool = True,
        sampling: Sampling | None = None,
    ) -> Completion:
        """What `policy` writes after `prompt_ids`, as the turn `role`.

        Raises:
            RolloutError: `aborted` by the engine.
            PolicyError: there is no completion.
        """
        sampling, call = sampling or self._sampling, self._calls
        seed = None if sampling.seed is None else derive_seed(sampling.seed, call)
        self._calls += 1
        request = replace(sampling, max_new_tokens=max_new_tokens, seed=seed)
        completion = await policy.generate(prompt_ids, request, self._session)
        if completion.finish_reason == "abort":
            raise RolloutError("aborted", f"the engine aborted call {call}, of {role}")
        self.taken.append(Turn(role, tuple(prompt_ids), completion, trained))
        return completion
