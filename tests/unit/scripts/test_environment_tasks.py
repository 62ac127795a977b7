"""`tokentrue data environment` writes the tasks of a recipe's environments, which the recipe then reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentic.agent.rollout import SPEC
from core.data import read_tasks
from scripts.environment_tasks import main
from tests.kit import serve_app
from tests.unit.environments.fake_openenv import make_app


def write(recipe: Path, agents: Any, *words: str) -> int:
    text = Path(SPEC.presets, "tiny.yaml").read_text().partition("\nagent:")[0]
    recipe.write_text(f"{text}\nrun: {{steps: 1}}\nagent: {{agents: {json.dumps(agents)}}}\n")
    return main(["--preset", str(recipe), "--out", str(recipe.with_suffix(".jsonl")), *words])


def test_a_task_is_the_first_observation_of_its_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "count.yaml"
    with serve_app(make_app()) as url:
        environment = {"kind": "openenv", "url": url, "action": "say", "show": ["text"]}
        servers = {"kind": "mcp", "servers": {"disk": {"command": ["x"]}}}
        others = {"mine": {"command": ["x"], "reward": "a.b"}, "clerk": {"environment": servers, "reward": "a.b"}}
        agents = {"count": {"environment": environment}, **others}
        assert write(recipe, agents, "--tasks", "2", "--first", "3") == 0
        both = tmp_path / "both.yaml"
        assert write(both, {**agents, "again": {"environment": environment}}, "--tasks", "2") == 0
        assert "note: " not in (told := capsys.readouterr().out)
        alike = {"count": {"environment": {**environment, "reset": {"seed": 1}}}}
        assert write(tmp_path / "alike.yaml", alike, "--tasks", "3") == 0
        assert "note: 2 tasks begin as another one does" in capsys.readouterr().out
    assert [task.task_id for task in read_tasks(both.with_suffix(".jsonl"), require_context=False)] == [
        *("count-0", "again-0", "count-1", "again-1"),  # an evaluation may take the first few
    ]
    assert "2 tasks, 3 to 4 of each" in told
    tasks = read_tasks(recipe.with_suffix(".jsonl"), **SPEC.reading_options(SPEC.load(str(recipe))))
    assert [(task.task_id, task.question) for task in tasks] == [("count-3", "0 of 5"), ("count-4", "0 of 6")]
    assert [task.metadata["index"] for task in tasks] == [3, 4]
    assert tasks[0].metadata["key"] != tasks[1].metadata["key"]


def test_a_recipe_without_an_environment_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(tmp_path / "none.yaml", {"mine": {"command": ["x"], "reward": "a.b"}}, "--tasks", "1") == 1
    assert "names no `environment`" in capsys.readouterr().err
