"""Asks the orchestrator of one rollout with token ids; every call becomes a Turn."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from agentic.toolorchestra.config import ToolOrchestraSection
from core.policy.base import Policy, PolicyError
from core.rollout.turns import Turns, extends
from core.text.conversation import Message, Renderer
from core.text.tool_calls import CallError
from core.types import Sampling


class Orchestrator:
    """Keeps all `turns` of the orchestrator; `refused` counts those without a usable call, by kind."""

    def __init__(self, config: ToolOrchestraSection, renderer: Renderer, policy: Policy, sampling: Sampling):
        self.refused: Counter[str] = Counter()
        self.drift = 0
        self.seconds = 0.0
        self._config = config
        self._renderer = renderer
        self._policy = policy
        stop = (renderer.tokenizer.eos_token_id,)
        session = uuid4().hex if config.context == "append_only" else None
        self._recorder = Turns(replace(sampling, stop_token_ids=stop), session)
        self.turns = self._recorder.recorded

    async def write(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str | None:
        """Return what the orchestrator writes after `messages`; None if what it did has outgrown the context.

        An append-only prompt that does not extend the turn before it starts a new segment, which `drift` counts.

        Raises:
            RolloutError: the engine `aborted` the call.
            PolicyError: there is no completion.
        """
        prompt = self._renderer.render(messages, tools)
        if self._config.context == "append_only" and self.turns:
            self.drift += not extends(prompt, self.turns[-1])
        began = time.monotonic()
        try:
            completion = await self._recorder.ask(self._policy, "orchestrator", prompt, self._config.max_tokens)
        except PolicyError as error:
            if error.kind != "too_long" or not self.turns:
                raise
            return None
        finally:
            self.seconds += time.monotonic() - began
        ids = self._renderer.find_opening(prompt) + completion.token_ids
        return str(self._renderer.tokenizer.decode(ids, skip_special_tokens=True))

    def refuse(self, error: CallError) -> None:
        """Count the last turn as one without a usable call."""
        self.refused[error.kind] += 1
        if self._config.mask_malformed:
            self.turns[-1] = replace(self.turns[-1], trained=False)

    def last_message(self) -> Message:
        """Return the last turn as a message, with the ids that were sampled."""
        return self._renderer.sampled_message(self.turns[-1].completion.token_ids, self.turns[-1].prompt_ids)

    def count_tokens(self) -> tuple[int, int]:
        """Return the tokens of all prompts and of all completions."""
        return (
            sum(len(turn.prompt_ids) for turn in self.turns),
            sum(len(turn.completion.token_ids) for turn in self.turns),
        )
