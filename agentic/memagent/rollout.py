"""MemAgent: read a document of any length chunk by chunk, and rewrite a memory of fixed size after each chunk.

Paper: "MemAgent: Reshaping Long-Context LLM with Multi-Conv RL-based Memory Agent", arXiv 2507.02259.
Ports studied: the official trainer (verl) and slime-agentic's (slime).

Departures from both, on purpose (a preset may undo those marked *):
1. The memory stays token ids from end to end. The official asynchronous path and slime-agentic decode the memory and
   encode it again, so the tokens that are trained are not the tokens that were sampled.
2. A special token that the model wrote is left out of the next prompt. Text in a document never becomes one.
3. A task without a document, or with more than `max_chunks` chunks, fails with a name*. Nothing is cut silently.
4. Advantages are normalised over rollouts and then given to turns. A failed rollout leaves the baseline. No row is
   trimmed.
5. The reward grades the short answer in the last box (core/rewards/README.md). Both compare text without spaces.
6. Options of our own are off in `seed` and `paper`*: chunks that end between sentences or documents, and the section
   before the memory. So are those of later papers: the gates of GRU-Mem (gates.py), the recall of ReMemR1 (recall.py),
   the information reward of InfoMem (information.py).

Run:  bash agentic/memagent/run.sh                        # tiny: two CPU cores, minutes
      bash agentic/memagent/run.sh --preset paper --backend slime --dry-run
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentic.memagent.chunks import SharedResults, split_chunks
from agentic.memagent.config import PRESETS, MemAgentRecipe, MemAgentSection
from agentic.memagent.information import make_regrade, measure_answer
from agentic.memagent.prompts import AnswerFormat, final_message, update_message
from agentic.memagent.reading import Reading
from core.policy.base import Roles
from core.rewards.answer_grader import find_answer, is_accepted
from core.rewards.answers import strip_thoughts
from core.rewards.qa import extract_the_answer_is
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.rollout.turns import Turns
from core.text.tokenizer import Ids, Tokenizer, TokenTemplate, encode_text
from core.types import Completion, Sampling, Task, Trajectory, Turn

THREAD_CHARACTERS = 64 * 1024
"""Limits the documents that are encoded between two calls of the engine: about 50 ms for this many characters."""


class MemAgent(Method):
    """Runs the method. Its one role, `policy`, writes the memory (turns `update`) and the answer (turn `final`)."""

    def __init__(self, config: MemAgentSection, tokenizer: Tokenizer):
        self.config = config
        self.tokenizer = tokenizer
        options, recalled = (config.gate_update, config.recall, config.gate_exit), ("recalled",) * config.recall
        update = update_message(config.prompt_style, config.prompt_order, *options)
        final = final_message(config.prompt_style, config.answer_format, config.recall)
        self.update = TokenTemplate(tokenizer, update, slots=("problem", "section", "memory", *recalled))
        self.final = TokenTemplate(tokenizer, final, slots=("problem", "memory", *recalled))
        self.empty_memory = encode_text(tokenizer, config.empty_memory)
        self.stop_ids = (tokenizer.eos_token_id,)
        self._shared: SharedResults[tuple[list[Ids], int]] = SharedResults()

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Update the memory once for each chunk, then answer from the memory alone; reward the final answer."""
        policy, config = roles["policy"], self.config
        problem = encode_text(self.tokenizer, task.question)
        turns = Turns(replace(sampling, stop_token_ids=self.stop_ids))
        sections, left_out = await self.share_sections(task)
        reading = Reading(config, self.tokenizer, task, sections, self.empty_memory)
        for section in reading.go_on():
            prompt = self.update.render(problem=problem, section=section, **reading.shown)
            completion = await turns.ask(policy, "update", prompt, config.max_memory_tokens, config.train_update)
            reading.take(completion.token_ids, turns)
        prompt = self.final.render(problem=problem, **reading.shown)
        completion = await turns.ask(policy, "final", prompt, config.max_final_tokens, config.train_final)
        return reading.complete(self.make_trajectory(task, turns.recorded, self.decode(completion), left_out))

    async def share_sections(self, task: Task) -> tuple[list[Ids], int]:
        """Return `sections` of the task, which are computed once for its whole group."""
        slow = len(task.context) > THREAD_CHARACTERS
        return await self._shared.find((task.task_id, task.context), lambda: self.sections(task), slow=slow)

    def sections(self, task: Task) -> tuple[list[Ids], int]:
        """Return the chunks of the task's document, and how many `truncate_middle` left out.

        Raises:
            RolloutError: there is no document, or it has more than `max_chunks` chunks and `overlong` is `error`.
        """
        if not task.context.strip():
            raise RolloutError(
                "no_context", f"task {task.task_id}: field `context` is empty; MemAgent needs a document"
            )
        chunks = split_chunks(self.tokenizer, task.context, self.config.chunk_tokens, self.config.align)
        limit = self.config.max_chunks
        if len(chunks) <= limit:
            return chunks, 0
        if self.config.overlong == "truncate_middle":
            return chunks[: limit - limit // 2] + chunks[len(chunks) - limit // 2 :], len(chunks) - limit
        raise RolloutError(
            "overlong_document",
            f"task {task.task_id}: field `context` makes {len(chunks)} chunks of {self.config.chunk_tokens} tokens, "
            f"memagent.max_chunks is {limit}; raise it or set memagent.overlong=truncate_middle",
        )

    def make_trajectory(self, task: Task, turns: list[Turn], answer: str, left_out: int) -> Trajectory:
        """Return the trajectory with its reward and metrics."""
        updates = [turn.completion for turn in turns if turn.role == "update"]
        cut = sum(completion.finish_reason == "length" for completion in updates)
        return Trajectory(
            task_id=task.task_id,
            turns=tuple(turns),
            status="truncated" if turns[-1].completion.finish_reason == "length" else "completed",
            reward=answer_reward(self.config.answer_format, answer, task.answers),
            metrics={
                "turns": len(turns),
                "memory_tokens": sum(len(c.token_ids) for c in updates) / len(updates),
                "memory_cut": cut / len(updates),
                "answer_boxed": float("\\boxed" in answer),
                "answered": float(read_answer(self.config.answer_format, answer) is not None),
                **({"chunks_left_out": left_out} if left_out else {}),
                **(measure_answer(turns[-1].completion, self.read) if self.config.information_reward else {}),
            },
            log={"answer": answer},
        )

    def read(self, ids: Ids) -> str | None:
        """Return the answer in what was sampled; None without one."""
        return read_answer(self.config.answer_format, self.tokenizer.decode(ids, skip_special_tokens=True))

    def decode(self, completion: Completion) -> str:
        """Return the text of a completion, for the reward and the log only: text never goes back to the policy."""
        return str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True))


def answer_reward(answer_format: AnswerFormat, response: str, accepted: Sequence[str]) -> float:
    """Return 1 if the answer in `response`, in the format that was asked for, equals an accepted one, and else 0."""
    return float(is_accepted(read_answer(answer_format, response), accepted))


def read_answer(answer_format: AnswerFormat, response: str) -> str | None:
    """Return the answer in `response`, in the format that was asked for; None without one."""
    return (find_answer if answer_format == "boxed" else extract_the_answer_is)(strip_thoughts(response))


def build(recipe: MemAgentRecipe, tokenizer: Tokenizer) -> MemAgent:
    return MemAgent(recipe.memagent, tokenizer)


SPEC = MethodSpec(
    "memagent",
    MemAgentRecipe,
    PRESETS,
    build,
    needs_context=True,
    regrade=make_regrade,
    left_out={
        "chunks_left_out": "chunks of the middle of their document (memagent.overlong is truncate_middle; raise "
        "memagent.max_chunks with --set)"
    },
)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
