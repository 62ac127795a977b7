"""The seven functions that slime and vime import by path, for all methods.

    --custom-generate-function-path              core.backends.slime.hooks.generate
    --custom-rm-path                             core.backends.slime.hooks.reward_func
    --custom-convert-samples-to-train-data-path  core.backends.slime.hooks.convert
    --custom-reward-post-process-path            core.backends.slime.hooks.post_process_rewards
    --dynamic-sampling-filter-path               core.backends.slime.hooks.dynamic_filter
    --custom-rollout-log-function-path           core.backends.slime.hooks.rollout_log
    --custom-eval-rollout-log-function-path      core.backends.slime.hooks.eval_log
    --custom-config-path                         a YAML file whose key `agentic_recipe` holds the resolved recipe

The recipe names the method. A launch gives either `convert` (`slime.rows: container`) or `post_process_rewards`
(`slime.rows: fan_out`). Each function has the signature that slime inspects.

Scripts may name a method's file instead, such as `agentic.memagent.rollout.generate` (core/rollout/method.py,
`find_hook`): it is the same function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from core.backends.slime.bridge import SlimeBridge
from core.backends.slime.settings import method_name
from core.rollout.method import method_spec

__all__ = ["convert", "dynamic_filter", "eval_log", "generate", "post_process_rewards", "reward_func", "rollout_log"]


async def generate(args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False) -> Any:
    """Run one rollout and write it into `sample`. Return it, or a list of Samples when fanned out."""
    return await find_bridge(args).generate(args, sample, sampling_params, evaluation)


async def reward_func(args: Any, sample: Any, **_: Any) -> Any:
    """Return the reward that the rollout already has; for a list of Samples, the list of theirs."""
    return await find_bridge(args).reward_func(args, sample)


def convert(args: Any, samples: Sequence[Any]) -> dict[str, list[Any]]:
    """Make slime's training data from the container Samples of one batch."""
    return find_bridge(args).convert(args, samples)


def post_process_rewards(args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
    """Return the raw rewards and the advantages of fanned-out Samples."""
    return find_bridge(args).post_process_rewards(args, samples)


def dynamic_filter(args: Any, group: Sequence[Any], **_: Any) -> Any:
    """Tell slime whether to keep a group: its valid rewards must differ."""
    return find_bridge(args).dynamic_filter(args, group)


def rollout_log(rollout_id: int, args: Any, samples: Sequence[Any], metrics: Any, seconds: float) -> bool:
    """Log failures by name and the method's metrics. Return False, so that slime logs its own too."""
    return find_bridge(args).rollout_log(rollout_id, args, samples)


def eval_log(rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Any = None) -> bool:
    """Log failures and metrics of each evaluation set. Return False, so that slime logs its own too."""
    return find_bridge(args).eval_log(rollout_id, args, data)


def find_bridge(args: Any) -> SlimeBridge:
    """Return the bridge of the method that the recipe names. Raises RecipeError for one that is missing or unknown."""
    return open_bridge(method_name(args))


@cache
def open_bridge(method: str) -> SlimeBridge:
    """Return the one bridge of a method."""
    return SlimeBridge(method_spec(method))
