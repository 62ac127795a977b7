"""The LangGraph agent of examples/ runs in verl's agent-loop worker as it is: it talks to our gateway there."""

from __future__ import annotations

from importlib.util import find_spec
from random import Random
from typing import Any

import pytest

from agentic.agent.facts import LOOK_UP
from agentic.agent.rollout import SPEC
from agentic.agent.world import find_facts
from core.types import Task
from core.worlds import write_call
from tests import kit
from tests.contract.backends.batch import assert_ours
from tests.contract.backends.case import Case
from tests.contract.backends.serving import Reply
from tests.contract.backends.table import run_verl

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]
OWNER = find_facts("lamp", world=7)["owner"]
TASK = Task("lamp", "Who is the owner of the lamp?", (OWNER,), metadata={"world": 7})


def look_up_and_answer(prompt: str, chance: Random) -> str:
    """Call the tool, and then answer, right in half of the rollouts; or answer at once."""
    if "The lamp: " in prompt:
        return chance.choice((OWNER, "nobody"))
    call = write_call(LOOK_UP.name, thing="lamp")
    return chance.choice((call, call, "nobody"))


def make_recipe(**rollout: Any) -> dict[str, Any]:
    settings = ["agent.agents.lookup.run=examples.langgraph_agent.run", "model.max_model_len=1000"]
    settings += [
        "agent.agents.lookup.max_tokens=200"
    ]  # words have more tokens here than in the preset's own vocabulary
    sizes = {"group_size": 8, "deadline_s": 120.0} | rollout
    return SPEC.load("tiny", [*settings, *(f"rollout.{name}={value}" for name, value in sizes.items())]).dump()


@pytest.mark.parametrize("reply", [look_up_and_answer, None], ids=["script", "embedded engine"])
def test_langgraph_in_verls_worker(reply: Reply | None, tokenizer: Any, request: pytest.FixtureRequest) -> None:
    kit.require(find_spec("langgraph"), "needs langgraph: bash tests/optional/verl/setup.sh")
    case = Case(SPEC, make_recipe, lambda _: [TASK], [TASK], {}, TASK, {}, reply=reply)
    values = make_recipe(tasks_per_step=1)
    batch = run_verl(request, case, values, [TASK])
    [group] = assert_ours(batch, case, values, tokenizer)
    assert {t.status for t in group} <= {"completed", "truncated"}
    assert all({"edited", "foreign"}.isdisjoint(t.metrics) for t in group)
    if reply:
        assert {len(t.turns) for t in group} == {1, 2}
        assert {t.reward for t in group} == {0.0, 1.0}
    for number, trajectory in enumerate(group):  # each sampled token is trained once, in one row
        [row] = [row for row in batch.rows if row.rollout_id == number]
        assert row.trained_tokens == sum(len(turn.completion.token_ids) for turn in trajectory.turns)
