"""slime's hooks, made from a method. The last line of `agentic/<method>/rollout.py` gives them the names that slime
imports by path:

    --custom-generate-function-path              agentic.<method>.rollout.generate
    --custom-convert-samples-to-train-data-path  agentic.<method>.rollout.convert
    --custom-rm-path                             agentic.<method>.rollout.reward_func
    --dynamic-sampling-filter-path               agentic.<method>.rollout.dynamic_filter
    --custom-rollout-log-function-path           agentic.<method>.rollout.rollout_log
    --custom-eval-rollout-log-function-path      agentic.<method>.rollout.eval_log
    --custom-config-path                         a YAML file whose key `agentic_recipe` holds the resolved recipe

With `--custom-reward-post-process-path agentic.<method>.rollout.post_process_rewards` in place of `convert`, a rollout
becomes one Sample for each trained turn (slime's fan-out) instead of one container. slime's fully asynchronous rollout
then loses a group in which the engine aborted a call: it cannot take a fanned-out one back.

Settings that contradict each other are an error at the first call. After that no hook raises for what a rollout or a
tracker does: a rollout ends within its deadline as a Sample, failed ones under the name of their failure.
"""

from __future__ import annotations

import asyncio
import logging
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from statistics import stdev
from typing import Any, NamedTuple

from core.config import Recipe
from core.data.files import DataError
from core.policy.base import Policy
from core.rollout.method import Method, MethodSpec, check_roles
from core.rollout.runner import Failures, Runner
from core.slime import rows
from core.slime.log import Log, summary
from core.slime.roles import RolloutRoles, abort_flag, open_policies
from core.slime.samples import ABORTED, fan_out, fill, reward_of, task_of, trajectory_of
from core.slime.settings import has_path, read_recipe, reward_key
from core.text.tokenizer import load_tokenizer
from core.types import Group, Sampling, Trajectory

logger = logging.getLogger(__name__)

EMPTY_BATCHES = 3
"""After so many training batches in a row without one valid rollout, training stops."""


class Hooks(NamedTuple):
    """The names under which slime finds them, in this order."""

    generate: Callable[..., Any]
    reward_func: Callable[..., Any]
    convert: Callable[..., Any]
    post_process_rewards: Callable[..., Any]
    dynamic_filter: Callable[..., Any]
    rollout_log: Callable[..., Any]
    eval_log: Callable[..., Any]


def slime_hooks(spec: MethodSpec) -> Hooks:
    made = SlimeHooks(spec)
    return Hooks(*(getattr(made, name) for name in Hooks._fields))


