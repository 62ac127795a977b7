"""Runs a method inside slime: rollouts into Samples, Samples into training data, and what slime does not log itself:
failures by name, and the method's own metrics.

core/backends/slime/hooks.py gives these functions the names that slime imports by path. With `slime.rows: fan_out` a
rollout becomes one Sample for each trained turn or segment instead of one container Sample. slime's fully asynchronous
rollout then loses a group in which the engine aborted a call: it cannot take a fanned-out group back. vime's would end
the job, so it is refused.

Settings that contradict each other are an error at the first call. After that no hook raises for what one rollout or a
tracker does: every rollout ends within its deadline as a Sample, a failed one under the name of its failure. Only
`health.end_after` batches in a row without a valid rollout end the job.

`policy` is slime's default router. A role that `slime.roles` maps to a served model is that model's router, from
`args.sglang_model_routers`. Any other role is opened by core/rollout/roles.py. A `model:` is refused: a rollout worker
of slime has no place for one. On vime the arguments are `vllm_...`, and the routers speak vLLM's protocol.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from statistics import fmean, pstdev
from typing import Any

from core.backends.rollouts import ABORTED, NOTES, OpenOnce, summarize_notes
from core.backends.slime import rows
from core.backends.slime.framework import framework_of
from core.backends.slime.samples import (
    SlimeSample,
    fan_out,
    fill_sample,
    group_samples,
    read_outcome,
    read_reward,
    read_task,
    read_trajectory,
)
from core.backends.slime.settings import has_path, read_recipe, reward_key
from core.config import HealthSection, Recipe, RecipeError
from core.data.files import DataError
from core.policy.base import Policy
from core.policy.servers import make_server_policy
from core.rollout.method import MethodSpec, Regrade
from core.rollout.roles import open_roles
from core.rollout.runner import EmptyStepGuard, failed_trajectory, has_signal, regrade_group
from core.runs.health import Health
from core.text.tokenizer import Tokenizer
from core.types import Group, Sampling

logger = logging.getLogger(__name__)


class SlimeBridge:
    """Implements the hooks of one method. The first call reads the recipe and opens the policies of its event loop."""

    def __init__(self, spec: MethodSpec):
        self.spec = spec
        self.log = SlimeLog()
        self._checked: tuple[Any, Recipe] | None = None
        self._opened = OpenOnce()
        self.close = self._opened.close
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
        rollouts = await self._opened.get(self.spec, recipe, args.hf_checkpoint, partial(open_policies, args))
        read = partial(read_task, sample, str(getattr(args, "prompt_data", None)))
        sampling = Sampling(
            temperature=sampling_params["temperature"],
            top_p=sampling_params["top_p"],
            top_k=sampling_params["top_k"],
            seed=sampling_params.get(framework_of(args).seed_key),
        )
        session = sample.session_id or uuid.uuid4().hex
        trajectory = await rollouts.run(read, sampling, session, abort_flag(args))
        if evaluation and trajectory.failure == ABORTED:
            trajectory = replace(trajectory, failure="aborted_in_evaluation")
        key = reward_key(args, evaluation)
        try:
            last = trajectory.turns[-1].completion.token_ids if trajectory.turns else ()
            fill_sample(sample, trajectory, key, str(rollouts.tokenizer.decode(last)))  # slime shows it in its logs
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
        regrade = self.spec.regrade(recipe)
        self._end_if_all_failed(args, samples)
        return rows.make_train_data(
            samples,
            recipe.algorithm,
            rollouts_per_step=args.global_batch_size,
            reward_key=reward_key(args),
            regrade=partial(self._regrade, args, regrade) if regrade else None,
        )

    def post_process_rewards(self, args: Any, samples: Sequence[SlimeSample]) -> tuple[list[float], list[float]]:
        """Return the raw rewards and the advantages of the fanned-out Samples of one batch. Raises as `convert`."""
        self._end_if_all_failed(args, {sample.rollout_id: sample for sample in samples}.values())  # one of each rollout
        return rows.post_process_rewards(samples, self.recipe(args).algorithm, reward_key(args))

    def _end_if_all_failed(self, args: Any, rollouts: Iterable[SlimeSample]) -> None:
        trajectories = [read_outcome(sample, reward_key(args)) for sample in rollouts]
        if reason := self._guard.check(trajectories, self.recipe(args).health.end_after):
            raise RuntimeError(reason)

    def dynamic_filter(self, args: Any, group: Sequence[SlimeSample | list[SlimeSample]]) -> Any:
        """Keep a group whose valid rewards differ. After too many dropped groups, keep any group."""
        recipe = self.recipe(args)
        rollouts = [member[0] if isinstance(member, list) else member for member in group]
        if regrade := self.spec.regrade(recipe):  # it sees the rewards that `convert` will see
            read = [read_trajectory(sample, reward_key(args)) for sample in rollouts]
            trajectories = self._regrade(args, regrade, rollouts, read)
        else:
            trajectories = [read_outcome(sample, reward_key(args)) for sample in rollouts]
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
        recipe, metrics = self.recipe(args), summarize(samples, reward_key(args))
        if self.spec.regrade(recipe) is not None:  # rewards that compare a group are not known yet
            metrics = {
                name: value for name, value in metrics.items() if name not in ("reward_std", "groups_with_signal")
            }
        self.log.write(args, rollout_id, "rollout", {"rollout": metrics})
        self.log.warn(recipe.health, rollout_id, metrics)
        return False

    def eval_log(self, rollout_id: int, args: Any, data: Mapping[str, Any]) -> bool:
        """Log failures and metrics of each evaluation set."""
        key = reward_key(args, evaluation=True)
        sets = {f"eval/{name}": summarize(result.get("samples") or (), key) for name, result in data.items()}
        self.log.write(args, rollout_id, "eval", sets)
        return False

    def _regrade(self, args: Any, regrade: Regrade, samples: Sequence[SlimeSample], group: Group) -> Group:
        try:
            task = read_task(samples[0], str(getattr(args, "prompt_data", None)))
        except DataError:  # every rollout of this group has already failed as `bad_task`
            return group
        return regrade_group(regrade, task, group)


def summarize(samples: Sequence[SlimeSample], reward_key: str | None = None) -> dict[str, float]:
    """Return mean reward, shares truncated and failed, failures by name, and means of the method's metrics.

    All are over rollouts. A failed one counts as reward 0 and has no metrics; a fanned-out one counts once. Without a
    valid rollout there is no reward.
    """
    # The parts of a fanned-out rollout share a `rollout_id`; a container has none.
    rollouts = list({id(s) if s.rollout_id is None else s.rollout_id: s for s in samples}.values())
    if not rollouts:
        return {}
    notes = [sample.metadata.get(NOTES) or {} for sample in rollouts]
    rewards = [
        [read_reward(s, reward_key) for s in group if s.reward is not None and not s.remove_sample]
        for group in group_samples(rollouts)
    ]
    valid = [reward for group in rewards for reward in group]
    reward = sum(read_reward(s, reward_key) for s in rollouts if s.reward is not None) / len(rollouts)
    return {
        **({"reward": reward, "reward_std": pstdev(valid)} if valid else {}),
        "groups_with_signal": fmean(len(set(group)) > 1 for group in rewards),
        **summarize_notes(notes),
    }


class SlimeLog:
    """Sends metrics to slime's trackers. A tracker that fails costs a line in the log and a count, never the run."""

    def __init__(self) -> None:
        self.failures = 0
        self._health: Health | None = None

    def write(self, args: Any, rollout_id: int, stage: str, sets: Mapping[str, Mapping[str, float]]) -> None:
        """Send `sets`, a mapping of prefix -> metrics. `stage` is slime's word: `rollout` or `eval`."""
        metrics = {f"{prefix}/{name}": value for prefix, values in sets.items() for name, value in values.items()}
        logger.info("%s %d: %s", stage, rollout_id, metrics)
        try:
            framework, step_key = framework_of(args), f"{stage}/step"
            step = framework.module("observability.metric_utils").compute_rollout_step(args, rollout_id)
            framework.module("observability.logging_utils").log(args, {**metrics, step_key: step}, step_key=step_key)
        except Exception:
            self.failures += 1
            logger.exception("%s %d: slime's trackers took no metrics (failure %d)", stage, rollout_id, self.failures)

    def warn(self, settings: HealthSection, rollout_id: int, metrics: Mapping[str, Any]) -> None:
        """Log the signs of bad health that begin or end with these metrics."""
        self._health = self._health or Health(settings)
        try:
            for line in self._health.update(metrics):
                logger.warning("rollout %d: %s", rollout_id, line)
        except Exception as error:
            logger.error("rollout %d: its health is not known: %r", rollout_id, error)


