"""slime's names in a method's file: all seven are there, and importing the file stays cheap."""

from __future__ import annotations

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from core.backends.slime.hooks import HOOKS

REPOSITORY = Path(__file__).parents[2]
METHODS = sorted(path.parent.name for path in (REPOSITORY / "agentic").glob("*/rollout.py"))
MOST_MODULES = 28
"""Limits the project's modules, packages included, that come with memagent's file."""


@pytest.mark.parametrize("method", METHODS)
def test_slime_finds_the_hooks_by_their_names_with_the_parameters_it_checks(method: str) -> None:
    module = import_module(f"agentic.{method}.rollout")
    for name in HOOKS:
        assert getattr(module, name).__name__ == name
    assert list(inspect.signature(module.generate).parameters) == ["args", "sample", "sampling_params", "evaluation"]
    assert inspect.iscoroutinefunction(module.generate)
    assert inspect.iscoroutinefunction(module.reward_func)


@pytest.mark.parametrize("method", METHODS)
def test_importing_a_method_imports_no_engine_report_or_slime(method: str) -> None:
    code = f"import sys, agentic.{method}.rollout; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=True, text=True, capture_output=True)
    modules = done.stdout.split()
    forbidden = ("slime", "torch", "core.engine", "core.report", "core.runs", "core.backends.slime.bridge")
    assert not [name for name in modules for start in forbidden if name == start or name.startswith(f"{start}.")]
    ours = [name for name in modules if name.partition(".")[0] in ("core", "agentic")]
    if method == "memagent":
        assert len(ours) <= MOST_MODULES, sorted(ours)
