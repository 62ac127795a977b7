"""Skeleton: the policy opens a box of its choice, sees what is in it, and answers.

It is the start of a method of your own: `rollout` makes a Task a Trajectory, whose reward trains the policy.

Run:  tokentrue run agentic/skeleton  # preset tiny: two CPU cores, minutes
"""

from __future__ import annotations

from pathlib import Path

from pydantic import PositiveInt

from core.config import Recipe, Section
from core.policy.base import Roles
from core.rewards.answer_grader import find_answer, is_accepted
from core.rollout.conversation import Conversation
from core.rollout.method import Method, MethodSpec, find_hook
from core.rollout.turns import begin_turns
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task, Trajectory

INSTRUCTIONS = "\nName a box to open it. Then answer in \\boxed{}."


class SkeletonSection(Section):
    max_looks: PositiveInt = 1
    """Limits the boxes that the policy may open."""
    max_reply_tokens: PositiveInt = 8


class SkeletonRecipe(Recipe):
    skeleton: SkeletonSection


class SkeletonRollout(Method):
    def __init__(self, recipe: SkeletonRecipe, tokenizer: Tokenizer):
        self.config = recipe.skeleton
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Show the policy each box that it names, until it answers. The reward is 1 for a right answer, else 0."""
        boxes = dict(line.split(": ", 1) for line in task.context.splitlines())
        turns = begin_turns(sampling, self.tokenizer)
        question = self.renderer.message("user", task.question, INSTRUCTIONS)
        chat = Conversation(roles["policy"], self.renderer, turns, [question])
        while (reply := await self.ask(chat)) in boxes and len(turns.recorded) <= self.config.max_looks:
            chat.messages.append(self.renderer.message("tool", boxes[reply]))
        cut = reply in boxes or turns.recorded[-1].completion.finish_reason == "length"
        return Trajectory(
            task_id=task.task_id,
            turns=tuple(turns.recorded),
            status="truncated" if cut else "completed",
            reward=float(is_accepted(find_answer(reply), task.answers)),
            metrics={"turns": len(turns.recorded)},
            log={"answer": reply},
        )

    async def ask(self, chat: Conversation) -> str:
        """Return the text of the policy's next message."""
        completion = await chat.ask("act", self.config.max_reply_tokens)
        return str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True)).strip()


PRESETS = Path(__file__).parent / "presets"
SPEC = MethodSpec(
    "skeleton",  # a line each: the names of a copy may be long
    SkeletonRecipe,
    PRESETS,
    SkeletonRollout,
    needs_context=True,
)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
