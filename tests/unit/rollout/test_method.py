"""Where a method is found, what its SPEC loads, and what is refused."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from core.config import RecipeError
from core.rollout.method import AGENTIC, find_package, method_spec
from core.worlds import find_world
from scripts import new


def test_a_method_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(
        RecipeError,
        match=r"no method 'magic'.*coding, compaction, memagent, retool, rlm, search_r1, skeleton, toolorchestra",
    ):
        method_spec("magic")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder outside of this repository with a method; its name is new for each test, as Python keeps modules."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"own_{request.node.name.partition('[')[0]}"
    assert new.main([str(tmp_path / name)]) == 0
    return tmp_path / name


def test_a_folder_of_ones_own_is_found_by_path_and_then_by_name(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RecipeError, match="no method"):
        method_spec(own.name)
    spec = method_spec(str(own))
    assert spec.name == spec.load("tiny").method == own.name
    assert method_spec(own.name) is spec
    world = find_world(own.name)
    assert world is not None
    assert world.baselines["aimless"].__module__ == f"{own.name}.world"
    with ProcessPoolExecutor(1, get_context("spawn")) as workers:
        assert workers.submit(spec.load, "tiny").result() == spec.load("tiny")


def test_a_path_into_agentic_names_the_method_there() -> None:
    assert find_package(str(AGENTIC / "memagent") + "/") == "agentic.memagent"


def test_a_folder_is_found_by_its_name_from_where_it_lies(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    assert find_package(own.name) == own.name


@pytest.mark.parametrize(
    ("name", "says"), [("json", "json/__init__.py has it"), ("my-method", "by the name 'my-method'")]
)
def test_a_folder_whose_name_cannot_be_imported_is_told(own: Path, name: str, says: str) -> None:
    with pytest.raises(RecipeError, match=f"{says}. Rename the folder"):
        method_spec(str(own.rename(own.with_name(name))))


def test_a_folder_that_was_renamed_is_told(own: Path) -> None:
    with pytest.raises(RecipeError, match=f"SPEC has the name '{own.name}'; write that of the folder"):
        method_spec(str(own.rename(own.with_name(f"{own.name}_2"))))
