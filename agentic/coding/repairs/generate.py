"""Builds repair tasks around broken functions, and checks each: its tests fail before the repair and pass after it.

A task is a record in slime's format: `prompt`, `label`, `metadata`. Beside slime's fields, `metadata` holds the
repository as files, the visible tests by name (FAIL_TO_PASS, PASS_TO_PASS), hidden `cases`, and the right `patch`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import unified_diff
from random import Random
from typing import Any, Literal

from agentic.coding.repairs.functions import RECORDS, SIMPLE_WORDS, MadeFunction, Split, draw_report, helpers_of
from agentic.coding.repairs.mutations import Mutation, draw_mutation, draw_other_sign, list_mutations

Size = Literal["package", "function", "guarded", "unseen"]
"""Says how large a repository is. A `package` has two modules with any bug. A `function` is one report whose comparison
has a wrong sign; a `guarded` one begins with an answer for no records, and an `unseen` one is of a kind that no other
task has."""

WORKDIR = "/testbed"

DRAWS, VISIBLE, HIDDEN = 40, 4, 10


@dataclass(frozen=True, slots=True)
class TestCase:
    """Holds the arguments of a call and its outcome: {"returns": value} or {"raises": name}."""

    __test__ = False  # pytest must not take it for a test

    arguments: list[Any]
    outcome: dict[str, Any]


def draw_record(split: Split, number: int, size: Size) -> dict[str, Any]:
    """Draw task `number` of a split as a record; the same arguments give the same record on every machine.

    The comparisons of single functions take turns, so each of the four signs is right in a quarter of the tasks.
    """
    rng = Random(f"{split}-{number}-{size}")
    words = SIMPLE_WORDS[number % len(SIMPLE_WORDS)]
    while True:
        package, modules = _draw_modules(rng, split, size, words)
        path, function = rng.choice([(path, function) for path, group in modules.items() for function in group])
        if size == "package":
            mutation = draw_mutation(rng, list_mutations(function.source))
        else:
            mutation = draw_other_sign(rng, function.source)
        cases = _choose_cases(rng, function, mutation)
        if cases is not None:
            break
    all_cases = {made.name: _draw_cases(rng, made)[:VISIBLE] for group in modules.values() for made in group}
    all_cases[function.name] = cases
    files = _write_files(package, modules, all_cases)
    right = files[path]
    files[path] = right.replace(function.source, mutation.source)
    failing, passing = _name_tests(modules, all_cases, function, mutation)
    return {
        "prompt": (statement := _write_statement(path, function, mutation, cases, size)),
        "label": f"{split}-{number}",
        "metadata": {
            "instance_id": f"{split}-{number}",
            "kind": mutation.kind,
            "workdir": WORKDIR,
            "problem_statement": statement,
            "repository": files,
            "FAIL_TO_PASS": failing,
            "PASS_TO_PASS": passing,
            "cases": [
                {"function": _import_path(path, made.name), "arguments": case.arguments, **case.outcome}
                for path, group in modules.items()
                for made in group
                for case in all_cases[made.name]
            ],
            "patch": write_patch(path, files[path], right),
        },
    }


def call_source(source: str, name: str, arguments: Sequence[Any]) -> dict[str, Any]:
    """Run one of the generator's own functions; return {"returns": value} or {"raises": name of the exception}."""
    names: dict[str, Any] = {}
    exec(source, names)
    try:
        return {"returns": json.loads(json.dumps(names[name](*json.loads(json.dumps(arguments)))))}
    except Exception as error:
        return {"raises": type(error).__name__}


def write_patch(path: str, before: str, after: str) -> str:
    """Return the change of one file as git's diff."""
    lines = unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return f"diff --git a/{path} b/{path}\n" + "".join(lines)


def apply_patch(before: str, patch: str) -> str:
    """Return the file that `write_patch` made a change of, with the change."""
    lines, after, place = before.splitlines(True), list[str](), 0
    for line in patch.splitlines(True)[3:]:
        if hunk := re.match(r"@@ -(\d+)", line):
            after += lines[place : int(hunk[1]) - 1]
            place = int(hunk[1]) - 1
            continue
        after += [] if line.startswith("-") else [line[1:]]
        place += not line.startswith("+")
    return "".join(after + lines[place:])


def _draw_modules(rng: Random, split: Split, size: Size, words: str) -> tuple[str, dict[str, list[MadeFunction]]]:
    """Draw the package's name ("" for none) and its modules: path -> functions. A single function compares by `words`.

    A package has three reports and two helpers, drawn at random.
    """
    record = rng.choice(RECORDS)
    if size != "package":
        report = draw_report(rng, split, record, words=words, guarded=size == "guarded", unseen=size == "unseen")
        return "", {f"{record[0]}s.py": [report]}
    reports: dict[str, MadeFunction] = {}
    while len(reports) < 3:
        report = draw_report(rng, split, record)
        reports.setdefault(report.name, report)
    helpers = rng.sample(helpers_of(split), 2)
    package = f"{record[0]}_tools"
    return package, {f"{package}/{record[0]}s.py": list(reports.values()), f"{package}/helpers.py": helpers}


