"""Runs one rollout of a method inside a backend's own loop, which decides when it starts and may break it off.

The backend gives the policies of all roles, its session, and a function that tells whether it is aborting. Whatever
happens, the rollout ends within its deadline as a Trajectory, a failed one under the name of its failure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from core.policy.base import Policy, Roles
from core.rollout.method import Method, RolloutError
from core.rollout.rows import count_trained_tokens
from core.rollout.runner import Runner, failed_trajectory
from core.runs.health import share_cut_off
from core.types import Completion, Sampling, Task, Trajectory

ABORTED = "aborted"
"""Names the failure of a rollout that the backend itself broke off, and may run again."""

NOTES = "agentic"
"""Names the key under which a backend's records hold what `describe_rollout` returns."""


async def run_rollout(
    method: Method, task: Task, sampling: Sampling, roles: AbortableRoles, deadline_s: float
) -> Trajectory:
    """Run one rollout. A failure, an abort, and a reward that is no finite number are Trajectories too."""
    # The backend bounds how many rollouts run at once.
    trajectory = await Runner(method, roles, concurrency=1, deadline_s=deadline_s).run_one(task, sampling)
    if roles.aborted:
        return failed_trajectory("", ABORTED, "a call of this rollout was aborted")
    return trajectory


class AbortableRoles(Roles):
    """Holds the roles of one rollout. All its calls carry the backend's session, whatever the method says.

    While the backend aborts, the rollout ends at its next call. `aborted` tells whether a call was aborted, even if the
    method went on without it.
    """

    def __init__(self, policies: Mapping[str, Policy], session: str, aborting: Callable[[], bool]):
        super().__init__({role: _AbortablePolicy(policy, self) for role, policy in policies.items()})
        self.session = session
        self.aborting = aborting
        self.aborted = False

    def abort(self, why: str) -> RolloutError:
        """Remember that the rollout was aborted; return the error to raise."""
        self.aborted = True
        return RolloutError(ABORTED, why)


class _AbortablePolicy:
    def __init__(self, policy: Policy, rollout: AbortableRoles):
        self._policy, self._rollout = policy, rollout

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        if self._rollout.aborting():
            raise self._rollout.abort("the backend has all the rollouts that it needs")
        completion = await self._policy.generate(prompt_ids, sampling, self._rollout.session)
        if completion.finish_reason == "abort":
            raise self._rollout.abort("the engine aborted the request")
        return completion


def describe_rollout(trajectory: Trajectory) -> dict[str, Any]:
    """Return what a backend's records tell of a rollout beside its tokens and its reward."""
    return {
        "status": trajectory.status,
        "failure": trajectory.failure,
        "error": str(trajectory.log.get("error", "")),
        "turns": len(trajectory.turns),
        "trained_tokens": count_trained_tokens(trajectory),
        "cut_off": share_cut_off(trajectory),
        "metrics": dict(trajectory.metrics),
    }


def summarize_notes(notes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return shares cut off, truncated and failed, failures by name, and means of the method's metrics.

    `notes` are those of `describe_rollout`; an empty one is of a rollout that never ran. Failed ones have no metrics.
    """
    done = [note["metrics"] for note in notes if note.get("status") in ("completed", "truncated")]
    failures = Counter(note.get("failure") or "never_ran" for note in notes if note.get("status", "failed") == "failed")
    names = sorted({name for metrics in done for name in metrics})
    cut = [note["cut_off"] for note in notes if note.get("cut_off") is not None]
    return {
        **({"cut_off": fmean(cut)} if cut else {}),
        "truncated": sum(note.get("status") == "truncated" for note in notes) / len(notes),
        "failed": failures.total() / len(notes),
        **{f"failures/{kind}": count for kind, count in failures.items()},
        **{name: sum(metrics.get(name, 0.0) for metrics in done) / len(done) for name in names},
    }
