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
   before the memory. So are those of later papers: the gates of GRU-Mem (gates.py), the recall of ReMemR1 (recall.py).

Run:  bash agentic/memagent/run.sh                        # tiny: two CPU cores, minutes
      bash agentic/memagent/run.sh --preset paper --backend slime --dry-run
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentic.memagent.chunks import SharedResults, split_chunks
from agentic.memagent.config import PRESETS, MemAgentRecipe, MemAgentSection
from agentic.memagent.gates import find_evidence, reward_exit, reward_update
from agentic.memagent.notes import Note, read_note
from agentic.memagent.prompts import AnswerFormat, make_final_template, make_update_template
from agentic.memagent.recall import find_memory, reward_recall
from core.policy.base import Roles
from core.rewards.answer_grader import find_answer, is_accepted
from core.rewards.answers import strip_thoughts
from core.rewards.qa import extract_the_answer_is
from core.rollout.method import Method, MethodSpec, RolloutError, find_hook
from core.rollout.turns import Turns
from core.text.tokenizer import Ids, Tokenizer, encode_text, special_ids
from core.types import Completion, Sampling, Task, Trajectory, Turn

THREAD_CHARACTERS = 64 * 1024
"""Limits the documents that are encoded between two calls of the engine: about 50 ms for this many characters."""


class MemAgent(Method):
    """Runs the method. Its one role, `policy`, writes the memory (turns `update`) and the answer (turn `final`)."""

    def __init__(self, config: MemAgentSection, tokenizer: Tokenizer):
        self.config = config
        self.tokenizer = tokenizer
        gates = (config.gate_update, config.recall, config.gate_exit)
        self.update = make_update_template(tokenizer, config.prompt_style, config.prompt_order, *gates)
        self.final = make_final_template(tokenizer, config.prompt_style, config.answer_format, config.recall)
        self.empty_memory = encode_text(tokenizer, config.empty_memory)
        self.special = special_ids(tokenizer)
        self.stop_ids = (tokenizer.eos_token_id,)
        self._shared: SharedResults[tuple[list[Ids], int]] = SharedResults()

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """Update the memory once for each chunk, then answer from the memory alone; reward the final answer."""
        policy, config = roles["policy"], self.config
        problem = encode_text(self.tokenizer, task.question)
        memory, recalled = self.empty_memory, Ids()
        turns = Turns(replace(sampling, stop_token_ids=self.stop_ids))
        sections, left_out = await self.share_sections(task)
        evidence = find_evidence(task, [*map(self.tokenizer.decode, sections)]) if config.gate_rewards else []
        notes = list[Note]()
        for section in sections:
            prompt = self.update_prompt(problem, section, memory, recalled)
            completion = await turns.ask(policy, "update", prompt, config.max_memory_tokens, config.train_update)
            note = self.read_note(memory, completion)
            found = Ids()
            if note.query:
                found = find_memory(note.query, [each.memory for each in notes], note.memory, self.tokenizer)
            if config.rewards_turns:
                turns.credit(
                    "update", reward=self.reward_turn(task, prompt, memory, note, found, evidence[len(notes) :])
                )
            notes.append(note)
            memory, recalled = note.memory, found
            if note.stops:
                break
        prompt = self.final_prompt(problem, memory, recalled)
        completion = await turns.ask(policy, "final", prompt, config.max_final_tokens, config.train_final)
        trajectory = self.make_trajectory(task, turns.recorded, self.decode(completion), left_out)
        return self.add_options(trajectory, notes, evidence)

    def update_prompt(self, problem: Ids, section: Ids, memory: Ids, recalled: Ids = ()) -> Ids:
        return self.update.render(problem=problem, section=section, memory=memory, recalled=recalled)

    def final_prompt(self, problem: Ids, memory: Ids, recalled: Ids = ()) -> Ids:
        return self.final.render(problem=problem, memory=memory, recalled=recalled)

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

    def read_note(self, memory: Ids, completion: Completion) -> Note:
        """Read the completion of an update that followed `memory`, without its special tokens."""
        written = tuple(i for i in completion.token_ids if i not in self.special)
        return read_note(written, memory, self.config, self.tokenizer.decode)

    def reward_turn(
        self, task: Task, prompt: Ids, old: Ids, note: Note, found: Ids, evidence: Sequence[bool]
    ) -> float | None:
        """Return what one update earns by the options that reward turns; `evidence` begins with its section."""
        earned = list[float]()
        if self.config.gate_update and evidence:
            earned.append(reward_update(note.kept, evidence[0]))
        if self.config.recall_reward:
            texts = map(self.tokenizer.decode, (prompt, old, note.memory, found))
            earned.append(reward_recall(task.answers, *texts))
        return sum(earned) if earned else None

    def add_options(self, trajectory: Trajectory, notes: Sequence[Note], evidence: Sequence[bool]) -> Trajectory:
        """Add the metrics of the options that are on, and what the end of the reading earned."""
        config, metrics, reward = self.config, dict(trajectory.metrics), trajectory.reward
        if config.gate_update:
            metrics["kept"] = sum(note.kept for note in notes) / len(notes)
        if config.recall:
            metrics["recalls"] = sum(bool(note.query) for note in notes) / len(notes)
        if config.gate_exit:
            metrics["stopped"] = float(notes[-1].stops)
            if evidence and reward is not None:
                metrics["exit_reward"] = reward_exit(len(notes), evidence)
                reward += metrics["exit_reward"]
        return replace(trajectory, metrics=metrics, reward=reward)

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
            },
            log={"answer": answer},
        )

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
    left_out={
        "chunks_left_out": "chunks of the middle of their document (memagent.overlong is truncate_middle; raise "
        "memagent.max_chunks with --set)"
    },
)
__getattr__ = find_hook  # by these names a backend imports its hooks from here
