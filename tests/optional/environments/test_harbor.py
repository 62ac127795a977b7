"""Five task folders in Harbor's form train a policy by a recipe alone; Harbor itself takes them as tasks.

pytest tests/optional/environments/test_harbor.py
SLIME_ROOT=CHECKOUT pytest tests/optional/environments/test_harbor.py    # on slime's hooks, too
bash tests/optional/exchange/setup.sh                                    # Harbor's own models of tasks
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.coding.prompts import INSTRUCTIONS, REPAIR, SCHEMAS, TASK, WORK
from agentic.coding.rollout import SPEC
from core.data import read_tasks
from core.text.conversation import Renderer
from core.worlds import encode_turn
from scripts import tokentrue
from tests.contract.backends.case import Case
from tests.kit import call, require
from tests.optional.environments.taught import make_tokenizer, run_batch, teach, train_exactly, write_recipe
from tests.unit.agentic.coding.harbor_folders import TASKS, write_folder

pytestmark = [pytest.mark.optional, pytest.mark.timeout(900)]
EXCHANGE = Path(__file__).parents[1] / "exchange"
COMMANDS = {
    "answer-file": "echo yes > answer.txt",
    "sorted-names": "sort -o names.txt names.txt",
    "two-halves": "echo one > a.txt",
    "sum-script": "ls data",
    "broken-package": "cat src/stock.py",
}
"""What the policy has learned to do: two right repairs, a half one, and two that only look."""
CODING = {"tools": ["bash"], "max_turns": 3, "max_tokens": 60, "context_tokens": 2000}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [write_folder(tmp_path_factory.mktemp("tasks"), name) for name in TASKS]


def write_tasks(folders: list[Path], out: Path) -> list[Any]:
    assert tokentrue.main(["data", "harbor", *map(str, folders), "--out", str(out)]) == 0
    return read_tasks(out, require_context=False, short_answers=False)


def test_five_folders_train_on_what_the_engine_sampled(
    isolation: None, folders: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = write_tasks(folders, tmp_path / "recipe.jsonl")
    first = [TASK.format(statement=task.question) + INSTRUCTIONS.replace(REPAIR, WORK) for task in tasks]
    calls = [call("bash", command=COMMANDS[name]) for name in TASKS]
    own = make_tokenizer([*first, *calls])
    renderer, tools = Renderer(own), [SCHEMAS["bash"].to_openai()]
    examples = [
        (renderer.render([renderer.message("user", text)], tools), encode_turn(own, said))
        for text, said in zip(first, calls, strict=True)
    ]
    reader = teach(tmp_path / "model", own, examples)
    sizes = {"tasks_per_step": 5, "group_size": 2, "deadline_s": 400}
    recipe = write_recipe(tmp_path / "recipe.yaml", reader, "coding", coding=CODING, rollout=sizes)
    steps = train_exactly("coding", recipe, tmp_path / "run", monkeypatch)
    assert all(step["calls_bash"] > 0.3 for step in steps)
    assert all(0 < step["reward"] < 1 for step in steps), "some solve it, in whole or in part, and some do not"


def reply(prompt: str, chance: Random) -> str:
    """Do the task, do half of it, or end."""
    command = COMMANDS["sorted-names" if "names.txt" in prompt else "two-halves"]
    return chance.choice((call("bash", command=command), call("bash", command="ls"), "It is done."))


@pytest.mark.parametrize("backend", ["embedded", "slime"])
def test_a_batch_of_two_folders_is_trained_as_ours_is(
    isolation: None,
    backend: str,
    case: Case,
    tokenizer: Any,
    request: pytest.FixtureRequest,
) -> None:
    groups = run_batch(backend, case, tokenizer, request)
    rewards = {one.reward for group in groups for one in group}
    assert {0.0, 0.5, 1.0} >= rewards
    assert len(rewards) > 1


@pytest.fixture
def case(folders: list[Path], tmp_path: Path) -> Case:
    tasks = write_tasks([folder for folder in folders if folder.name in ("sorted-names", "two-halves")], tmp_path / "t")
    section = {**CODING, "max_turns": 4, "max_tokens": 300, "context_tokens": 3000}
    changes = ["rollout.tasks_per_step=2", "rollout.group_size=6", "rollout.deadline_s=300", "model.max_model_len=null"]
    recipe = SPEC.load("tiny", [f"coding={json.dumps(section)}", *changes])
    return Case(SPEC, lambda **rollout: recipe.dump(), lambda count: tasks[:count], [], {}, tasks[0], {}, reply=reply)


def test_harbor_takes_the_folders_as_tasks(folders: list[Path]) -> None:
    python = EXCHANGE / ".venv/bin/python"
    require(python.exists(), f"needs Harbor: bash tests/optional/{EXCHANGE.name}/setup.sh")
    command = [python, EXCHANGE / "validate.py", "tasks", *folders]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert json.loads(said) == [f"tokentrue/{name}" for name in TASKS]
