"""The import rules: which package may import which."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("core", "agentic", "benchmarks", "scripts", "examples")

# Every import between packages that exists, and no other one is allowed. A name without a folder is a package or a
# module of core/. `agentic/world` is what belongs to the presets `tiny`, `laptop` and `desk`.
IMPORTS = """
examples     -> agentic agentic/world engine gateway rollout train types worlds
scripts      -> agentic benchmarks config data engine gateway hub inspect options policy report rollout runs serving
                text train training_options types worlds
benchmarks   -> agentic agentic/world algorithms config data engine hub options policy report rewards
                rollout runs sandbox text train types vllm_wire worlds
agentic/world -> agentic config data environments gateway options policy rollout runs serving text types worlds
agentic      -> config environments gateway http_client options policy retrieval rewards rollout sandbox text tools
                types
backends     -> algorithms config data hub options policy rollout runs text training_options types
inspect      -> config data engine hub options policy report rewards rollout runs text train types
train        -> algorithms config data engine hub options policy rollout runs text training_options types worlds
worlds       -> config data options rollout runs text types
engine       -> http_client hub options policy serving text types vllm_wire
environments -> gateway options policy rollout sandbox text tools types
gateway      -> options policy rollout serving text types vllm_wire
sandbox      -> options
tools        -> options retrieval sandbox text
retrieval    -> http_client options runs serving types
rollout      -> algorithms config policy text types
config       -> algorithms options types
report       -> runs types
runs         -> config hub options types
text         -> hub options
policy       -> http_client types
http_client  -> options types
algorithms   -> options types
data         -> rewards types
vllm_wire    -> serving types
serving      -> options types
"""

# Each has a README and an `__init__` with `__all__`: the names and the whole modules that code outside may import.
INSIDE_CORE = """
backends backends.slime backends.verl engine environments gateway inspect report retrieval rewards runs sandbox
sandbox.workspace train worlds
"""
LIBRARIES = tuple(f"core.{name}" for name in INSIDE_CORE.split())

WORLD_FILES = {
    "facts", "gold", "gsm8k", "harbor", "hotpotqa", "laptop", "mbpp", "routellm", "scripted_experts", "scripted_roles",
    "test_rollout", "visits", "world",
}  # fmt: skip
"""Names the modules of a method that serve its made-up world, or are no part of it."""

MAX_METHOD_LINES = 600
"""What one reads in a sitting."""
LONGER = {"agentflow": 890, "coding": 1335, "memagent": 690, "toolorchestra": 1675}
"""Methods that take more than one sitting, with their own bounds."""
SERVERS = {"serving", "vllm_wire"}
"""Names what servers alone need of core."""
MAX_CORE_LINES = 7_750
"""Limits what a method needs of core: all but the libraries and SERVERS, with blank lines and docstrings."""


def parse_table(text: str) -> dict[str, set[str]]:
    """Return package -> the packages that it imports. A line without `->` continues the one before it."""
    table: dict[str, set[str]] = {}
    importer = ""
    for line in text.strip().splitlines():
        before, arrow, after = line.partition("->")
        importer = before.strip() if arrow else importer
        table.setdefault(importer, set()).update((after if arrow else line).split())
    return table


ALLOWED = parse_table(IMPORTS)


def find_modules() -> dict[str, Path]:
    """Return the project's own modules by name. A folder such as benchmarks/speed/.venv holds other people's."""
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    parts = {path: path.relative_to(ROOT).with_suffix("").parts for path in paths}
    own = {path: names for path, names in parts.items() if not any(name.startswith(".") for name in names)}
    return {".".join(names).removesuffix(".__init__"): path for path, names in own.items()}


MODULES = find_modules()


def package(module: str) -> str:
    """Return the name of a module's package in the table."""
    top, *rest = module.split(".")
    if top == "agentic" and rest[1:2] and rest[1] in WORLD_FILES:
        return "agentic/world"
    return rest[0] if top == "core" and rest else top


