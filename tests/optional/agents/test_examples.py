"""The agents of examples/ in the frameworks that are installed: right calls earn the reward, every token is exact."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from agentic.agent.rollout import SPEC, build
from agentic.agent.tiny import start_model
from agentic.agent.tiny.demonstrations import write_call
from agentic.agent.tiny.world import find_facts
from core.policy.base import Roles
from core.rollout.rows import rows_from_groups
from core.rollout.runner import Runner
from core.types import Sampling, Task
from tests.kit import require, script_policy

pytestmark = [pytest.mark.optional, pytest.mark.timeout(120)]

EXAMPLES = {
    "langgraph_agent": ("langgraph", "langgraph==1.2.22 langchain-openai==1.7.3"),
    "openai_agents_agent": ("agents", "openai-agents==0.24.0"),
    "strands_agent": ("strands", "strands-agents[openai]==1.62.0"),
}


@pytest.mark.parametrize("example", EXAMPLES)
async def test_an_agent_of_a_framework_is_trained_on_the_tokens_that_were_sampled(example: str) -> None:
    module, packages = EXAMPLES[example]
    require(find_spec(module), f"needs {module}: pip install {packages}")
    tokenizer: Any = start_model.train_tokenizer()
    recipe = SPEC.load("tiny", [f"agent.agents.lookup.run=examples.{example}.run"])
    owner = find_facts("lamp", world=7)["owner"]
    task = Task("1", "Who is the owner of the lamp?", (owner,), metadata={"world": 7})
    policy = script_policy(tokenizer, [write_call(" lamp"), f" {owner}"])
    team = build(recipe, tokenizer)
    try:
        done = await Runner(team, Roles({"policy": policy}), concurrency=1, deadline_s=60).run_one(task, Sampling())
    finally:
        await team.close()
    assert (done.status, done.reward, len(done.turns)) == ("completed", 1.0, 2), done.log
    assert {"edited", "foreign"}.isdisjoint(done.metrics)
    [row] = rows_from_groups([[done]], std_normalization=False, split_advantage=False, rows="segment")
    first, second = (turn.completion.token_ids for turn in done.turns)
    assert row.trained_tokens == len(first) + len(second)
    assert row.tokens[: len(done.turns[1].prompt_ids)] == policy.calls[1].prompt_ids
    assert "The lamp: " in tokenizer.decode(row.tokens)
