"""Baselines of the `tiny` preset: what comes of a history that is not summed up with care.

| variant | after a compaction the conversation holds |
|---|---|
| no-summary | the question alone |
| aimless-summary | facts drawn at random: the annotator of the warm start plays all turns, without mistakes |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from agentic.compaction.config import CompactionRecipe
from agentic.compaction.rollout import CompactingReader
from agentic.compaction.tiny.demonstrations import AimlessAnnotator
from core.policy.base import Roles
from core.rollout.conversation import Conversation
from core.rollout.method import Method
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task, Trajectory


class ForgetfulReader(CompactingReader):
    """Forgets all but the question where the method compacts."""

    def __init__(self, recipe: CompactionRecipe, tokenizer: Tokenizer):
        super().__init__(recipe.compaction, tokenizer)

    async def compact(self, chat: Conversation) -> None:
        del chat.messages[1:]


class AimlessReader(CompactingReader):
    """Lets the annotator play the policy."""

    def __init__(self, recipe: CompactionRecipe, tokenizer: Tokenizer):
        super().__init__(recipe.compaction, tokenizer)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        annotator = AimlessAnnotator(self.tokenizer, Random(sampling.seed))
        return await super().rollout(task, Roles({"policy": annotator}), sampling)


BASELINES: Mapping[str, Callable[[CompactionRecipe, Any], Method]] = {
    "no-summary": ForgetfulReader,
    "aimless-summary": AimlessReader,
}
