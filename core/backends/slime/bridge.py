"""Runs a method inside slime: rollouts into Samples, Samples into training data, and what slime logs about them.

core/backends/slime/hooks.py gives these functions the names that slime imports by path. With `slime.rows: fan_out` a
rollout becomes one Sample for each trained turn or segment instead of one container Sample. slime's fully asynchronous
rollout then loses a group in which the engine aborted a call: it cannot take a fanned-out group back.

Settings that contradict each other are an error at the first call. After that no hook raises for what a rollout or a
tracker does: every rollout ends within its deadline as a Sample, a failed one under the name of its failure.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from core.backends.rollouts import ABORTED, AbortableRoles, run_rollout
from core.backends.slime import rows
from core.backends.slime.framework import framework_of
from core.backends.slime.log import SlimeLog, summarize
from core.backends.slime.roles import abort_flag, open_policies
from core.backends.slime.samples import SlimeSample, fan_out, fill_sample, read_reward, read_task, read_trajectory
from core.backends.slime.settings import has_path, read_recipe, reward_key
from core.config import Recipe
from core.data.files import DataError
from core.policy.base import Policy
from core.rollout.method import Method, MethodSpec, check_roles
from core.rollout.runner import EmptyStepGuard, failed_trajectory, has_signal, regrade_group
from core.text.tokenizer import Tokenizer, load_tokenizer
from core.types import Group, Sampling, Trajectory

logger = logging.getLogger(__name__)


class SlimeBridge:
    """Implements the hooks of one method. The first call reads the recipe and opens the policies of its event loop."""

    def __init__(self, spec: MethodSpec):
        self.spec = spec
        self.log = SlimeLog()
        self._checked: tuple[Any, Recipe] | None = None
        self._resources: dict[asyncio.AbstractEventLoop, tuple[Any, asyncio.Task[LoopResources]]] = {}
        self._dropped_groups = 0
        self._guard = EmptyStepGuard()

    def recipe(self, args: Any) -> Recipe:
        """Return the recipe that came with slime's arguments.

        Raises:
            RecipeError: it is missing, broken, or contradicts slime's own arguments.
        """
        if self._checked is None or self._checked[0] is not args:
            self._checked = args, read_recipe(self.spec, args)
        return self._checked[1]

    async def generate(
        self, args: Any, sample: SlimeSample, sampling_params: Mapping[str, Any], evaluation: bool = False
    ) -> SlimeSample | list[SlimeSample]:
        """Run one rollout and write it into `sample`. Return it, or a list of Samples when fanned out."""
        recipe = self.recipe(args)
        resources = await self._open_once(args)
        trajectory = await resources.run(sample, args, sampling_params, recipe.rollout.deadline_s)
        if evaluation and trajectory.failure == ABORTED:
            trajectory = replace(trajectory, failure="aborted_in_evaluation")
        key = reward_key(args, evaluation)
        try:
            fill_sample(sample, trajectory, key, resources.decode_last(trajectory))
        except Exception as error:
            logger.exception("sample %s: its rollout cannot be written down", sample.index)
            fill_sample(sample, failed_trajectory("", f"exception_{type(error).__name__}", str(error)), key)
        container = evaluation or has_path(args, "custom_convert_samples_to_train_data_path")
        return sample if container or trajectory.failure == ABORTED else fan_out(sample, recipe.algorithm.rows)

    async def reward_func(self, args: Any, sample: SlimeSample | list[SlimeSample]) -> Any:
        """Return the reward of a Sample, or of each Sample of a list; 0 for one that never ran."""
        if isinstance(sample, list):
            return [await self.reward_func(args, one) for one in sample]
        return 0.0 if sample.reward is None else read_reward(sample, reward_key(args))

    def convert(self, args: Any, samples: Sequence[SlimeSample]) -> dict[str, list[Any]]:
        """Make slime's training data from the container Samples of one batch (core/backends/slime/rows.py).

        Raises:
            RuntimeError: no rollout is valid, in the last `health.end_after` batches in a row.
        """
        recipe = self.recipe(args)
        trajectories = [read_trajectory(sample, reward_key(args)) for sample in samples]
        if reason := self._guard.check(trajectories, recipe.health.end_after):
            raise RuntimeError(reason)
        return rows.make_train_data(
            samples,
            recipe.algorithm,
            rollouts_per_step=args.global_batch_size,
            reward_key=reward_key(args),
            regrade=partial(self._regrade, args) if self.spec.regrade else None,
        )

    def post_process_rewards(self, args: Any, samples: Sequence[SlimeSample]) -> tuple[list[float], list[float]]:
        """Return the raw rewards and the advantages of fanned-out Samples."""
        return rows.post_process_rewards(samples, self.recipe(args).algorithm, reward_key(args))

    def dynamic_filter(self, args: Any, group: Sequence[SlimeSample | list[SlimeSample]]) -> Any:
        """Keep a group whose valid rewards differ. After too many dropped groups, keep any group."""
        recipe = self.recipe(args)
        rollouts = [member[0] if isinstance(member, list) else member for member in group]
        trajectories = self._read_rewards(args, rollouts)
        signal = has_signal(trajectories, recipe.algorithm.min_group_std)
        limit = recipe.algorithm.max_num_gen_batches * recipe.rollout.tasks_per_step
        keep = signal or self._dropped_groups >= limit
        self._dropped_groups = 0 if signal else self._dropped_groups + 1
        all_failed = all(trajectory.status == "failed" for trajectory in trajectories)
        reason = "all_failed" if all_failed else "zero_std"
        types = framework_of(args).module("rollout.filter_hub.base_types")  # slime counts the reasons of its own type
        return types.DynamicFilterOutput(keep=keep, reason=None if keep else reason)

    def rollout_log(self, rollout_id: int, args: Any, samples: Sequence[SlimeSample]) -> bool:
        """Log failures by name, the method's metrics and the signs of bad health, beside what slime logs itself."""
        metrics = summarize(samples, reward_key(args))
        self.log.write(args, rollout_id, "rollout", {"rollout": metrics})
        self.log.warn(self.recipe(args).health, rollout_id, metrics)
        return False

    def eval_log(self, rollout_id: int, args: Any, data: Mapping[str, Any]) -> bool:
        """Log failures and metrics of each evaluation set."""
        key = reward_key(args, evaluation=True)
        sets = {f"eval/{name}": summarize(result.get("samples") or (), key) for name, result in data.items()}
        self.log.write(args, rollout_id, "eval", sets)
        return False

    async def close(self) -> None:
        """Close this event loop's connections. Tests call it; slime's process just ends."""
        _, opening = self._resources.pop(asyncio.get_running_loop(), (None, None))
        if opening is not None:
            resources = await opening
            await resources.stack.aclose()

    async def _open_once(self, args: Any) -> LoopResources:
        """Open the resources of this event loop; rollouts that come meanwhile wait for the same opening."""
        loop = asyncio.get_running_loop()
        opened_for, opening = self._resources.get(loop, (None, None))
        if opening is None or opened_for is not args:
            opening = asyncio.create_task(_open_resources(self.spec, self.recipe(args), args))
            self._resources[loop] = args, opening
        return await asyncio.shield(opening)

    def _regrade(self, args: Any, samples: Sequence[SlimeSample], group: Group) -> Sequence[Trajectory]:
        assert self.spec.regrade is not None
        try:
            task = read_task(samples[0], str(getattr(args, "prompt_data", None)))
        except DataError:  # every rollout of this group has already failed as `bad_task`
            return group
        return regrade_group(partial(self.spec.regrade, self.recipe(args)), task, group)

    def _read_rewards(self, args: Any, samples: Sequence[SlimeSample]) -> Sequence[Trajectory]:
        """Return a group with the rewards that `convert` will see. Fanned-out Samples have a reward but no turns."""
        key = reward_key(args)
        if self.spec.regrade is not None:
            return self._regrade(args, samples, [read_trajectory(sample, key) for sample in samples])
        return [
            failed_trajectory("", "removed", "")
            if sample.remove_sample
            else Trajectory("", (), reward=read_reward(sample, key))
            for sample in samples
        ]


