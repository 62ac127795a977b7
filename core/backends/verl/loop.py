"""The agent loop that verl runs for each rollout of any method. verl finds it by a YAML file alone:

    actor_rollout_ref.rollout.agent.agent_loop_config_path: a list of

    - name: memagent                                        # the column `agent_name` of the data, or default_agent_loop
      _target_: core.backends.verl.loop.MethodAgentLoop
      recipe: /the/run/agentic_recipe.yaml                  # the resolved recipe, which names the method

Settings that contradict each other raise at the first call. After that nothing raises into verl for what a rollout
does: it ends within its deadline as rows, a failed one as one masked row under the name of its failure.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput

from core.backends.rollouts import NOTES, describe_rollout
from core.backends.verl.policy import VerlPolicy
from core.backends.verl.rollouts import name_files, open_once
from core.backends.verl.rows import make_verl_rows
from core.backends.verl.settings import read_recipe
from core.config import RecipeError
from core.rollout.runner import failed_trajectory
from core.types import RowUnit, Trajectory


class MethodAgentLoop(AgentLoopBase):
    """Runs one rollout of a recipe's method. verl makes an instance for each.

    verl's decorator `register` would put the class alone in the place of the YAML's entry, and `recipe` would be lost.
    """

    def __init__(self, *args: Any, recipe: str, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._recipe = recipe

    async def run(self, sampling_params: dict[str, Any], **fields: Any) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Run one rollout and return its rows: a list for the V1 trainer, one row for the older one.

        Raises:
            RecipeError: the recipe cannot be used, contradicts verl's settings, or a rollout of several rows meets the
                older trainer.
        """
        recipe = read_recipe(self.config, self._recipe)
        model, workers = self.config.actor_rollout_ref.model.path, self.rollout_config.agent.num_workers
        rollouts = await open_once(recipe, self._recipe, model, workers)
        policy = VerlPolicy(self.server_manager, self.rollout_config, rollouts.tokenizer)
        path = name_files(self.data_config.get("train_files"))
        trajectory = await rollouts.run(fields, path, policy, sampling_params)
        now = int(fields.get("global_steps", 0))
        outputs = make_outputs(trajectory, recipe.algorithm.rows, self.rollout_config.prompt_length, policy, now)
        if "session_id" in fields:  # the V1 trainer, whose workers put any number of rows into the queue
            return outputs
        if len(outputs) > 1:
            raise RecipeError(
                f"a rollout of {recipe.method} became {len(outputs)} rows, and verl's older trainer takes one: set "
                "trainer.use_v1=True, or algorithm.rows=segment for a method whose prompts only grow"
            )
        if (length := len(outputs[0].response_ids)) <= self.rollout_config.response_length:
            return outputs[0]
        why = f"the row has {length} tokens behind its prompt, response_length is {self.rollout_config.response_length}"
        late = failed_trajectory(trajectory.task_id, "response_length", why)
        return make_outputs(late, recipe.algorithm.rows, self.rollout_config.prompt_length, policy, now)[0]


def make_outputs(
    trajectory: Trajectory, unit: RowUnit, prompt_length: int, policy: VerlPolicy, now: int
) -> list[AgentLoopOutput]:
    """Make verl's output for each row of a rollout that `policy` sampled in the trainer's step `now`."""
    failed = trajectory.status == "failed"
    reward = 0.0 if failed or trajectory.reward is None else float(trajectory.reward)
    shared = {
        NOTES: {**describe_rollout(trajectory), "reward": None if failed else reward},
        "min_global_steps": min(policy.steps, default=now),
        "max_global_steps": max(policy.steps, default=now),
    }
    return [
        AgentLoopOutput(
            prompt_ids=row.prompt_ids,
            response_ids=row.response_ids,
            response_mask=row.response_mask,
            response_logprobs=row.logprobs,
            reward_score=reward,
            num_turns=len(trajectory.turns),
            metrics=AgentLoopMetrics(generate_sequences=policy.seconds),
            # verl reads the extra info of every row, and wants the same keys in all of a batch.
            extra_fields={**shared, "reward_extra_info": {"failed": float(failed)}},
        )
        for row in make_verl_rows(trajectory, unit, prompt_length)
    ]