class SlimeHooks:
    """One method's hooks. What they hold is made at the first call: the recipe, and the policies of each event loop."""

    def __init__(self, spec: MethodSpec):
        self.spec = spec
        self.log = Log()
        self._checked: tuple[Any, Recipe] | None = None
        self._sites: dict[asyncio.AbstractEventLoop, tuple[Any, asyncio.Task[_Site]]] = {}
        self._dropped = self._empty = 0

    def recipe(self, args: Any) -> Recipe:
        """The recipe that came with slime's arguments.

        Raises:
            RecipeError: it is missing, broken, or contradicts slime's own arguments.
        """
        if self._checked is None or self._checked[0] is not args:
            self._checked = args, read_recipe(self.spec, args)
        return self._checked[1]

    async def generate(
        self, args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
    ) -> Any:
        """Run one rollout and write it into `sample`; a list of Samples when fanned out."""
        recipe, site = self.recipe(args), await self._site(args)
        trajectory = await site.run(sample, args, sampling_params, recipe.rollout.deadline_s)
        if evaluation and trajectory.failure == ABORTED:
            trajectory = replace(trajectory, failure="aborted_in_evaluation")
        key = reward_key(args, evaluation)
        try:
            fill(sample, trajectory, key, site.last_text(trajectory))
        except Exception as error:
            logger.exception("sample %s: its rollout cannot be written down", sample.index)
            fill(sample, _failed(f"exception_{type(error).__name__}", str(error)), key)
        alone = evaluation or has_path(args, "custom_convert_samples_to_train_data_path")
        return sample if alone or trajectory.failure == ABORTED else fan_out(sample)

    async def reward_func(self, args: Any, sample: Any, **_: Any) -> Any:
        """The reward that the rollout already has, of a Sample or of each in a list; 0 for one that never ran."""
        if isinstance(sample, list):
            return [await self.reward_func(args, one) for one in sample]
        return 0.0 if sample.reward is None else reward_of(sample, reward_key(args))

    def convert(self, args: Any, samples: Sequence[Any]) -> dict[str, list[Any]]:
        """slime's training data from the containers of one batch (core.slime.rows).

        Raises:
            RuntimeError: for the third time in a row not one rollout of the batch is valid.
        """
        recipe = self.recipe(args)
        self._stop_without_rollouts(samples, reward_key(args))
        return rows.train_data(
            samples,
            recipe.algorithm,
            rollouts_per_step=args.global_batch_size,
            reward_key=reward_key(args),
            regrade=partial(self._regraded, args) if self.spec.regrade else None,
        )

    def _regraded(self, args: Any, samples: Sequence[Any], group: Group) -> Sequence[Trajectory]:
        assert self.spec.regrade is not None
        try:
            task = task_of(samples[0], str(getattr(args, "prompt_data", None)))
        except DataError:  # for which every rollout of the group has failed already, as `bad_task`
            return group
        return self.spec.regrade(self.recipe(args), task, group)

    def post_process_rewards(self, args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Raw and normalised rewards of fanned-out Samples."""
        return rows.post_process_rewards(samples, self.recipe(args).algorithm, reward_key(args))

    def dynamic_filter(self, args: Any, group: Sequence[Any], **_: Any) -> Any:
        """Keep a group whose valid rewards differ. After `filter_rounds` batches without one, keep what comes."""
        recipe, rollout = self.recipe(args), self.recipe(args).rollout
        members = [member[0] if isinstance(member, list) else member for member in group]
        rewards = self._rewards(args, members)
        signal = len(set(rewards)) > 1 and stdev(rewards) >= recipe.algorithm.min_group_std
        keep = signal or self._dropped >= rollout.filter_rounds * rollout.tasks_per_step
        self._dropped = 0 if signal else self._dropped + 1
        return _filter_output(keep, "zero_std" if rewards else "all_failed")

    def _rewards(self, args: Any, samples: Sequence[Any]) -> list[float]:
        """Those of a group's valid rollouts, as `convert` will see them."""
        key = reward_key(args)
        if self.spec.regrade is None:
            return [reward_of(sample, key) for sample in samples if not sample.remove_sample]
        group = self._regraded(args, samples, [trajectory_of(sample, key) for sample in samples])
        return [t.reward for t in group if t.status != "failed" and t.reward is not None]

    def rollout_log(self, rollout_id: int, args: Any, samples: Sequence[Any], metrics: Any, seconds: float) -> bool:
        """Failures by name and the method's metrics, beside what slime logs itself."""
        self.log.write(args, rollout_id, "rollout", {"rollout": summary(samples, reward_key(args))})
        return False

    def eval_log(self, rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Any = None) -> bool:
        """The same for each evaluation set."""
        key = reward_key(args, evaluation=True)
        sets = {f"eval/{name}": summary(found.get("samples") or (), key) for name, found in data.items()}
        self.log.write(args, rollout_id, "eval", sets)
        return False

    async def close(self) -> None:
        """Close this event loop's connections. slime never asks; its process ends."""
        _, opening = self._sites.pop(asyncio.get_running_loop(), (None, None))
        if opening is not None:
            site = await opening
            await site.stack.aclose()

    async def _site(self, args: Any) -> _Site:
        """Opened once; the rollouts that come meanwhile wait for the same opening."""
        loop = asyncio.get_running_loop()
        opened_for, opening = self._sites.get(loop, (None, None))
        if opening is None or opened_for is not args:
            opening = asyncio.create_task(_open(self.spec, self.recipe(args), args))
            self._sites[loop] = args, opening
        return await asyncio.shield(opening)

    def _stop_without_rollouts(self, samples: Sequence[Any], reward_key: str | None) -> None:
        failures = Failures()
        for sample in samples:
            trajectory = trajectory_of(sample, reward_key)
            if trajectory.status != "failed":
                self._empty = 0
                return
            failures.add(trajectory)
        self._empty += 1
        logger.error("every rollout of this batch failed: %s", failures.describe())
        if self._empty >= EMPTY_BATCHES:
            raise RuntimeError(f"every rollout of {self._empty} batches in a row failed: {failures.describe()}")


@dataclass
class _Site:
    """What the rollouts of one event loop share."""

    method: Method
    policies: Mapping[str, Policy]
    tokenizer: Any
    aborting: Callable[[], bool]
    stack: AsyncExitStack

    async def run(self, sample: Any, args: Any, params: Mapping[str, Any], deadline_s: float) -> Trajectory:
        try:
            task = task_of(sample, str(getattr(args, "prompt_data", None)))
        except DataError as error:
            return _failed("bad_task", str(error))
        roles = RolloutRoles(self.policies, sample.session_id or uuid.uuid4().hex, self.aborting)
        sampling = Sampling(
            temperature=params["temperature"],
            top_p=params["top_p"],
            top_k=params["top_k"],
            seed=params.get("sampling_seed"),
        )
        # slime's own semaphore bounds how many rollouts run at once.
        trajectory = await Runner(self.method, roles, concurrency=1, deadline_s=deadline_s).run_one(task, sampling)
        if roles.aborted:
            return _failed(ABORTED, "a call of this rollout was aborted")
        if trajectory.status != "failed" and (trajectory.reward is None or not math.isfinite(trajectory.reward)):
            return _failed("bad_reward", f"task {task.task_id}: the reward is {trajectory.reward}, not a finite number")
        return trajectory

    def last_text(self, trajectory: Trajectory) -> str:
        """For slime's logs."""
        return str(self.tokenizer.decode(trajectory.turns[-1].completion.token_ids)) if trajectory.turns else ""


async def _open(spec: MethodSpec, recipe: Recipe, args: Any) -> _Site:
    tokenizer = load_tokenizer(args.hf_checkpoint)
    async with AsyncExitStack() as stack:
        method = spec.build(recipe, tokenizer)
        stack.push_async_callback(method.close)
        policies = await stack.enter_async_context(open_policies(recipe, args, tokenizer))
        check_roles(method, policies)
        return _Site(method, policies, tokenizer, abort_flag(args), stack.pop_all())


def _failed(kind: str, message: str) -> Trajectory:
    return Trajectory("", turns=(), status="failed", failure=kind, log={"error": message})


def _filter_output(keep: bool, reason: str) -> Any:
    """slime's own type, so that it counts the reason."""
    from slime.rollout.filter_hub.base_types import DynamicFilterOutput

    return DynamicFilterOutput(keep=keep, reason=None if keep else reason)
