"""MemAgent with a reward that an untrained model earns now and then, so that groups have a signal; and its faults.

A question with the word `raises` raises in the reward, one with `half` fails for every other rollout.
"""

from __future__ import annotations

from typing import Any

from agentic.memagent.config import PRESETS, MemAgentRecipe
from agentic.memagent.rollout import MemAgent
from core.rollout.method import MethodSpec, RolloutError, derive_seed
from core.slime.hooks import slime_hooks
from core.types import Task, Trajectory, Turn


class ScoredMemAgent(MemAgent):
    def scored(self, task: Task, turns: list[Turn], answer: str) -> Trajectory:
        """Reward 0 or 1, drawn by what was sampled."""
        sampled = derive_seed(*(turn.completion.token_ids for turn in turns))
        if "raises" in task.question:
            raise RuntimeError("the reward is broken")
        if "half" in task.question and sampled % 2:
            raise RolloutError("half", "every other one fails")
        trajectory = super().scored(task, turns, answer)
        return Trajectory(
            trajectory.task_id,
            trajectory.turns,
            trajectory.status,
            reward=float(sampled // 2 % 2) if "easy" not in task.question else 1.0,
            metrics=trajectory.metrics,
        )


def build(recipe: MemAgentRecipe, tokenizer: Any) -> ScoredMemAgent:
    return ScoredMemAgent(recipe.memagent, tokenizer)


SPEC = MethodSpec("memagent", MemAgentRecipe, PRESETS, build)
generate, reward_func, convert, post_process_rewards, dynamic_filter, rollout_log, eval_log = slime_hooks(SPEC)
