"""The `tiny` preset: our grep prints what grep prints, demonstrations are blind to the bug, right turns earn all."""

from __future__ import annotations

from functools import partial
from itertools import product
from typing import Any

import pytest

from agentic.codescout.places import read_gold
from agentic.codescout.rollout import SPEC, CodeScout, read_task
from agentic.codescout.world import (
    ROLES,
    SEARCH,
    WORLD,
    find_topic,
    grep_with_line_before,
    list_topics,
    write_right_turn,
)
from core.policy.base import Roles
from core.types import Sampling
from core.worlds import SPLITS, TextPolicy

TASKS = [task for split in SPLITS for domain in WORLD.domains for task in WORLD.draw_tasks(split, 6, domain=domain)]


@pytest.fixture
def method(isolation: None, tokenizer: Any) -> CodeScout:
    return CodeScout(SPEC.load("tiny"), tokenizer)


async def test_our_grep_prints_what_the_real_one_prints(method: CodeScout) -> None:
    for task in TASKS:
        search = read_task(task)
        async with method.make_workspace(search) as workspace:
            await method.start(workspace, search)
            for topic, role in product(list_topics(task.question), ROLES):
                printed, _ = await method.run_command(SEARCH.format(topic, role), search, workspace)
                assert printed == grep_with_line_before(f"the {topic} total {role}", task.metadata["repository"])
                assert printed.count("-def ") == 1


async def test_the_right_turns_earn_everything(method: CodeScout) -> None:
    for task in TASKS:
        searcher = TextPolicy(method.tokenizer, partial(write_right_turn, task))
        done = await method.rollout(task, Roles({"policy": searcher}), Sampling())
        assert (done.reward, done.metrics["turns"]) == (3.0, 2)


def test_the_issue_names_the_behaviour_and_not_the_place() -> None:
    for task in TASKS:
        gold = read_gold(task.metadata["file_changes"])
        (place,) = gold.functions
        path, _, function = place.partition(":")
        source = task.metadata["repository"][path]
        role = next(role for role, symptom in ROLES.items() if symptom in task.question)
        assert f'def {function}(rows):\n    """Gets the {find_topic(task)} total {role}."""' in source
        assert path.removesuffix(".py") not in task.question.split()
        assert function not in task.question.split()
