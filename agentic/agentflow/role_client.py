"""Asks the roles of one rollout: each role has its own prompt, tokenizer and limits, and every call becomes a Turn.

A whole output enters the prompt of another role without special tokens, and as the sampled ids if both share a
tokenizer. Other text, and what was read out of an output, is encoded with special tokens switched off. So no slot of a
prompt can end a message.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from agentic.agentflow.config import RoleSection
from core.policy.base import PolicyError, Roles
from core.rollout.method import PolicyFault, RolloutError
from core.rollout.turns import Turns
from core.text.tokenizer import Ids, Tokenizer, TokenTemplate, encode_text, end_ids, special_ids
from core.text.tool_calls import find_answer
from core.tools.base import Interrupt
from core.types import POLICY, Completion, Sampling


class RoleCallError(RolloutError, Interrupt):
    """A call got no completion. It fails the rollout, also from inside a tool."""


class ContextFull(PolicyFault, Interrupt):
    """A call does not fit the context of a policy in training, which fills its memory itself."""


class BudgetSpent(Interrupt):
    """The tokens of the rollout are used up."""


@dataclass(frozen=True, slots=True)
class RoleOutput:
    """Holds what a model wrote: `ids`, without thoughts and special tokens, for the prompts of other roles.

    The text is what is parsed, so it keeps the tags of thoughts, which Qwen3's tokenizer adds as tokens.
    """

    text: str
    ids: Ids
    tokenizer: Tokenizer
    cut: bool = False
    """Says whether the output ended at the limit of its length."""


Slots = Mapping[str, str | RoleOutput]


class RolePrompter:
    """Makes the prompts of one role and reads its completions. It ignores slots that the role's message does not have.

    A space before a slot goes into the slot: ` word` is one token, but ` ` and `word` are two, which models rarely see.
    """

    def __init__(self, name: str, section: RoleSection, tokenizer: Tokenizer, message: str, system: str = ""):
        self.name = name
        self.section = section
        self.tokenizer = tokenizer
        self._slots = tuple(dict.fromkeys(re.findall(r"\{([a-z_]+)\}", message)))
        self._spaced = {slot for slot in self._slots if f" {{{slot}}}" in message}
        self._template = TokenTemplate(tokenizer, re.sub(r" (\{[a-z_]+\})", r"\1", message), self._slots, system)
        self._special, self._ends = special_ids(tokenizer), end_ids(tokenizer)

    def render(self, slots: Slots) -> Ids:
        """Return the ids of the role's prompt with its slots filled."""
        return self._template.render(**{slot: self._encode(slots[slot], slot in self._spaced) for slot in self._slots})

    def sampling(self, sampling: Sampling) -> Sampling:
        """Return the rollout's sampling for a policy. Frozen models belong to the environment and are greedy."""
        if self.section.role != POLICY and not self.section.trained:
            sampling = Sampling(temperature=0.0, seed=sampling.seed)
        penalty = self.section.frequency_penalty
        return replace(sampling, stop_token_ids=(self.tokenizer.eos_token_id,), frequency_penalty=penalty)

    def read(self, completion: Completion, prompt: Ids) -> RoleOutput:
        text = str(self.tokenizer.decode([i for i in completion.token_ids if i not in self._ends]))
        answer = find_answer(self.tokenizer, completion.token_ids, prompt)
        ids = tuple(i for i in answer or () if i not in self._special)
        return RoleOutput(text, ids, self.tokenizer, completion.finish_reason == "length")

    def _encode(self, value: str | RoleOutput, spaced: bool) -> Ids:
        space = " " * spaced
        if isinstance(value, RoleOutput):
            if value.tokenizer is self.tokenizer:
                return encode_text(self.tokenizer, space) + value.ids
            value = str(value.tokenizer.decode(value.ids))
        return encode_text(self.tokenizer, space + value)


class RoleClient:
    """Asks the roles of one rollout, also from inside tools, and counts the tokens of its budget."""

    def __init__(
        self,
        prompters: Mapping[str, RolePrompter],
        roles: Roles,
        sampling: Sampling,
        *,
        max_total_tokens: int,
        timeout_s: float,
    ):
        self._recorder = Turns(sampling)
        self.turns, self.credit = self._recorder.recorded, self._recorder.credit
        self.roles = roles
        self.seed = sampling.seed
        self._prompters = prompters
        self._sampling = sampling
        self._tokens_left = max_total_tokens
        self._timeout_s = timeout_s

    async def ask(self, role: str, slots: Slots, *, budgeted: bool = True) -> RoleOutput:
        """Return what `role` writes. With `budgeted`, prompt and completion are paid from the rollout's tokens.

        Raises:
            BudgetSpent: too few tokens are left for the prompt and one token more.
            ContextFull: prompt and limit are `too_long` for a policy in training.
            RoleCallError: there is no completion. Its kind is `aborted` by the engine, `call_timeout`, `no_role`, or
                the kind of the policy's error.
        """
        prompter = self._prompters[role]
        prompt = prompter.render(slots)
        limit = prompter.section.max_tokens
        if budgeted:
            limit = min(limit, self._tokens_left - len(prompt))
            if limit < 1:
                raise BudgetSpent(f"{self._tokens_left} tokens left, the prompt of {role} has {len(prompt)}")
            # Reserve the whole limit now: tools may ask several roles at the same time.
            self._tokens_left -= len(prompt) + limit
        sampled = 0
        try:
            completion = await self._complete(prompter, prompt, limit)
            sampled = len(completion.token_ids)
        finally:  # a tool that takes too long is cancelled
            if budgeted:
                self._tokens_left += limit - sampled
        return prompter.read(completion, prompt)

    async def _complete(self, prompter: RolePrompter, prompt: Ids, limit: int) -> Completion:
        name, section = prompter.name, prompter.section
        try:
            policy = self.roles[section.role]
        except KeyError as error:
            raise RoleCallError("no_role", str(error.args[0])) from error
        try:
            async with asyncio.timeout(self._timeout_s):
                sampling = prompter.sampling(self._sampling)
                return await self._recorder.ask(policy, name, prompt, limit, section.trained, sampling)
        except TimeoutError:
            raise RoleCallError("call_timeout", f"{name}: no completion in {self._timeout_s:g} s") from None
        except (PolicyError, RolloutError) as error:
            if error.kind == "too_long" and (section.role == POLICY or section.trained):
                raise ContextFull(error.kind, f"{name}: {error}", self.turns) from error
            raise RoleCallError(error.kind, f"{name}: {error}") from error
