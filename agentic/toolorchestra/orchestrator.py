"""The orchestrator's side of one rollout: it is asked with ids, and every call becomes a Turn."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

from agentic.toolorchestra.config import ToolOrchestraSection
from core.policy.base import Policy
from core.rollout.turns import Turns
from core.text.conversation import Message, Renderer
from core.text.tokenizer import Ids
from core.text.tool_calls import CallError
from core.types import Sampling, Turn


class Orchestrator:
    """`turns` are all that it wrote; `refused` counts those without a usable call by kind."""

    def __init__(self, config: ToolOrchestraSection, renderer: Renderer, policy: Policy, sampling: Sampling):
        self.refused: Counter[str] = Counter()
        self.drift, self.seconds = 0, 0.0
        self._config, self._renderer, self._policy = config, renderer, policy
        stop = (renderer.tokenizer.eos_token_id,)
        session = uuid4().hex if config.context == "append_only" else None
        self._asked = Turns(replace(sampling, stop_token_ids=stop), session)
        self.turns = self._asked.recorded

    async def write(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> str:
        """What it writes after `messages`. An append-only context that does not go on from all that was said before
        starts a new segment, which is counted.

        Raises:
            RolloutError: `aborted` by the engine.
            PolicyError: there is no completion.
        """
        prompt = self._renderer.render(messages, tools)
        if self._config.context == "append_only" and self.turns:
            self.drift += not _extends(prompt, self.turns[-1])
        began = time.monotonic()
        completion = await self._asked.ask(self._policy, "orchestrator", prompt, self._config.max_tokens)
        self.seconds += time.monotonic() - began
        return str(self._renderer.tokenizer.decode(completion.token_ids, skip_special_tokens=True))

    def refuse(self, error: CallError) -> None:
        """The last turn had no usable call."""
        self.refused[error.kind] += 1
        if self._config.mask_malformed:
            self.turns[-1] = replace(self.turns[-1], trained=False)

    def last(self) -> Message:
        """The last turn as it was sampled."""
        return self._renderer.sampled_message(self.turns[-1].completion.token_ids)

    @property
    def tokens(self) -> tuple[int, int]:
        """Of all prompts, of all completions."""
        return (
            sum(len(turn.prompt_ids) for turn in self.turns),
            sum(len(turn.completion.token_ids) for turn in self.turns),
        )


def room(config: ToolOrchestraSection, renderer: Renderer, tools: Sequence[Mapping[str, Any]]) -> int:
    """Tokens of the whole budget that `tools` leave to messages."""
    shown = renderer.message("system", "".join(map(json.dumps, tools))).ids if tools else ()
    return config.budget.total - len(shown)


def _extends(prompt: Ids, turn: Turn) -> bool:
    held = (*turn.prompt_ids, *turn.completion.token_ids)
    return prompt[: len(held)] == held


def fitted(messages: Sequence[Message], budget: int, keep: int) -> list[Message]:
    """`messages` within `budget` tokens: after the first `keep`, the oldest go, an assistant's message with all that
    answers it."""
    kept, rest = list(messages[:keep]), list(messages[keep:])
    while rest and sum(len(message.ids) for message in (*kept, *rest)) > budget:
        following = [i for i, message in enumerate(rest) if i and message.role == "assistant"]
        if not following:
            break
        rest = rest[following[0] :]
    return kept + rest
