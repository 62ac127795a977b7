"""A class name is used once, a module is one idea, and a docstring is a sentence with a subject."""

from __future__ import annotations

import ast
from collections import defaultdict

from tests.contract.test_import_rules import MODULES

MAX_LINES = 600

USED_TWICE = {"Domain"}
"""Two tiny worlds call the kinds of their questions so."""


def test_a_class_name_is_used_once() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(module)
    twice = {name: modules for name, modules in places.items() if len(modules) > 1}
    assert {name: modules for name, modules in twice.items() if name not in USED_TWICE} == {}


def test_no_module_is_longer_than_600_lines() -> None:
    lines = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module: count for module, count in lines.items() if count > MAX_LINES} == {}


def test_no_docstring_outside_the_methods_lacks_its_subject() -> None:
    wrong = [
        f"{module}:{number}"
        for module, path in MODULES.items()
        if not module.startswith("agentic.")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if line.lstrip().startswith(('"""Is ', '"""Are ', '"""Was ', '"""Were '))
    ]
    assert wrong == []
