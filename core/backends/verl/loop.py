"""The agent loop that verl runs for each rollout of any method. verl finds it by a YAML file alone:

    actor_rollout_ref.rollout.agent.agent_loop_config_path: a list of

    - name: tokentrue                                       # the column `agent_name` of the data, or default_agent_loop
      _target_: core.backends.verl.loop.MethodAgentLoop

The resolved recipe, which names the method, is the file that `agentic_recipe` of verl's configuration names.

Settings that contradict each other raise at the first call. After that nothing raises into verl for what a rollout
does: it ends within its deadline as rows, a failed one as one masked row under the name of its failure.
"""

from __future__ import annotations

import math
import uuid
from functools import partial
from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from core.backends.rollouts import NOTES, OpenOnce, describe_rollout
from core.backends.verl.data import read_row
from core.backends.verl.policy import VerlPolicy
from core.backends.verl.rows import make_verl_rows
from core.backends.verl.settings import read_recipe
from core.rollout.method import method_spec
from core.rollout.roles import open_roles
from core.types import RowUnit, Sampling, Trajectory

opened = OpenOnce()


class MethodAgentLoop(AgentLoopBase):
    """Runs one rollout of a recipe's method. verl makes an instance for each."""

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> list[AgentLoopOutput]:
        """Run one rollout and return its rows.

        Raises:
            RecipeError: the recipe cannot be used, or contradicts verl's settings.
        """
        recipe, config = read_recipe(self.config), self.rollout_config
        spec, model = method_spec(recipe.method), self.config.actor_rollout_ref.model.path
        concurrency = math.ceil(recipe.rollout.concurrency / config.agent.num_workers)  # the workers share it
        rollouts = await opened.get(spec, recipe, model, open_roles, concurrency)
        policy = VerlPolicy(self.server_manager, config, rollouts.tokenizer)
        read = partial(read_row, fields, self.data_config.get("train_files"))
        sampling = Sampling(**{name: sampling_params[name] for name in ("temperature", "top_p", "top_k")})
        trajectory = await rollouts.run(read, sampling, uuid.uuid4().hex, own={"policy": policy})
        now = int(fields.get("global_steps", 0))
        return make_outputs(trajectory, recipe.algorithm.rows, config.prompt_length, policy, now)


def make_outputs(
    trajectory: Trajectory, unit: RowUnit, prompt_length: int, policy: VerlPolicy, now: int
) -> list[AgentLoopOutput]:
    """Make verl's output for each row of a rollout that `policy` sampled in the trainer's step `now`."""
    failed = trajectory.status == "failed"
    reward = 0.0 if failed or trajectory.reward is None else float(trajectory.reward)
    shared = {
        NOTES: {**describe_rollout(trajectory), "reward": reward},
        "min_global_steps": min(policy.steps, default=now),
        "max_global_steps": max(policy.steps, default=now),
        # verl reads the extra info of every row, and wants the same keys in all of a batch.
        "reward_extra_info": {"failed": float(failed)},
    }
    return [
        AgentLoopOutput(
            **row._asdict(),
            reward_score=reward,
            num_turns=len(trajectory.turns),
            metrics=AgentLoopMetrics(generate_sequences=policy.seconds),
            extra_fields=dict(shared),
        )
        for row in make_verl_rows(trajectory, unit, prompt_length)
    ]