def _draw_cases(rng: Random, function: MadeFunction) -> list[TestCase]:
    drawn: dict[str, TestCase] = {}
    for _ in range(DRAWS):
        arguments = function.draw(rng)
        outcome = call_source(function.source, function.name, arguments)
        drawn.setdefault(json.dumps(arguments), TestCase(arguments, outcome))
    return list(drawn.values())


def _choose_cases(rng: Random, function: MadeFunction, mutation: Mutation) -> list[TestCase] | None:
    """Choose the cases of the broken function: the VISIBLE first ones, of which the first fails, and the hidden ones.

    At least two hidden ones fail too. None: the mutation shows too rarely.
    """
    cases = _draw_cases(rng, function)
    fails = [call_source(mutation.source, function.name, case.arguments) != case.outcome for case in cases]
    failing = [case for case, fail in zip(cases, fails, strict=True) if fail]
    passing = [case for case, fail in zip(cases, fails, strict=True) if not fail]
    if len(failing) < 3:
        return None
    others = [*failing[3:], *passing]
    rng.shuffle(others)
    chosen = [failing[0], *others[: VISIBLE - 1], *failing[1:3], *others[VISIBLE - 1 :]]
    return chosen[: VISIBLE + HIDDEN]


def _write_files(
    package: str, modules: Mapping[str, list[MadeFunction]], cases: Mapping[str, list[TestCase]]
) -> dict[str, str]:
    """Write the right repository: path -> text."""
    files = {path: "\n\n\n".join(made.source for made in group) + "\n" for path, group in modules.items()}
    for path, group in modules.items():
        names = ", ".join(made.name for made in group)
        head = f"from {_import_path(path)} import {names}\n"
        tests = [
            f"\n\ndef test_{made.name}_{number}():\n    {_write_assertion(made.name, case)}\n"
            for made in group
            for number, case in enumerate(cases[made.name][:VISIBLE], 1)
        ]
        files[_test_path(path)] = head + "".join(tests)
    if package:
        listed = "\n".join(f"- `{path}`: {', '.join(made.name for made in group)}" for path, group in modules.items())
        files[f"{package}/__init__.py"] = ""
        files["README.md"] = f"# {package}\n\n{listed}\n\nRun the tests with `python3 -m pytest`.\n"
    return files


def _write_assertion(name: str, case: TestCase) -> str:
    call, value = f"{name}({', '.join(map(repr, case.arguments))})", case.outcome["returns"]  # no right function raises
    return f"assert {call} {'is' if isinstance(value, bool) else '=='} {value!r}"


def _name_tests(
    modules: Mapping[str, list[MadeFunction]],
    cases: Mapping[str, list[TestCase]],
    broken: MadeFunction,
    mutation: Mutation,
) -> tuple[list[str], list[str]]:
    """Return the names of the visible tests that fail before the repair, and of the others."""
    failing: list[str] = []
    passing: list[str] = []
    for path, group in modules.items():
        for made in group:
            for number, case in enumerate(cases[made.name][:VISIBLE], 1):
                source = mutation.source if made is broken else made.source
                fails = call_source(source, made.name, case.arguments) != case.outcome
                (failing if fails else passing).append(f"{_test_path(path)}::test_{made.name}_{number}")
    return failing, passing


def _write_statement(
    path: str, function: MadeFunction, mutation: Mutation, cases: Sequence[TestCase], size: Size
) -> str:
    if size != "package":
        return state_problem(path)
    case = cases[0]
    call = f"{function.name}({', '.join(map(repr, case.arguments))})"
    wrong, right = (
        _tell(outcome) for outcome in (call_source(mutation.source, function.name, case.arguments), case.outcome)
    )
    return (
        f"`{call}` in `{path}` {wrong}, but it should {right.replace('returns', 'return', 1)}. Find the bug and fix it."
    )


def state_problem(path: str) -> str:
    """Say that something is wrong in a file, and nothing else."""
    return f"A test of {path} fails."


def _tell(outcome: Mapping[str, Any]) -> str:
    return f"fails with {outcome['raises']}" if "raises" in outcome else f"returns {outcome['returns']!r}"


def _import_path(path: str, name: str = "") -> str:
    module = path.removesuffix(".py").replace("/", ".")
    return f"{module}.{name}" if name else module


def _test_path(path: str) -> str:
    return f"tests/test_{path.rpartition('/')[2]}"