@dataclass
class LoopResources:
    """Keeps what the rollouts of one event loop share."""

    method: Method
    policies: Mapping[str, Policy]
    tokenizer: Tokenizer
    aborting: Callable[[], bool]
    stack: AsyncExitStack
    reading: Mapping[str, Any] = field(default_factory=dict)

    async def run(self, sample: SlimeSample, args: Any, params: Mapping[str, Any], deadline_s: float) -> Trajectory:
        """Run the rollout of one Sample. A failure is a Trajectory too."""
        try:
            task = read_task(sample, str(getattr(args, "prompt_data", None)), self.reading)
        except DataError as error:
            return failed_trajectory("", "bad_task", str(error))
        sampling = Sampling(
            temperature=params["temperature"],
            top_p=params["top_p"],
            top_k=params["top_k"],
            seed=params.get(framework_of(args).seed_key),
        )
        roles = AbortableRoles(self.policies, sample.session_id or uuid.uuid4().hex, self.aborting)
        return await run_rollout(self.method, task, sampling, roles, deadline_s)

    def decode_last(self, trajectory: Trajectory) -> str:
        """Decode the last completion, which slime shows in its logs."""
        return str(self.tokenizer.decode(trajectory.turns[-1].completion.token_ids)) if trajectory.turns else ""


async def _open_resources(spec: MethodSpec, recipe: Recipe, args: Any) -> LoopResources:
    tokenizer = load_tokenizer(args.hf_checkpoint)
    async with AsyncExitStack() as stack:
        method = spec.build(recipe, tokenizer)
        stack.push_async_callback(method.close)
        policies = await stack.enter_async_context(open_policies(recipe, args, tokenizer))
        check_roles(method, policies)
        reading = spec.reading_options(recipe)
        return LoopResources(method, policies, tokenizer, abort_flag(args), stack.pop_all(), reading)
