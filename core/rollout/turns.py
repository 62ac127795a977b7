"""Makes the calls of one rollout: each is sampled under a seed of its own and recorded as a Turn, token for token."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from uuid import uuid4

from core.policy.base import Policy
from core.rollout.method import RolloutError
from core.text.tokenizer import Tokenizer
from core.types import POLICY, Completion, Sampling, Turn, derive_seed


class Turns:
    """Asks policies on behalf of one rollout and keeps the turns in `recorded`.

    `sampling` is the default of every call. Give a `session` where prompts continue what was sampled: our
    engine then keeps what it computed for a completion, and a router sends all calls to one server.
    """

    def __init__(self, sampling: Sampling, session: str | None = None):
        self.recorded: list[Turn] = []
        self._sampling = sampling
        self._session = session
        self._calls = 0
        self._branches = 0
        self._path: tuple[int, ...] = ()
        self._began = time.monotonic()

    def branch(self) -> Turns:
        """Return turns for a conversation beside this one, kept in the same `recorded`.

        Their seeds do not depend on which conversation calls first.
        """
        branch = Turns(self._sampling, self._session)
        branch.recorded = self.recorded
        branch._path = (*self._path, self._branches)
        branch._began = self._began
        self._branches += 1
        return branch

    async def ask(
        self,
        policy: Policy,
        role: str,
        prompt_ids: Sequence[int],
        max_new_tokens: int,
        trained: bool = True,
        sampling: Sampling | None = None,
    ) -> Completion:
        """Sample one completion of `prompt_ids` from `policy` and record it as a turn of `role`, untrained if frozen.

        Raises:
            RolloutError: the engine aborted the call (kind `aborted`).
            PolicyError: there is no completion.
        """
        sampling = sampling or self._sampling
        call = self._calls
        seed = None if sampling.seed is None else derive_seed(sampling.seed, *self._path, call)
        self._calls += 1
        request = replace(sampling, max_new_tokens=max_new_tokens, seed=seed)
        asked = time.monotonic() - self._began
        completion = await policy.generate(prompt_ids, request, self._session)
        if completion.finish_reason == "abort":
            raise RolloutError("aborted", f"the engine aborted call {call}, of {role}")
        seconds = (asked, time.monotonic() - self._began)
        name = getattr(policy, "trained_as", POLICY)  # of a policy in training; None: it is frozen
        trained = trained and name is not None
        self.recorded.append(Turn(role, tuple(prompt_ids), completion, trained, seconds, policy=name or POLICY))
        return completion

    def credit(self, role: str, *, reward: float | None = None, state: Sequence[str] | None = None) -> None:
        """Say what the latest turn of `role` earned, or what the environment showed before it; a hash of that is kept.

        A turn that is not trained stays as it is, and where a script stood for the policy there is none.
        """
        for place, turn in reversed([*enumerate(self.recorded)]):
            if turn.role == role:
                if turn.trained:
                    earned = turn.reward if reward is None else reward
                    named = turn.state if state is None else str(derive_seed(json.dumps(list(state))))
                    self.recorded[place] = replace(turn, reward=earned, state=named)
                return


def begin_turns(sampling: Sampling, tokenizer: Tokenizer, stop: tuple[str, ...] = ()) -> Turns:
    """Begin the turns of a rollout whose prompts continue what was sampled, in a session of their own.

    A completion ends at the end token, or at a text of `stop`, whatever `sampling` says of it.
    """
    ends = replace(sampling, stop=stop, stop_token_ids=(tokenizer.eos_token_id,))
    return Turns(ends, session=uuid4().hex)


def extends(prompt_ids: tuple[int, ...], earlier: Turn) -> bool:
    """Return whether a prompt begins with all ids of an earlier turn: its prompt, then its completion."""
    prompt, sampled = earlier.prompt_ids, earlier.completion.token_ids
    end = len(prompt) + len(sampled)
    return prompt_ids[: len(prompt)] == prompt and prompt_ids[len(prompt) : end] == sampled
