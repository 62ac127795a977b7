"""Compaction: an agent reads a document page by page, and sums its conversation up whenever the context is full.

The history is then replaced by that summary, so a task may be many times as long as the context. Nobody says what a
summary should hold: it is a sampled, trained turn, and the outcome of the task is the only signal.

Related work: SUPO (arXiv 2510.06727) and CompactionRL (arXiv 2607.05378) train the summaries of agents that search,
call functions or write code by the outcome of the task. Here the one tool is `next`, which returns the next page. All
segments of a rollout get its advantage, and the rollout counts once in its group.

Algorithms that credit turns (turn_grpo, gigpo) read a reward of each summary that replaces pages or a summary with an
accepted answer in them: 1 if it still holds one, else 0. The state before a turn is the place in the document, with the
summary and the pages in the context.

Run:  bash agentic/compaction/run.sh                        # tiny: two CPU cores, minutes
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentic.compaction.config import PRESETS, CompactionRecipe
from agentic.compaction.prompts import END, HEADING, INSTRUCTIONS, NEXT, REQUEST
from core.policy.base import Roles
from core.rewards.answer_grader import find_answer, holds_answer, is_accepted
from core.rollout.conversation import Conversation
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.rollout.turns import begin_turns
from core.text.conversation import Message, Renderer
from core.text.tokenizer import Tokenizer
from core.text.tool_calls import split_thoughts
from core.types import Sampling, Task, Trajectory, Turn


class CompactingReader(Method):
    """Runs the method. Its one role, `policy`, calls the tool and answers (turns `act`), and writes the `summary`."""

    def __init__(self, recipe: CompactionRecipe, tokenizer: Tokenizer):
        self.config = recipe.compaction
        self.tokenizer = tokenizer
        self.renderer = Renderer(tokenizer)
        self.request = self.renderer.message("user", REQUEST)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Give the policy one page after the other until it answers; compact before a page would overfill the context.

        Raises:
            RolloutError: the task has no pages, or not even an empty conversation has room for one of them.
        """
        turns = begin_turns(sampling, self.tokenizer)
        opening = self.renderer.message("user", task.question, INSTRUCTIONS)
        chat = Conversation(roles["policy"], self.renderer, turns, [opening])
        pages = [*split_pages(task), END]
        shown = list[str]()  # the summary and the pages in the context
        reply = await self.act(chat, [str(len(pages)), *shown])
        while reply.strip() == NEXT and pages:
            text = pages.pop(0)
            page = self.renderer.message("tool", text)
            if not self.has_room(chat, page):
                await self.compact(chat)
                turns.credit("summary", state=[str(len(pages)), *shown])
                before, shown = shown, [self.read(message) for message in chat.messages[1:]]
                if holds_answer("\n".join(before), task.answers):
                    turns.credit("summary", reward=float(holds_answer("\n".join(shown), task.answers)))
            if not self.has_room(chat, page):
                raise RolloutError(
                    "overlong_page",
                    f"task {task.task_id}: field `context` has a page of {len(page.ids)} tokens, which does not fit "
                    f"into compaction.context_tokens={self.config.context_tokens} beside the question and a summary",
                )
            chat.messages.append(page)
            shown.append(text)
            reply = await self.act(chat, [str(len(pages)), *shown])
        return make_trajectory(task, turns.recorded, reply)

    async def act(self, chat: Conversation, state: Sequence[str]) -> str:
        """Return the text of the policy's next message behind its thoughts: a call of the tool, or an answer."""
        await chat.ask("act", self.config.max_action_tokens)
        chat.turns.credit("act", state=state)
        return split_thoughts(self.read(chat.messages[-1]))[1] or ""

    def read(self, message: Message) -> str:
        return str(self.tokenizer.decode(message.ids, skip_special_tokens=True))

    async def compact(self, chat: Conversation) -> None:
        """Replace all that follows the question by a summary that the policy writes."""
        config = self.config
        await chat.compact(self.request, config.max_summary_tokens, heading=HEADING, trained=config.train_summary)

    def has_room(self, chat: Conversation, page: Message) -> bool:
        """Return whether the context can hold the page, the policy's action, and after that still a summary."""
        action = Message("assistant", (0,) * self.config.max_action_tokens)
        needed = chat.count_tokens(page, action, self.request) + self.config.max_summary_tokens
        return needed <= self.config.context_tokens


def split_pages(task: Task) -> list[str]:
    """Return the pages of a task; an empty line ends a page.

    Raises:
        RolloutError: there are none.
    """
    pages = [page for page in re.split("\r?\n\r?\n", task.context) if page.strip()]
    if not pages:
        raise RolloutError(
            "no_context", f"task {task.task_id}: field `context` is empty; the agent needs pages to read"
        )
    return pages


def make_trajectory(task: Task, turns: list[Turn], reply: str) -> Trajectory:
    """Return the trajectory, whose reward is 1 if the last reply boxes an accepted answer, or is that number alone."""
    summaries = [turn.completion for turn in turns if turn.role == "summary"]
    cut = turns[-1].completion.finish_reason == "length" or reply.strip() == NEXT
    return Trajectory(
        task_id=task.task_id,
        turns=tuple(turns),
        status="truncated" if cut else "completed",
        reward=float(is_accepted(find_answer(reply), task.answers)),
        metrics={
            "turns": len(turns),
            "compactions": len(summaries),
            "summary_tokens": sum(len(s.token_ids) for s in summaries) / max(1, len(summaries)),
            "answer_boxed": float("\\boxed" in reply),
        },
        log={"answer": reply},
    )


SPEC = MethodSpec("compaction", CompactionRecipe, PRESETS, CompactingReader, needs_context=True)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