def imported_names(module: str, *, inside_functions: bool) -> Iterator[str]:
    """Yield what a module imports. `from a import b` gives a.b, which may be a module or a name in a."""
    path = MODULES[module]
    parents = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in walk(ast.parse(path.read_text()), inside_functions):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = parents[: len(parents) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def walk(node: ast.AST, inside_functions: bool) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if inside_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
            yield from walk(child, inside_functions)


@cache
def read_door(library: str) -> frozenset[str]:
    """Return `__all__` of a library."""
    body = ast.parse(MODULES[library].read_text()).body
    [door] = [node.value for node in body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
    return frozenset(ast.literal_eval(door))


def passes_a_door(name: str, importer: str) -> bool:
    """Return whether a module may import `name`: of a library that it is no part of, only what is in the door."""
    library = max((each for each in LIBRARIES if f"{name}.".startswith(f"{each}.")), key=len, default=importer)
    first, *rest = name.removeprefix(library).lstrip(".").split(".")
    if f"{importer}.".startswith(".".join(library.split(".")[:2]) + ".") or not first:
        return True
    is_public = not any(part.startswith("_") for part in rest)
    return first in read_door(library) and is_public and (not rest or f"{library}.{first}" in MODULES)


def as_module(name: str) -> str | None:
    """Return the module of the project that an imported name is, or is defined in."""
    if name in MODULES:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in MODULES else None


@cache
def imported_modules(module: str, *, inside_functions: bool) -> frozenset[str]:
    names = imported_names(module, inside_functions=inside_functions)
    return frozenset(found for name in names if (found := as_module(name)) and found != module)


def find_circle(graph: Mapping[str, Set[str]]) -> list[str]:
    """Return the nodes of one circle, the first one again at the end; empty if there is none."""
    done: set[str] = set()

    def visit(node: str, path: list[str]) -> list[str]:
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return []
        for target in sorted(graph.get(node, ())):
            if circle := visit(target, [*path, node]):
                return circle
        done.add(node)
        return []

    return next((circle for node in sorted(graph) if (circle := visit(node, []))), [])


def test_packages_import_what_the_table_allows_and_nothing_else() -> None:
    wrong = [
        f"{module} imports {target}: add `{package(target)}` to `{package(module)} ->` here, or better, do without"
        for module in MODULES
        for target in sorted(imported_modules(module, inside_functions=True))
        if package(module) != package(target) and package(target) not in ALLOWED.get(package(module), ())
    ]
    assert not wrong, "\n".join(wrong)


def test_the_table_has_no_import_that_nobody_uses() -> None:
    used = {
        (package(module), package(target))
        for module in MODULES
        for target in imported_modules(module, inside_functions=True)
    }
    unused = [f"{importer} -> {name}" for importer, names in ALLOWED.items() for name in sorted(names)]
    assert [line for line in unused if tuple(line.split(" -> ")) not in used] == []


def test_what_is_outside_a_library_comes_through_its_door() -> None:
    wrong = [
        f"{module} imports {name}, which is not in `__all__` of its library"
        for module in MODULES
        for name in imported_names(module, inside_functions=True)
        if not passes_a_door(name, module)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_door_names_what_is_there(library: str) -> None:
    found = import_module(library)
    missing = [name for name in read_door(library) if not hasattr(found, name) and f"{library}.{name}" not in MODULES]
    assert missing == []
    if library != "core.backends.verl":  # which needs verl
        exec(f"from {library} import *", {})


def test_what_a_reader_of_runs_and_a_method_import_loads_nothing_heavy() -> None:
    light = "core.inspect.view core.inspect.drift core.inspect.traces core.report core.retrieval core.sandbox.workspace"
    code = f"import {', '.join(light.split())}, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, text=True, capture_output=True)
    assert {"torch", "transformers", "faiss"}.isdisjoint(done.stdout.split())


def test_every_package_says_what_it_is() -> None:
    parts = (ROOT / "core").rglob("__init__.py")
    assert [str(path) for path in parts if ast.get_docstring(ast.parse(path.read_text())) is None] == []


def test_packages_have_no_circle() -> None:
    assert find_circle(ALLOWED) == []


def test_modules_have_no_circle() -> None:
    assert find_circle({module: imported_modules(module, inside_functions=False) for module in MODULES}) == []


def test_no_method_imports_another() -> None:
    def method(module: str) -> str:
        return ".".join(module.split(".")[:2])

    methods = [module for module in MODULES if module.startswith("agentic.")]
    wrong = [
        (module, target)
        for module in methods
        for target in imported_modules(module, inside_functions=True)
        if target.startswith("agentic.") and method(target) != method(module)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("library", "importers"),
    [
        ("slime", "core.backends.slime"),
        ("verl", "core.backends.verl"),
        ("tau2", "agentic.toolorchestra.tau2.worker"),
    ],
)
def test_a_library_is_imported_in_one_place(library: str, importers: str) -> None:
    wrong = [
        module
        for module in MODULES
        if not f"{module}.".startswith((f"{importers}.", "benchmarks.exactness.layers."))  # it runs beside each of them
        and any(f"{name}.".startswith(f"{library}.") for name in imported_names(module, inside_functions=True))
    ]
    assert wrong == []


def test_a_method_is_read_in_a_sitting() -> None:
    """The reading set is the Python files of the method's folder, without its world and its folders."""
    lines = {
        path.parent.name: sum(
            len(file.read_text().splitlines()) for file in path.parent.glob("*.py") if file.stem not in WORLD_FILES
        )
        for path in ROOT.glob("agentic/*/rollout.py")
    }
    too_long = {name: count for name, count in lines.items() if count > LONGER.get(name, MAX_METHOD_LINES)}
    assert not too_long


def test_what_a_method_needs_of_core_is_small() -> None:
    libraries = {library.split(".")[1] for library in LIBRARIES}
    lines: Counter[str] = Counter()
    for module, path in MODULES.items():
        if module.startswith("core.") and package(module) not in libraries | SERVERS:
            lines[package(module)] += len(path.read_text().splitlines())
    assert lines.total() <= MAX_CORE_LINES, lines


def test_a_circle_is_found() -> None:
    assert find_circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c", "b"]
    assert find_circle({"a": {"b", "c"}, "b": {"c"}}) == []
