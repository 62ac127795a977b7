"""Recipes with real environments of verifiers and OpenEnv, and the fixtures with which slime is driven."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from wonderwords import RandomWord

from tests.contract.backends.conftest import (  # noqa: F401  fixtures
    arguments,
    manager,
    model,
    servers,
    slime,
    tape,
    tokenizer,
    url,
)
from tests.kit import require
from tests.optional.environments import taught

HERE = Path(__file__).parent
PYTHON = HERE / ".venv/bin/python"
SETUP = f"bash {HERE.relative_to(HERE.parents[2])}/setup.sh"
TASKSETS: Mapping[str, Mapping[str, Any]] = {
    "hangman": {"id": "textarena", "game": "Hangman-v0"},
    "scratchpad": {"id": "scratchpad"},
    "glossary": {"id": "glossary"},
}
"""The first comes with the package, the others with its repository: a game, and tools that are shared or a task's."""
SERVERS: Mapping[str, Mapping[str, Any]] = {
    "echo": {"sessions": 4},
    "grid_world": {"action": "action", "show": ["x", "y", "message"], "system": "Answer UP, DOWN, LEFT or RIGHT."},
    "reasoning_gym": {
        "action": "answer",
        "show": ["question"],
        "reset": {"seed": "{index}", "dataset_name": "leg_counting", "size": 1},
    },
}
"""Servers of OpenEnv's repository: tools, many steps, one step."""


def make_agents(*names: str) -> dict[str, Any]:
    """The section agent.agents of a recipe with these environments. Skips the test where one cannot run."""
    agents: dict[str, Any] = {}
    for name in names:
        if name in TASKSETS:
            module = TASKSETS[name]["id"]
            require(find_spec("verifiers") and find_spec(module), f"needs verifiers and {module}: {SETUP}")
            environment: dict[str, Any] = {"kind": "verifiers", "taskset": TASKSETS[name]}
        else:
            root = os.environ.get("OPENENV_ROOT")
            require(root, "needs OpenEnv's environments: set OPENENV_ROOT to a checkout of it")
            require(PYTHON.exists(), f"needs OpenEnv: {SETUP}")
            app = f"{name}_env.server.app:app"
            command = [str(PYTHON), "-m", "uvicorn", app, "--port", "{port}", "--app-dir", f"{root}/envs"]
            environment = {"kind": "openenv", "command": command, **SERVERS[name]}
        agents[name] = {"environment": environment, "max_turns": 3, "max_tokens": 12}
    return agents


def write_recipe(path: Path, folder: Path, agents: Mapping[str, Any]) -> Path:
    """Write a recipe file whose tasks are those of the environments."""
    sizes = {"tasks_per_step": len(agents), "group_size": 2, "deadline_s": 300}
    return taught.write_recipe(path, folder, "agent", agent={"agents": agents}, rollout=sizes)


@pytest.fixture(scope="session", autouse=True)
def words(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The corpus of words that TextArena asks nltk for, which would download it: nouns of wonderwords."""
    if find_spec("nltk") is None:
        return
    import nltk

    folder = tmp_path_factory.mktemp("nltk")
    corpus = folder / "corpora" / "words"
    corpus.mkdir(parents=True)
    nouns = sorted(
        word for word in RandomWord().filter(include_parts_of_speech=["nouns"]) if word.isascii() and word.isalpha()
    )
    for name in ("README", "en", "en-basic"):
        (corpus / name).write_text("\n".join(nouns))
    nltk.data.path.insert(0, str(folder))
