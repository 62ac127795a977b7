"""slime's hooks: all seven are found in every method's file, and importing the file stays cheap."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest

from core.backends.slime import hooks
from core.config import RecipeError
from tests.contract.test_import_rules import MODULES, package
from tests.contract.test_presets import METHODS

REPOSITORY = Path(__file__).parents[2]
MOST_MODULES = 20
"""Limits the modules of core that come with a method's file. A package that only names what its modules hold is none;
the tools themselves come when a recipe opens them."""

PARAMETERS = {
    "generate": "args, sample, sampling_params, evaluation=False",
    "reward_func": "args, sample, **_",
    "convert": "args, samples",
    "post_process_rewards": "args, samples",
    "dynamic_filter": "args, group, **_",
    "rollout_log": "rollout_id, args, samples, metrics, seconds",
    "eval_log": "rollout_id, args, data, extra_metrics=None",
}


def test_the_hooks_have_the_parameters_that_slime_inspects() -> None:
    assert sorted(PARAMETERS) == hooks.__all__
    for name, parameters in PARAMETERS.items():
        signature = inspect.signature(getattr(hooks, name))
        bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
        assert str(inspect.Signature(bare)) == f"({parameters})"
    assert inspect.iscoroutinefunction(hooks.generate)
    assert inspect.iscoroutinefunction(hooks.reward_func)


@pytest.mark.parametrize("method", METHODS)
def test_slime_finds_the_hooks_by_path_in_every_methods_file(method: str) -> None:
    module = import_module(f"agentic.{method}.rollout")
    for name in PARAMETERS:
        assert getattr(module, name) is getattr(hooks, name)
    with pytest.raises(AttributeError, match="no 'genrate', and it is no hook"):
        _ = module.genrate


@pytest.mark.parametrize(
    ("recipe", "says"),
    [
        (None, "--custom-config-path a YAML file whose key agentic_recipe"),
        ({"preset": "seed"}, "agentic_recipe has no `method`"),
        ({"method": "magic"}, "no method 'magic'"),
    ],
)
async def test_a_recipe_that_names_no_method_is_an_error_that_says_so(recipe: dict[str, str] | None, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        await hooks.generate(SimpleNamespace(agentic_recipe=recipe), None, {})


LOAD = """
import os, sys
import aiohttp, pydantic, yaml  # what most methods load anyway, once for all of them

for name in sys.argv[1:]:
    if os.fork() == 0:
        try:
            __import__(f"agentic.{name}.rollout")
            print(name, *sys.modules, flush=True)
        finally:
            os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """The modules that come with each method's file, each imported by a process of its own."""
    command = [sys.executable, "-c", LOAD, *METHODS]
    done = subprocess.run(command, cwd=REPOSITORY, check=True, text=True, capture_output=True)
    return {name: modules for name, *modules in map(str.split, done.stdout.splitlines())}


@pytest.mark.parametrize("method", METHODS)
def test_importing_a_method_imports_no_engine_report_world_or_slime(method: str, loaded: dict[str, list[str]]) -> None:
    forbidden = ("slime", "torch", *(f"core.{name}" for name in ("engine", "report", "runs", "worlds", "backends")))
    modules = loaded[method]
    assert not [name for name in modules for start in forbidden if name == start or name.startswith(f"{start}.")]
    ours = [name for name in modules if name in MODULES and not only_names(MODULES[name])]
    assert not [name for name in ours if package(name) == "agentic/world"]
    brought = [name for name in ours if name.startswith("core")]
    assert len(brought) <= MOST_MODULES, sorted(brought)


def only_names(path: Path) -> bool:
    """Say whether a module is a package's door: a docstring, imports, and the names that others may use."""
    door = ast.Expr | ast.ImportFrom | ast.Assign | ast.If
    return path.name == "__init__.py" and all(isinstance(node, door) for node in ast.parse(path.read_text()).body)
