"""Logs what slime does not: failures by name, and the method's own metrics."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from core.backends.rollouts import NOTES, summarize_notes
from core.backends.slime.framework import framework_of
from core.backends.slime.samples import SlimeSample, group_samples, read_reward
from core.config import HealthSection
from core.runs.health import Health

logger = logging.getLogger(__name__)


def summarize(samples: Sequence[SlimeSample], reward_key: str | None = None) -> dict[str, float]:
    """Return mean reward, shares truncated and failed, failures by name, and means of the method's metrics.

    All are over rollouts. A failed one counts as reward 0 and has no metrics; a fanned-out one counts once.
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
    return {
        "reward": sum(read_reward(s, reward_key) for s in rollouts if s.reward is not None) / len(rollouts),
        **({"reward_std": pstdev(valid)} if valid else {}),
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
