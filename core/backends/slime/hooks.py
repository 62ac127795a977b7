"""Gives a method the seven functions that slime imports by path from `agentic/<method>/rollout.py`.

    --custom-generate-function-path              agentic.<method>.rollout.generate
    --custom-rm-path                             agentic.<method>.rollout.reward_func
    --custom-convert-samples-to-train-data-path  agentic.<method>.rollout.convert
    --custom-reward-post-process-path            agentic.<method>.rollout.post_process_rewards
    --dynamic-sampling-filter-path               agentic.<method>.rollout.dynamic_filter
    --custom-rollout-log-function-path           agentic.<method>.rollout.rollout_log
    --custom-eval-rollout-log-function-path      agentic.<method>.rollout.eval_log
    --custom-config-path                         a YAML file whose key `agentic_recipe` holds the resolved recipe

A launch gives either `convert` (`slime.rows: container`) or `post_process_rewards` (`slime.rows: fan_out`).

This module imports next to nothing, so that a method's file stays light. The work is done in
core/backends/slime/bridge.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import Any

from core.rollout.method import MethodSpec

HOOKS = "generate reward_func convert post_process_rewards dynamic_filter rollout_log eval_log".split()
"""Names the functions that slime calls."""


class SlimeHooks:
    """Forwards slime's calls for one method to its SlimeBridge, which is imported at the first call.

    Each method has the signature that slime inspects.
    """

    def __init__(self, spec: MethodSpec):
        self.spec = spec

    @cached_property
    def bridge(self) -> Any:
        # By name, so that importing a method brings neither the bridge nor what the bridge imports.
        return import_module("core.backends.slime.bridge").SlimeBridge(self.spec)

    async def generate(
        self, args: Any, sample: Any, sampling_params: Mapping[str, Any], evaluation: bool = False
    ) -> Any:
        """Run one rollout and write it into `sample`. Return it, or a list of Samples when fanned out."""
        return await self.bridge.generate(args, sample, sampling_params, evaluation)

    async def reward_func(self, args: Any, sample: Any, **_: Any) -> Any:
        """Return the reward that the rollout already has; for a list of Samples, the list of theirs."""
        return await self.bridge.reward_func(args, sample)

    def convert(self, args: Any, samples: Sequence[Any]) -> dict[str, list[Any]]:
        """Make slime's training data from the container Samples of one batch."""
        return self.bridge.convert(args, samples)

    def post_process_rewards(self, args: Any, samples: Sequence[Any]) -> tuple[list[float], list[float]]:
        """Return the raw rewards and the advantages of fanned-out Samples."""
        return self.bridge.post_process_rewards(args, samples)

    def dynamic_filter(self, args: Any, group: Sequence[Any], **_: Any) -> Any:
        """Tell slime whether to keep a group: its valid rewards must differ."""
        return self.bridge.dynamic_filter(args, group)

    def rollout_log(self, rollout_id: int, args: Any, samples: Sequence[Any], metrics: Any, seconds: float) -> bool:
        """Log failures by name and the method's metrics. Return False, so that slime logs its own too."""
        return self.bridge.rollout_log(rollout_id, args, samples)

    def eval_log(self, rollout_id: int, args: Any, data: Mapping[str, Any], extra_metrics: Any = None) -> bool:
        """Log failures and metrics of each evaluation set. Return False, so that slime logs its own too."""
        return self.bridge.eval_log(rollout_id, args, data)
