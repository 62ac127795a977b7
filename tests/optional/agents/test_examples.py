"""The agents of examples/ in the frameworks that are installed: every token is exact, and GRPO teaches them to look up.

pytest tests/optional/agents             # a scripted policy plays them
pytest tests/optional/agents --long 5    # each is trained, too: some minutes of CPU time, and some for the warm start
"""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from agentic.agent.facts import LOOK_UP
from agentic.agent.rollout import SPEC, build
from agentic.agent.world import WORLD, find_facts
from core.data import write_jsonl
from core.policy.base import Roles
from core.rollout.rows import rows_from_groups
from core.rollout.runner import Runner
from core.runs.files import read_jsonl
from core.types import Sampling, Task
from core.worlds import write_call
from tests.e2e.conftest import REPOSITORY, environment
from tests.kit import require, script_policy

pytestmark = [pytest.mark.optional, pytest.mark.timeout(120)]

EXAMPLES = {
    "langgraph_agent": ("langgraph", "langgraph==1.2.22 langchain-openai==1.7.3"),
    "openai_agents_agent": ("agents", "openai-agents==0.24.0"),
    "strands_agent": ("strands", "strands-agents[openai]==1.62.0"),
}
STEPS = 24


def require_framework(example: str) -> None:
    module, packages = EXAMPLES[example]
    require(find_spec(module), f"needs {module}: pip install {packages}")


@pytest.mark.parametrize("example", EXAMPLES)
async def test_an_agent_of_a_framework_is_trained_on_the_tokens_that_were_sampled(example: str) -> None:
    require_framework(example)
    tokenizer: Any = WORLD.train_tokenizer()
    recipe = SPEC.load("tiny", [f"agent.agents.lookup.run=examples.{example}.run"])
    owner = find_facts("lamp", world=7)["owner"]
    task = Task("1", "Who is the owner of the lamp?", (owner,), metadata={"world": 7})
    policy = script_policy(tokenizer, [write_call(LOOK_UP.name, thing=" lamp"), f" {owner}"])
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


async def test_the_strands_agent_of_mathematics_computes_in_the_sandbox(isolation: None) -> None:
    require_framework("strands_agent")
    agent = {"run": "examples.strands_agent.solve", "reward": "agentic.agent.rewards.boxed"}
    recipe = SPEC.load("tiny", [f"agent.agents={json.dumps({'math': agent})}", "model.max_model_len=2000"])
    tokenizer: Any = WORLD.train_tokenizer()
    call = {"name": "python", "arguments": {"code": "print(6 * 7)"}}
    words = [f"<tool_call>\n{json.dumps(call)}\n</tool_call>", "So it is \\boxed{42}."]
    policy, team = script_policy(tokenizer, words), build(recipe, tokenizer)
    try:
        task = Task("1", "What is six times seven?", ("42",))
        done = await Runner(team, Roles({"policy": policy}), concurrency=1, deadline_s=60).run_one(task, Sampling())
    finally:
        await team.close()
    assert (done.reward, len(done.turns)) == (1.0, 2), done.log
    assert "tool\n42<" in tokenizer.decode(done.turns[1].prompt_ids)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    WORLD.build_model(folder / "model", seed=0)
    write_jsonl(folder / "train.jsonl", WORLD.draw_tasks("train", 2048))
    write_jsonl(folder / "dev.jsonl", WORLD.draw_tasks("dev", 64))
    return folder


def train(data: Path, out: Path, **changed: object) -> None:
    """Train one seed of the tiny preset, with these keys changed; a dot of a key is two underscores here."""
    values = {
        "model.path": data / "model", "data.train": data / "train.jsonl", "data.eval": data / "dev.jsonl",
        "run.seeds": [0],
    } | {key.replace("__", "."): value for key, value in changed.items()}  # fmt: skip
    settings = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
    command = [
        sys.executable,
        "-m",
        "scripts.tokentrue",
        "train",
        "agent",
        "--preset",
        "tiny",
        "--out",
        str(out),
        *settings,
    ]
    subprocess.run(command, cwd=REPOSITORY, env=environment(), check=True)


@pytest.fixture(scope="module")
def warm_start(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model that has seen the form of calls and answers; the frameworks share it."""
    out = tmp_path_factory.mktemp("warm-start") / "run"
    train(data, out, run__steps=1, run__eval_every=0)
    return out / "warm_start"


@pytest.mark.timeout(0)
@pytest.mark.parametrize("example", EXAMPLES)
def test_an_agent_of_a_framework_learns_what_to_look_up(
    example: str, long: None, data: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    require_framework(example)
    start = request.getfixturevalue("warm_start")  # only where it is needed: it takes minutes
    train(
        data, tmp_path / "run", agent__agents__lookup__run=f"examples.{example}.run", run__steps=STEPS,
        run__eval_every=STEPS, model__path=start, warm_start="null",
    )  # fmt: skip
    records = list(read_jsonl(tmp_path / "run" / "seed-0" / "metrics.jsonl"))
    steps = [record for record in records if record["stage"] == "train"]
    assert len(steps) == STEPS
    for record in steps:
        assert record["failures"] == {}
        assert record.get("foreign", 0) == record.get("unanswered", 0) == 0
        # Strands puts another name for that of a tool which no tool may have, and the gateway counts this as an edit.
        assert record.get("edited", 0) <= (0.01 if example == "strands_agent" else 0)
    before, after = (record["reward"] for record in records if record["stage"] == "eval")
    assert before < 0.15
    assert after > 0.75
