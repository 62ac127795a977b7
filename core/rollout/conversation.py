"""A conversation of one rollout with its policy: it grows, branches into sub-agents, and is compacted when it is long.

Every reply is a Turn of the rollout. While a conversation grows, each prompt extends the ids before it; a branch or a
compaction begins another stretch. With `algorithm.rows: segment` each stretch becomes a row (core/rollout/rows.py), so
every sampled token is trained once, in the context in which it was sampled, and all rows share the rollout's advantage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from core.policy.base import Policy
from core.rollout.turns import Turns
from core.text.conversation import Message, Renderer
from core.types import Completion, Sampling

SUMMARY = "Summary of the conversation so far:\n"


class Conversation:
    """Holds the `messages` between a rollout and its policy. Replies are recorded in `turns`, as they were sampled.

    >>> chat = Conversation(roles["policy"], renderer, Turns(sampling), [renderer.message("user", task.question)])
    >>> reply = await chat.ask("act", max_new_tokens=64)
    """

    def __init__(
        self,
        policy: Policy,
        renderer: Renderer,
        turns: Turns,
        messages: Sequence[Message] = (),
        tools: Sequence[Mapping[str, Any]] = (),
    ):
        self.messages = list(messages)
        self.turns = turns
        self._policy = policy
        self._renderer = renderer
        self._tools = tools

    def count_tokens(self, *following: Message) -> int:
        """Count the ids of the next prompt if the messages `following` were added first."""
        return len(self._renderer.render([*self.messages, *following], self._tools))

    async def ask(
        self, role: str, max_new_tokens: int, trained: bool = True, sampling: Sampling | None = None
    ) -> Completion:
        """Sample the policy's next message as a turn of `role`, and add it to the conversation.

        Raises:
            RolloutError, PolicyError: as Turns.ask.
        """
        prompt = self._renderer.render(self.messages, self._tools)
        completion = await self.turns.ask(self._policy, role, prompt, max_new_tokens, trained, sampling)
        self.messages.append(self._renderer.sampled_message(completion.token_ids, prompt))
        return completion

    def branch(self, messages: Sequence[Message] | None = None) -> Conversation:
        """Open the conversation of a sub-agent: with `messages` of its own, or else with a copy of all of this one's.

        Its turns belong to the same rollout. What it finds comes back only as a message that the caller adds here, for
        example `renderer.message("tool", renderer.quote(branch.messages[-1].ids))`. Branches may run at the same time.
        """
        own = self.messages if messages is None else messages
        return Conversation(self._policy, self._renderer, self.turns.branch(), own, self._tools)

    async def compact(
        self, request: Message, max_new_tokens: int, *, heading: str = SUMMARY, trained: bool = True
    ) -> Completion:
        """Let the policy sum the conversation up, and replace all but its first message by the summary.

        `request` asks for the summary at the end of the conversation; both it and the reply are left out of what
        follows. The next prompt begins with the first message and a user's message of `heading` and the summary's ids.

        Raises:
            RolloutError, PolicyError: as Turns.ask; the conversation is then unchanged.
        """
        asked = Conversation(self._policy, self._renderer, self.turns, [*self.messages, request], self._tools)
        completion = await asked.ask("summary", max_new_tokens, trained)
        summary = self._renderer.message("user", heading, self._renderer.quote(asked.messages[-1].ids))
        self.messages[1:] = [summary]
        return completion
