"""Environments of verifiers and OpenEnv train a policy through a recipe alone, on the tokens that the engine sampled.

VERIFIERS_ROOT=CHECKOUT bash tests/optional/environments/setup.sh
OPENENV_ROOT=CHECKOUT SLIME_ROOT=CHECKOUT pytest tests/optional/environments
"""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.agent.rollout import SPEC, build
from core.config import RecipeError
from core.data import read_tasks
from core.environments.verifiers import VerifiersEntry
from core.policy.base import Roles
from core.rollout.runner import Runner
from core.types import Sampling
from core.worlds import TOOL_TEMPLATE
from scripts import tokentrue
from tests.contract.backends.case import Case
from tests.kit import call, save_model, script_policy, train_tokenizer
from tests.optional.environments.conftest import SERVERS, TASKSETS, make_agents, write_recipe
from tests.optional.environments.taught import run_batch, train_exactly

pytestmark = [pytest.mark.optional, pytest.mark.timeout(900)]


def write_tasks(recipe: Path, out: Path, count: int) -> None:
    words = ["data", "environment", "--preset", str(recipe), "--out", str(out), "--tasks", str(count)]
    assert tokentrue.main(words) == 0


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of a few layers that reads long prompts, and can be shown tools."""
    folder = tmp_path_factory.mktemp("reader") / "model"
    tokenizer = train_tokenizer(
        "Answer with the word that the tool returns, and nothing else. " * 9, 400, template=TOOL_TEMPLATE
    )
    save_model(folder, 0, vocab_size=len(tokenizer), max_position_embeddings=4096, eos_token_id=tokenizer.eos_token_id)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("names", [(*TASKSETS,), (*SERVERS,)], ids=["verifiers", "openenv"])
def test_three_environments_train_on_what_the_engine_sampled(
    names: tuple[str, ...], reader: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = write_recipe(tmp_path / "recipe.yaml", reader, make_agents(*names))
    write_tasks(recipe, tmp_path / "recipe.jsonl", count=2)
    train_exactly("agent", recipe, tmp_path / "run", monkeypatch)


def reply(prompt: str, chance: Random) -> str:
    """Call the tool that the prompt shows, and answer with a direction, a word or a number."""
    offered = [name for name in ("echo_message", "scratchpad_roundtrip", "facts_lookup") if f"{name}(" in prompt]
    if offered and "<|im_start|>tool" not in prompt and chance.random() < 0.7:
        argument = {"echo_message": "message", "scratchpad_roundtrip": "word", "facts_lookup": "entity"}[offered[0]]
        return call(offered[0], **{argument: chance.choice(("alpha", "Ada Lovelace"))})
    return chance.choice(("UP", "DOWN", "[E]", "alpha", "12", "I do not know."))


@pytest.mark.parametrize("backend", ["embedded", "slime"])
@pytest.mark.parametrize("names", [("scratchpad", "hangman"), ("echo", "grid_world")], ids=["verifiers", "openenv"])
def test_a_batch_of_two_environments_is_trained_as_ours_is(
    backend: str, names: tuple[str, ...], case: Case, tokenizer: Any, request: pytest.FixtureRequest
) -> None:
    groups = run_batch(backend, case, tokenizer, request)
    assert {len(one.turns) for group in groups for one in group} >= {1, 2}


@pytest.fixture
def case(names: tuple[str, ...], model: Path, tmp_path: Path) -> Case:
    agents = make_agents(*names)
    for agent in agents.values():
        agent["max_tokens"] = 256
    sizes = [
        f"rollout.{key}={value}" for key, value in {"tasks_per_step": 2, "group_size": 4, "deadline_s": 300}.items()
    ]
    recipe = SPEC.load(
        "tiny", [f"agent.agents={json.dumps(agents)}", "model.max_model_len=8192", "algorithm.kl_loss_coef=0.1", *sizes]
    )
    preset = write_recipe(tmp_path / "case.yaml", model, agents)
    write_tasks(preset, tmp_path / "case.jsonl", count=1)
    tasks = read_tasks(tmp_path / "case.jsonl", **SPEC.reading_options(recipe))
    return Case(SPEC, lambda **rollout: recipe.dump(), lambda count: tasks[:count], [], {}, tasks[0], {}, reply=reply)


@pytest.mark.parametrize(
    ("taskset", "keys", "told"),
    [
        ({"id": "no_such_taskset"}, {}, "no_such_taskset.* not found"),
        ({"id": "scratchpad", "colour": "red"}, {}, "colour"),
        ({"id": "scratchpad"}, {"harness": {"id": "bash"}}, "the harness bash runs what the policy wrote; set runtime"),
        ({"id": "scratchpad"}, {"harness": {"id": "no_such"}}, "no_such.* not found"),
        ({"id": "kuhn_poker"}, {}, r"several agents \(player0, player1\)"),
    ],
)
def test_what_a_rollout_here_cannot_have_is_refused(taskset: Any, keys: dict[str, Any], told: str) -> None:
    make_agents("scratchpad")
    entry = VerifiersEntry(kind="verifiers", taskset=taskset, **keys)
    with pytest.raises(RecipeError, match=rf"(?s)agent\.agents\.x\.environment: .*{told}"):
        entry.open("agent.agents.x.environment", 4)


async def test_a_task_that_the_taskset_does_not_have_is_refused() -> None:
    recipe = SPEC.load("tiny", [f"agent.agents={json.dumps(make_agents('glossary'))}", "model.max_model_len=8192"])
    tokenizer = train_tokenizer("a word", 300, template=TOOL_TEMPLATE)
    team = build(recipe, tokenizer)
    environment = team.agents["glossary"].run
    question, key = await environment.read_task(1)
    from core.types import Task

    async def fail(question: str, **about: Any) -> str:
        runner = Runner(team, Roles({"policy": script_policy(tokenizer, ["x"])}), concurrency=1, deadline_s=60)
        failed = await runner.run_one(Task("t", question, (), metadata=about), Sampling())
        assert failed.failure == "bad_task"
        return str(failed.log)

    assert "metadata.index is 9999, and glossary has" in await fail(question, index=9999, key=key)
    assert "not those of task 1 of glossary" in await fail("Another?", index=1, key=key)
    assert "not those of task 2 of glossary" in await fail(question, index=2, key=key)
    await team.close()
