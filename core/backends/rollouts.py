"""Runs rollouts of a recipe's method inside a backend's own loop, which decides when one starts and may break it off.

The backend gives the policies of all roles, its session, and a function that tells whether it is aborting. Whatever
happens, a rollout ends within its deadline as a Trajectory, a failed one under the name of its failure.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from core.config import AlgorithmSection, Recipe
from core.data.files import DataError
from core.policy.base import Policy, Roles
from core.rollout.method import Method, MethodSpec, RolloutError, check_roles
from core.rollout.rows import count_trained_tokens, rollout_advantages
from core.rollout.runner import Runner, failed_trajectory
from core.runs.health import average_metrics, share_cut_off
from core.text.tokenizer import Tokenizer, load_tokenizer
from core.types import POLICY, Completion, Group, Sampling, Task, Trajectory, Turn

ABORTED = "aborted"
"""Names the failure of a rollout that the backend itself broke off, and may run again."""

NOTES = "agentic"
"""Names the key under which a backend's records hold what `describe_rollout` returns."""


OpenPolicies = Callable[[Recipe, Tokenizer], AbstractAsyncContextManager[Mapping[str, Policy]]]
"""Opens the policies of a recipe's roles, and closes them at the end."""


@dataclass
class MethodRollouts:
    """Keeps what the rollouts of one recipe share in one event loop."""

    method: Method
    policies: Mapping[str, Policy]
    tokenizer: Tokenizer
    deadline_s: float
    reading: Mapping[str, Any] = field(default_factory=dict)
    """Holds the method's options of core.backends.records.read_task."""
    limit: AbstractAsyncContextManager[Any] = field(default_factory=nullcontext)
    """Bounds the rollouts in flight, unless the backend does."""
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def run(
        self,
        read: Callable[[Mapping[str, Any]], Task],
        sampling: Sampling,
        session: str,
        aborting: Callable[[], bool] = lambda: False,
        own: Mapping[str, Policy] | None = None,
    ) -> Trajectory:
        """Run a rollout of the task that `read` returns for `reading`; `own` are policies of this rollout alone.

        A failure, an abort, and a reward that is no finite number are Trajectories too.
        """
        try:
            task = read(self.reading)
        except DataError as error:
            return failed_trajectory("", "bad_task", str(error))
        roles = AbortableRoles({**self.policies, **(own or {})}, session, aborting)
        async with self.limit:
            runner = Runner(self.method, roles, concurrency=1, deadline_s=self.deadline_s)
            trajectory = await runner.run_one(task, sampling)
        if roles.aborted:
            return failed_trajectory("", ABORTED, "a call of this rollout was aborted")
        if any(turn.advantage is not None for turn in trajectory.turns):
            reason = "its turns have advantages of their own, which only the embedded backend keeps"
            return failed_trajectory(task.task_id, "own_advantage", reason)
        return trajectory


async def open_rollouts(
    spec: MethodSpec, recipe: Recipe, model: str, open_policies: OpenPolicies, concurrency: int | None = None
) -> MethodRollouts:
    """Open a recipe's method and policies; `model` is the folder of the tokenizer.

    Raises:
        RecipeError: a role is missing, or has no place here.
    """
    tokenizer = load_tokenizer(model)
    async with AsyncExitStack() as stack:
        method = spec.build(recipe, tokenizer)
        stack.push_async_callback(method.close)
        policies = await stack.enter_async_context(open_policies(recipe, tokenizer))
        check_roles(method, {*policies, "policy"})
        return MethodRollouts(
            method,
            policies,
            tokenizer,
            recipe.rollout.deadline_s,
            spec.reading_options(recipe),
            asyncio.Semaphore(concurrency) if concurrency else nullcontext(),
            stack.pop_all(),
        )


class OpenOnce:
    """Opens the rollouts of a recipe once in each event loop; those that come meanwhile wait for the same opening."""

    def __init__(self) -> None:
        self._opened: dict[asyncio.AbstractEventLoop, tuple[Recipe, asyncio.Task[MethodRollouts]]] = {}

    async def get(self, spec: MethodSpec, recipe: Recipe, *options: Any) -> MethodRollouts:
        """Return what `open_rollouts` opens. Raises RecipeError as it does."""
        loop = asyncio.get_running_loop()
        opened_for, opening = self._opened.get(loop, (None, None))
        if opening is None or opened_for is not recipe:
            opening = asyncio.create_task(open_rollouts(spec, recipe, *options))
            self._opened[loop] = recipe, opening
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close what this event loop opened. Tests call it; a backend's process just ends."""
        _, opening = self._opened.pop(asyncio.get_running_loop(), (None, None))
        if opening is not None:
            await (await opening).stack.aclose()


class AbortableRoles(Roles):
    """Holds the roles of one rollout. All its calls carry the backend's session, whatever the method says.

    While the backend aborts, the rollout ends at its next call. `aborted` tells whether a call was aborted, even if the
    method went on without it.
    """

    def __init__(self, policies: Mapping[str, Policy], session: str, aborting: Callable[[], bool]):
        super().__init__({role: _AbortablePolicy(role, policy, self) for role, policy in policies.items()})
        self.session = session
        self.aborting = aborting
        self.aborted = False

    def abort(self, why: str) -> RolloutError:
        """Remember that the rollout was aborted; return the error to raise."""
        self.aborted = True
        return RolloutError(ABORTED, why)


class _AbortablePolicy:
    def __init__(self, role: str, policy: Policy, rollout: AbortableRoles):
        self._policy, self._rollout = policy, rollout
        self.trained_as = POLICY if role == POLICY else None  # no other role is trained on a cluster

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


def read_notes(task_id: str, notes: Mapping[str, Any], reward: float | None, turns: Iterable[Turn] = ()) -> Trajectory:
    """Read the Trajectory that `describe_rollout` told of, with what it does not tell. A failed one has no reward."""
    return Trajectory(
        task_id=task_id,
        turns=tuple(turns),
        status=notes["status"],
        reward=None if notes["status"] == "failed" else reward,
        failure=notes["failure"],
        metrics=notes["metrics"],
        log={"error": notes["error"]},
    )


def credit_rollouts(
    group: Group, notes: Sequence[Mapping[str, Any]], algorithm: AlgorithmSection
) -> list[float | None]:
    """Return the advantage of each rollout of a group as `rollout_advantages`; `notes` count what each held."""
    options = algorithm.row_options()
    del options["rows"]
    turns, tokens = ([one[name] for one in notes] for name in ("turns", "trained_tokens"))
    return rollout_advantages(group, turns, tokens, **options)


def summarize_notes(notes: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return shares cut off, truncated and failed, failures by name, and the method's metrics as `average_metrics`.

    `notes` are those of `describe_rollout`; an empty one is of a rollout that
    never ran. Failed ones have no metrics.
    """
    done = [note["metrics"] for note in notes if note.get("status") in ("completed", "truncated")]
    failures = Counter(note.get("failure") or "never_ran" for note in notes if note.get("status", "failed") == "failed")
    cut = [note["cut_off"] for note in notes if note.get("cut_off") is not None]
    return {
        **({"cut_off": fmean(cut)} if cut else {}),
        "truncated": sum(note.get("status") == "truncated" for note in notes) / len(notes),
        "failed": failures.total() / len(notes),
        **{f"failures/{kind}": count for kind, count in failures.items()},
        **average_metrics(done),
    }
