"""Every backend trains every method on our rows, with our weights, whatever happens to the rollouts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, get_args

import pytest
import torch

from core.algorithms.coefficients import TURN_ESTIMATORS
from core.config import RecipeError
from core.types import AdvEstimator, Task
from tests.contract.backends.batch import Batch, assert_ours, play_again
from tests.contract.backends.case import Case
from tests.contract.backends.conftest import CASES
from tests.contract.backends.table import BACKENDS
from tests.contract.test_presets import METHODS

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]
Run = Callable[[dict[str, Any], list[Task]], Batch]
GROUPS = 200
"""Are run with --long."""
SEGMENTS = {
    "coding": {"act", "subagent", "summary"},
    "compaction": {"act", "summary"},
    "rlm": {"root", "subcall"},
}
"""Maps methods whose rollouts become several rows to the roles of their turns."""


WITHOUT_SANDBOX = ("compaction", "memagent", "search_r1")
"""Names methods whose rollouts take no time."""


def leave_to_long(request: pytest.FixtureRequest, *, unless: bool) -> None:
    """Skip without --long, unless it is needed, what our own trainer does alike for every method."""
    if not unless and request.node.callspec.params["run"] == "embedded":
        request.getfixturevalue("long")


@pytest.fixture(params=BACKENDS)
def run(request: pytest.FixtureRequest, case: Case) -> Run:
    return lambda values, tasks: BACKENDS[request.param](request, case, values, tasks)


def test_every_method_is_a_case() -> None:
    assert {case.spec.name for case in CASES.values()} == {*METHODS} - {"skeleton"}, "write scripted_METHOD.py"


@pytest.mark.timeout(0)
@pytest.mark.parametrize("steps", [1, 2])
def test_a_batch(run: Run, case: Case, steps: int, tokenizer: Any, request: pytest.FixtureRequest) -> None:
    """Rollouts of different lengths, groups that fail wholly and in part, in one optimizer step and in two."""
    leave_to_long(request, unless=steps == 1 or case.spec.name in WITHOUT_SANDBOX)
    tasks = list(case.faulty)
    if request.config.getoption("--long"):
        tasks = (tasks * GROUPS)[:GROUPS]
    values = case.recipe(tasks_per_step=len(tasks))
    values["algorithm"] |= {"num_steps_per_rollout": steps, "kl_loss_coef": 0.1}  # rows without advantage count, too
    values["optimizer"]["lr_decay_steps"] = None
    batch = run(values, tasks)
    assert len(batch.steps) == steps
    assert batch.tasks == tasks
    assert all(batch.tape[name].task == task for task, names in batch.names for name in names if name in batch.tape)
    groups = assert_ours(batch, case, values, tokenizer)
    failed = [Counter(batch.renamed.get(t.failure, t.failure) for t in group) for group in groups]
    for failure, whole in case.failures.items():
        counts = [counter[failure] for counter in failed if counter[failure]]
        assert counts
        size = values["rollout"]["group_size"]
        assert {count == size for count in counts} == {True} if whole else min(counts) < size
    assert {name for counter in failed for name in counter} == {None, *case.failures}
    assert len(Counter(len(t.turns) for group in groups for t in group if t.status != "failed")) > 2
    assert len({row.advantage for row in batch.rows}) > 2


@pytest.mark.parametrize("case", SEGMENTS, indirect=True)
@pytest.mark.parametrize("std_normalization", [True, False])
def test_segments_share_their_rollout_which_counts_once(
    run: Run, case: Case, std_normalization: bool, tokenizer: Any, request: pytest.FixtureRequest
) -> None:
    """Rollouts of a group have uneven numbers of rows: sub-agents, sub-calls and summaries begin new ones."""
    leave_to_long(request, unless=std_normalization or case.spec.name in WITHOUT_SANDBOX)
    values = case.recipe(group_size=8)
    values["algorithm"] |= {"std_normalization": std_normalization, "kl_loss_coef": 0.1}
    batch = run(values, list(case.faulty[2:6]))
    played = play_again(batch.tape, batch.names, case, case.spec.recipe.model_validate(values), tokenizer)
    first, uneven, roles = 0, 0, set[str]()
    for told, group in zip(batch.groups, played, strict=True):
        rewards = torch.tensor([one.reward for one in told], dtype=torch.float64)
        right = rewards - rewards.mean()
        right = right / (rewards.std() + 1e-6) if std_normalization else right
        sizes = set()
        for number, (trajectory, advantage) in enumerate(zip(group, right.tolist(), strict=True), start=first):
            rows, turns = [row for row in batch.rows if row.rollout_id == number], trajectory.turns
            assert [row.advantage for row in rows] == pytest.approx([advantage] * len(rows))
            # Each sampled token is trained once.
            assert sum(row.trained_tokens for row in rows) == sum(len(turn.completion.token_ids) for turn in turns)
            helpers = sum(a.role != "subagent" and b.role == "subagent" for a, b in pairwise(turns))
            summaries = sum(turn.role == "summary" for turn in turns[:-1])
            subcalls = sum(turn.role == "subcall" for turn in turns)
            assert len(rows) == 1 + helpers + summaries + subcalls
            roles |= {turn.role for turn in turns}
            sizes.add(len(rows))
        first += len(group)
        uneven += len(sizes) > 1 and len(set(rewards.tolist())) > 1
    assert uneven >= 2
    assert roles == SEGMENTS[case.spec.name]


@pytest.mark.parametrize("case", ["rlm"], indirect=True)
def test_sub_calls_that_are_not_trained_are_no_rows(run: Run, case: Case, tokenizer: Any) -> None:
    values = case.recipe()
    values["rlm"]["train_subcalls"] = False
    batch = run(values, case.tasks(4))
    groups = assert_ours(batch, case, values, tokenizer)
    assert [row.rollout_id for row in batch.rows] == list(range(16))
    replies = [[turn.completion for turn in t.turns if turn.role == "root"] for group in groups for t in group]
    sampled = [sum(len(reply.token_ids) for reply in of_rollout) for of_rollout in replies]
    assert [row.trained_tokens for row in batch.rows] == sampled
    assert sum(turn.role == "subcall" for group in groups for t in group for turn in t.turns) > 4


@pytest.mark.parametrize("case", ["search_r1", "agentflow-seed"], indirect=True)
@pytest.mark.parametrize("estimator", [name for name in get_args(AdvEstimator) if name not in ("grpo", "gae")])
def test_every_estimator(run: Run, case: Case, estimator: str, tokenizer: Any, request: pytest.FixtureRequest) -> None:
    """Turns have advantages of their own, or the batch is whitened; verl, which has no place for the first, says so."""
    tasks = list(case.faulty)
    values = case.recipe(tasks_per_step=len(tasks))
    of_turns = estimator in TURN_ESTIMATORS
    leave_to_long(request, unless=of_turns or case.spec.name in WITHOUT_SANDBOX)
    values["algorithm"] |= {"adv_estimator": estimator, "kl_loss_coef": 0.1}
    values["algorithm"] |= {"rows": "turn", "turn_coef": 0.5} if of_turns else {}
    values["algorithm"] |= {"gamma": 0.9} if estimator == "gigpo" else {}
    if of_turns and request.node.callspec.params["run"] == "verl":
        with pytest.raises(RecipeError, match=f"adv_estimator={estimator} has no place on verl, .* the rewards of tur"):
            run(values, tasks)
        return
    batch = run(values, tasks)
    groups = assert_ours(batch, case, values, tokenizer)
    rewards = {turn.reward for group in groups for trajectory in group for turn in trajectory.turns}
    assert rewards == {None, 0.0, 1.0}
    by_rollout = defaultdict[int, set[float]](set)
    for row in batch.rows:
        by_rollout[row.rollout_id].add(row.advantage)
    assert (max(map(len, by_rollout.values())) > 1) == of_turns
    if estimator.startswith("reinforce"):
        each = torch.tensor([row.advantage for row in batch.rows for _ in range(row.trained_tokens)])
        assert float(each.mean()) == pytest.approx(0, abs=1e-5)
        assert float(each.std()) == pytest.approx(1, abs=1e-5)