@asynccontextmanager
async def open_policies(args: Any, recipe: Recipe, tokenizer: Tokenizer) -> AsyncIterator[dict[str, Policy]]:
    """Open all roles and close them at the end; yield role name -> Policy. No call outlives a rollout's deadline.

    Raises:
        RecipeError: slime serves no model of that name, or core.rollout.roles.open_roles raises it.
    """
    urls = router_urls(recipe, args)
    elsewhere = {role: place for role, place in recipe.roles.items() if role not in urls}
    async with AsyncExitStack() as stack:
        opened = {
            url: await stack.enter_async_context(make_server_policy(url, timeout_s=recipe.rollout.deadline_s))
            for url in set(urls.values())
        }
        others = await stack.enter_async_context(open_roles(recipe.model_copy(update={"roles": elsewhere}), tokenizer))
        yield {**others, **{role: opened[url] for role, url in urls.items()}}


def router_urls(recipe: Recipe, args: Any) -> dict[str, str]:
    """Return role -> URL of slime's router for it, as `make_server_policy` takes it."""
    framework = framework_of(args)
    host, port = (getattr(args, f"{framework.engine}_router_{part}") for part in ("ip", "port"))
    routers = getattr(args, f"{framework.engine}_model_routers", None) or {}
    urls = {"policy": framework.router(host, port)}
    for role, model in (recipe.slime.roles if recipe.slime else {}).items():
        if model not in routers:
            known = ", ".join(routers) or "none"
            raise RecipeError(
                f"slime.roles.{role}: {framework.name} serves no model {model!r} (known: {known}); see "
                + framework.flag("config")
            )
        urls[role] = framework.router(*routers[model])
    return urls


def abort_flag(args: Any) -> Callable[[], bool]:
    """Return a function that tells whether slime is aborting rollouts now; without slime installed it never is."""
    framework = framework_of(args)
    if find_spec(framework.name) is None:
        return lambda: False
    state = framework.module(f"rollout.{framework.engine}_rollout").GenerateState(args)
    return lambda: bool(state.aborted)
