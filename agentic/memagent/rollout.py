"""MemAgent: read a document of any length chunk by chunk, keeping a memory of fixed size that each turn overwrites.

Paper: "MemAgent: Reshaping Long-Context LLM with Multi-Conv RL-based Memory Agent", arXiv 2507.02259.
Ports studied: the official trainer (verl) and slime-agentic's (slime).

Departures from both, on purpose (a preset may undo those marked *):
1. Token ids from end to end. The official asynchronous path and slime-agentic's decode the memory and encode it again,
   so that the tokens trained are not the tokens sampled.
2. Special tokens that a model wrote are not carried into the next prompt, and none in a document are read as such.
3. A document without context or of more than `max_chunks` chunks fails by name* instead of being cut in silence.
4. Advantages are normalised per rollout, then given to turns; failed rollouts leave the baseline; no row is trimmed.
5. Options of ours, off in `seed` and `paper`*: chunks aligned to sentences or documents, the section before the memory,
   the KEEP gate.

Run:  bash agentic/memagent/run.sh                        # tiny: two CPU cores, minutes
      bash agentic/memagent/run.sh --preset paper --engine slime --dry-run
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agentic.memagent.chunks import split_chunks
from agentic.memagent.config import PRESETS, MemAgentRecipe, MemAgentSection
from agentic.memagent.prompts import EMPTY_MEMORY, KEEP, final_template, update_template
from core.policy.base import Roles
from core.rewards.math import boxed_reward
from core.rollout.method import Method, MethodSpec, RolloutError
from core.rollout.turns import Turns
from core.slime.hooks import SlimeHooks
from core.text.tokenizer import Ids, encode_text, special_ids
from core.types import Completion, Sampling, Task, Trajectory, Turn


class MemAgent(Method):
    """The method. Roles: `policy` writes the memory (turns `update`) and the answer (turn `final`)."""

    def __init__(self, config: MemAgentSection, tokenizer: Any):
        self.config, self.tokenizer = config, tokenizer
        self.update = update_template(tokenizer, config.prompt_style, config.prompt_order, config.gate_update)
        self.final = final_template(tokenizer, config.prompt_style)
        self.empty_memory = encode_text(tokenizer, EMPTY_MEMORY)
        self.special = special_ids(tokenizer)
        self.stop_ids = (tokenizer.eos_token_id,)

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        """One update turn for each chunk, then the final turn; the reward is that of the final answer."""
        policy, config = roles["policy"], self.config
        problem = encode_text(self.tokenizer, task.question)
        memory = self.empty_memory
        turns = Turns(replace(sampling, stop_token_ids=self.stop_ids))
        for section in self.sections(task):
            prompt = self.update.render(problem=problem, section=section, memory=memory)
            written = await turns.ask(policy, "update", prompt, config.max_memory_tokens, config.train_update)
            memory = self.next_memory(memory, written)
        prompt = self.final.render(problem=problem, memory=memory)
        answer = await turns.ask(policy, "final", prompt, config.max_final_tokens, config.train_final)
        return self.scored(task, turns.recorded, self.text(answer))

    def sections(self, task: Task) -> list[Ids]:
        """The chunks of the task's document.

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
            return chunks
        if self.config.overlong == "truncate_middle":
            return chunks[: limit - limit // 2] + chunks[len(chunks) - limit // 2 :]
        raise RolloutError(
            "overlong_document",
            f"task {task.task_id}: field `context` makes {len(chunks)} chunks of {self.config.chunk_tokens} tokens, "
            f"memagent.max_chunks is {limit}; raise it or set memagent.overlong=truncate_middle",
        )

    def next_memory(self, memory: Ids, written: Completion) -> Ids:
        """What was written replaces the memory whole; with the gate, KEEP leaves it as it was."""
        new = tuple(i for i in written.token_ids if i not in self.special)
        keep = self.config.gate_update and self.tokenizer.decode(new).strip() == KEEP
        return memory if keep else new

    def scored(self, task: Task, turns: list[Turn], answer: str) -> Trajectory:
        """The trajectory with MemAgent's training reward: the boxed answer equals one of the accepted ones."""
        updates = [turn.completion for turn in turns if turn.role == "update"]
        cut = sum(completion.finish_reason == "length" for completion in updates)
        return Trajectory(
            task_id=task.task_id,
            turns=tuple(turns),
            status="truncated" if turns[-1].completion.finish_reason == "length" else "completed",
            reward=boxed_reward(answer, task.answers),
            metrics={
                "turns": len(turns),
                "memory_tokens": sum(len(c.token_ids) for c in updates) / len(updates),
                "memory_cut": cut / len(updates),
                "answer_boxed": float("\\boxed" in answer),
            },
            log={"answer": answer},
        )

    def text(self, completion: Completion) -> str:
        """What a completion says, for reward and display only: text never goes back to the policy."""
        return str(self.tokenizer.decode(completion.token_ids, skip_special_tokens=True))


def build(recipe: MemAgentRecipe, tokenizer: Any) -> MemAgent:
    return MemAgent(recipe.memagent, tokenizer)


SPEC = MethodSpec("memagent", MemAgentRecipe, PRESETS, build, needs_context=True)

# slime imports these names by path.
hooks = SlimeHooks(SPEC)
generate = hooks.generate
reward_func = hooks.reward_func
convert = hooks.convert
post_process_rewards = hooks.post_process_rewards
dynamic_filter = hooks.dynamic_filter
rollout_log = hooks.rollout_log
eval_log = hooks.eval_log
