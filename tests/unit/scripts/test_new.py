"""`tokentrue new`: what it writes, inside and outside of this repository, and which names it refuses."""

from __future__ import annotations

import ast
import tomllib
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

import pytest
import yaml

from core.config import Recipe
from core.rollout.method import AGENTIC
from scripts import new


@pytest.mark.parametrize(
    ("folder", "package"), [(AGENTIC / "debate_of_many_agents", "agentic.debate_of_many_agents"), (Path("/x/d"), "d")]
)
def test_a_copy_has_the_new_name_everywhere_and_imports_itself(folder: Path, package: str) -> None:
    files = new.render(folder)
    assert not [path for path, text in files.items() if "skeleton" in text.lower()]
    assert not [line for text in files.values() for line in text.splitlines() if len(line) > 120 and line[0] != "|"]
    assert len(files[folder / "README.md"].splitlines()) <= 60
    tree = ast.parse(files[folder / "world.py"])
    assert f"{package}.rollout" in [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert yaml.safe_load(files[folder / "presets/tiny.yaml"])["method"] == folder.name


def test_in_the_repository_the_test_goes_to_the_others_and_the_script_prepares_python() -> None:
    inside, outside = (new.render(folder / "debate") for folder in (AGENTIC, Path("/x")))
    assert new.ROOT / "tests/unit/agentic/debate/test_rollout.py" in inside
    assert Path("/x/debate/test_rollout.py") in outside
    assert inside[AGENTIC / "debate/run.sh"].endswith('scripts/python.sh"\nrun_method debate "$@"\n')
    assert outside[Path("/x/debate/run.sh")].endswith(f"set -euo pipefail\n{new.OWN_RUN}")


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("My-Method", "no name of a module"),
        ("class", "another method has this name"),
        ("json", "another method has this name"),
        ("copy", "another method has this name"),
        ("retool", "retool is there already"),
        *((f"./{name}", "another method has this name") for name in ("retool", *Recipe.model_fields)),
    ],
)
def test_a_name_that_is_taken_is_refused(
    method: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert new.main([method]) == 1
    assert says in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_the_installed_package_has_every_file_of_the_skeleton() -> None:
    """setuptools takes Python files by itself."""
    data = tomllib.loads((new.ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    patterns = ["*.py", *data["*"], *data["agentic.skeleton"]]
    files = [path.name for path in new.render(Path("/x/debate"))]
    assert [name for name in files if not any(map(partial(fnmatch, name), patterns))] == []


def test_an_installed_package_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(new, "ROOT", tmp_path)
    assert new.main(["debate"]) == 1
    assert "tokentrue new ./debate" in capsys.readouterr().err


def test_a_folder_may_be_chosen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new.main([f"{tmp_path}/a b/debate"]) == 0
    assert (tmp_path / "a b/debate/run.sh").stat().st_mode & 0o111
    assert capsys.readouterr().out.endswith(f"cd '{tmp_path}/a b'\n")
    (tmp_path / "file").touch()
    assert new.main([f"{tmp_path}/file/debate"]) == 1
    assert "Not a directory" in capsys.readouterr().err
