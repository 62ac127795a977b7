"""ToolOrchestra's rollout on the real tau2-bench telecom: with a scripted user, and alone."""

from __future__ import annotations

from itertools import pairwise

import pytest

from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import tau2_tasks
from core.rollout.rows import rows_from_groups

from .play import list_messages, rollout, solution, texts

pytestmark = [pytest.mark.optional, pytest.mark.timeout(600)]


@pytest.mark.parametrize("context", ["append_only", "rebuilt"])
@pytest.mark.parametrize("solo", [False, True], ids=["user", "solo"])
async def test_masks_sum_to_what_was_sampled(tau2: Workers, solo: bool, context: str) -> None:
    task = max((await tau2_tasks(tau2, "telecom", solo=solo))[:20], key=lambda task: len(solution(task)))
    trajectory = await rollout(task, tau2, context=context)
    sampled = sum(len(turn.completion.token_ids) for turn in trajectory.turns)
    assert (trajectory.reward, trajectory.status, trajectory.metrics["malformed"]) == (1.0, "completed", 0)
    assert len(trajectory.turns) == len(texts(task)) > 3
    other = rows_from_groups([[trajectory, trajectory]], std_normalization=False, split_advantage=False, rows="segment")
    rows = other[: len(other) // 2]
    assert sum(row.trained_tokens for row in rows) == sampled
    if context == "append_only":
        assert trajectory.metrics["drift"] == 0
        assert len(rows) == 1
        for before, after in pairwise(trajectory.turns):
            held = (*before.prompt_ids, *before.completion.token_ids)
            assert after.prompt_ids[: len(held)] == held


async def test_a_context_that_cannot_go_on_starts_a_counted_segment(tau2: Workers) -> None:
    task = max((await tau2_tasks(tau2, "telecom", solo=True))[:20], key=lambda task: len(solution(task)))
    whole = await rollout(task, tau2, context="append_only")
    budget = {"total": len(whole.turns[-1].prompt_ids) // 2, "result_tokens": 100000}
    tight = await rollout(task, tau2, context="append_only", budget=budget)
    rows = rows_from_groups([[tight, tight]], std_normalization=False, split_advantage=False, rows="segment")
    assert tight.metrics["drift"] > 0
    assert len(rows) // 2 == tight.metrics["drift"] + 1
    assert sum(row.trained_tokens for row in rows) // 2 == sum(len(t.completion.token_ids) for t in tight.turns)


@pytest.mark.parametrize("solo", [False, True], ids=["user", "solo"])
async def test_the_grader_does_not_see_who_acted(tau2: Workers, solo: bool) -> None:
    for task in (await tau2_tasks(tau2, "telecom", solo=solo))[:20:8]:
        alone = await rollout(task, tau2)
        handed = await rollout(task, tau2, by_expert=True)
        assert (alone.reward, handed.reward) == (1.0, 1.0)
        assert (alone.metrics["calls_expert-1"], handed.metrics["calls_expert-1"]) == (0, len(texts(task)))
        own, theirs = alone.log["simulation"], handed.log["simulation"]
        assert list_messages(own) == list_messages(theirs)
        assert own["reward_info"] == theirs["reward_info"]
        assert "expert" not in str(list_messages(theirs))
