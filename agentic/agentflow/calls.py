"""The calls of one rollout: each role speaks its own tokenizer, within its limits, and every call becomes a Turn.

What a model wrote enters another prompt as the ids that it sampled where both share a tokenizer, and always without
its special tokens; text is encoded with special tokens switched off. So nothing in a slot can end a message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from agentic.agentflow.config import POLICY, RoleSection
from core.policy.base import PolicyError, Roles
from core.rollout.method import RolloutError
from core.rollout.turns import Turns
from core.text.template import TokenTemplate
from core.text.tokenizer import Ids, encode_text, special_ids
from core.tools.base import Interrupt
from core.types import Completion, Sampling


class CallError(RolloutError, Interrupt):
    """A call without a completion fails the rollout, also from inside a tool."""


class BudgetSpent(Interrupt):
    """The rollout's tokens are used up."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a model wrote, without its special tokens: `ids` for whoever shares its tokenizer, `text` for others."""

    text: str
    ids: Ids
    tokenizer: Any
    cut: bool = False
    """It ended at the limit."""


Slots = Mapping[str, str | Written]


class Voice:
    """One role: who speaks, how, and the message it is asked with. Slots that the message lacks are passed over.

    A space before a slot goes into it: ` word` is one token where ` ` and `word` are two that models rarely read.
    """

    def __init__(self, name: str, section: RoleSection, tokenizer: Any, message: str):
        self.name, self.section, self.tokenizer = name, section, tokenizer
        self._slots = tuple(dict.fromkeys(re.findall(r"\{([a-z_]+)\}", message)))
        self._spaced = {slot for slot in self._slots if f" {{{slot}}}" in message}
        self._template = TokenTemplate(tokenizer, re.sub(r" (\{[a-z_]+\})", r"\1", message), self._slots)
        self._special = special_ids(tokenizer)

    def prompt(self, slots: Slots) -> Ids:
        return self._template.render(**{slot: self._ids(slots[slot], slot in self._spaced) for slot in self._slots})

    def sampling(self, sampling: Sampling) -> Sampling:
        """The rollout's own for the policy; greedy for frozen models, which are part of the environment."""
        if self.section.engine != POLICY:
            sampling = Sampling(temperature=0.0, seed=sampling.seed)
        return replace(sampling, stop_token_ids=(self.tokenizer.eos_token_id,))

    def written(self, completion: Completion) -> Written:
        ids = tuple(i for i in completion.token_ids if i not in self._special)
        cut = completion.finish_reason == "length"
        return Written(str(self.tokenizer.decode(ids)), ids, self.tokenizer, cut)

    def _ids(self, value: str | Written, spaced: bool) -> Ids:
        space = " " * spaced
        if isinstance(value, Written):
            if value.tokenizer is self.tokenizer:
                return encode_text(self.tokenizer, space) + value.ids
            value = value.text
        return encode_text(self.tokenizer, space + value)


class Calls:
    """Asks the voices of one rollout, in turn or from inside tools, and keeps count."""

    def __init__(
        self, voices: Mapping[str, Voice], roles: Roles, sampling: Sampling, *, max_total_tokens: int, timeout_s: float
    ):
        self._asked = Turns(sampling)
        self.turns = self._asked.recorded
        self._voices, self._roles, self._sampling = voices, roles, sampling
        self.seed = sampling.seed
        self._left, self._timeout_s = max_total_tokens, timeout_s

    async def ask(self, role: str, slots: Slots, *, budgeted: bool = True) -> Written:
        """What `role` writes. With `budgeted`, prompt and completion come out of the rollout's tokens.

        Raises:
            BudgetSpent: too few tokens are left for the prompt and one more.
            CallError: there is no completion; `aborted` by the engine, `call_timeout`, `no_role`, or the policy's kind.
        """
        voice = self._voices[role]
        prompt = voice.prompt(slots)
        limit = voice.section.max_tokens
        if budgeted:
            limit = min(limit, self._left - len(prompt))
            if limit < 1:
                raise BudgetSpent(f"{self._left} tokens left, the prompt of {role} has {len(prompt)}")
            self._left -= len(prompt) + limit
        completion = await self._ask(voice, prompt, limit)
        if budgeted:
            self._left += limit - len(completion.token_ids)
        return voice.written(completion)

    async def _ask(self, voice: Voice, prompt: Ids, limit: int) -> Completion:
        try:
            policy = self._roles[voice.section.engine]
        except KeyError as error:
            raise CallError("no_role", str(error.args[0])) from error
        try:
            async with asyncio.timeout(self._timeout_s):
                sampling = voice.sampling(self._sampling)
                return await self._asked.ask(policy, voice.name, prompt, limit, voice.section.trained, sampling)
        except TimeoutError:
            raise CallError("call_timeout", f"{voice.name}: no completion in {self._timeout_s:g} s") from None
        except (PolicyError, RolloutError) as error:
            raise CallError(error.kind, f"{voice.name}: {error}") from error
