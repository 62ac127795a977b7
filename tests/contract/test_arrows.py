"""The arrows between rooms go one way (CONTRIBUTING.md, Arrows): every import of every module is looked at."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Rooms that may import nothing of the project but themselves and these.
ONLY = {
    "core.types": (),
    "core.algorithms": ("core.types",),
    "core.data": ("core.types",),
    "core.rewards": ("core.types",),
    "core.policy": ("core.types",),
    "core.tools": ("core.types", "core.policy", "core.options"),
}
# Rooms that may not import these.
NEVER = {
    "core": ("agentic", "benchmarks"),
    "core.rollout": ("core.engine",),
    "agentic": ("benchmarks",),
}


def within(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


def breach(importer: str, imported: str) -> str | None:
    """Which rule the import of module `imported` by module `importer` breaks; None if it is allowed."""
    if (
        within(imported, ("slime", "core.slime"))
        and within(importer, ("core",))
        and not within(importer, ("core.slime",))
    ):
        return "inside core, only core.slime knows slime"
    if within(imported, ("slime",)) and not within(importer, ("core.slime",)):
        return "only core.slime imports slime"
    if within(imported, ("tau2",)) and importer != "agentic.toolorchestra.tau2.worker":
        return "only agentic.toolorchestra.tau2.worker imports tau2"
    if within(imported, ("agentic",)) and within(importer, ("agentic",)):
        method = ".".join(importer.split(".")[:2])
        return None if within(imported, (method,)) else "no method imports another"
    for room, allowed in ONLY.items():
        if within(importer, (room,)) and within(imported, ("core",)) and not within(imported, (room, *allowed)):
            return f"{room} imports nothing of core but {', '.join(allowed) or 'itself'}"
    for room, forbidden in NEVER.items():
        if within(importer, (room,)) and within(imported, forbidden):
            return f"{room} never imports {' or '.join(forbidden)}"
    return None


def imports(path: Path, module: str) -> Iterator[str]:
    """Every module that the file imports, at any depth; `from a import b` gives a.b, which covers the submodule b."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *filter(None, [node.module])])
            yield from (f"{source}.{alias.name}" for alias in node.names)


def modules() -> dict[str, Path]:
    """The project's own modules by name; a folder such as benchmarks/speed/.venv holds other people's."""
    paths = (path for top in ("core", "agentic", "benchmarks") for path in sorted((ROOT / top).rglob("*.py")))
    names = {path: path.relative_to(ROOT).with_suffix("").parts for path in paths}
    own = {path: parts for path, parts in names.items() if not any(part.startswith(".") for part in parts)}
    return {".".join(parts).removesuffix(".__init__"): path for path, parts in own.items()}


MODULES = modules()


@pytest.mark.parametrize("module", MODULES)
def test_imports_follow_the_arrows(module: str) -> None:
    breaches = {name: breach(module, name) for name in imports(MODULES[module], module)}
    assert {name: rule for name, rule in breaches.items() if rule} == {}


@pytest.mark.parametrize(
    ("importer", "imported", "allowed"),
    [
        ("core.algorithms.grpo", "core.types.Row", True),
        ("core.algorithms.grpo", "core.policy.base", False),
        ("core.policy.sglang", "core.engine.engine", False),
        ("core.rollout.runner", "core.policy.base", True),
        ("core.rollout.runner", "core.engine.engine", False),
        ("core.engine.trainer", "core.rollout.runner", True),
        ("core.engine.trainer", "core.slime.hooks", False),
        ("core.slime.hooks", "slime.utils.types", True),
        ("core.report.html", "agentic.memagent.rollout", False),
        ("agentic.memagent.rollout", "core.slime.hooks", True),
        ("agentic.memagent.rollout", "slime.utils.types", False),
        ("agentic.memagent.rollout", "agentic.memagent.prompts", True),
        ("agentic.agentflow.rollout", "agentic.memagent.prompts", False),
        ("agentic.memagent.data", "benchmarks.ruler", False),
        ("benchmarks.ruler.run", "agentic.memagent.rollout", True),
    ],
)
def test_rules_say_what_the_design_says(importer: str, imported: str, allowed: bool) -> None:
    assert (breach(importer, imported) is None) == allowed


@pytest.mark.parametrize("path", sorted(ROOT.glob("agentic/*/rollout.py")), ids=lambda path: path.parent.name)
def test_a_method_is_read_in_one_go(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 200
