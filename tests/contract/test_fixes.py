"""Every command that an error or a note prints is one that its parser takes as it is printed."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from core.data import DataError, read_tasks
from scripts import tokentrue

ROOT = Path(__file__).resolve().parents[2]
COMMAND = re.compile(r"tokentrue ((?:[^`;,).\n]|[.,](?=\S))+)")
GROUPS = {name.split()[0] for name in tokentrue.COMMANDS}
VALUES = {
    "evaluations: name": "essays",
    "evaluations: self.benchmark": "ruler",
    "evaluations: self.options": "--seeds 0",
    "command: name": "rejection",
    "evaluate: options.protocol": "frames",
    "tasks: count": "9",
    "tasks: 50 if count == 128 else 10": "9",
}
"""Fills in expressions of texts that are no paths, by module. All others become the path of a file."""
PLACEHOLDERS = {"PORT": "8000", "METHOD": "retool"}


def find_texts(tree: ast.Module) -> Iterator[str]:
    """Yield the texts of a module that it may print, with {expression} for what is filled in."""
    skipped = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    skipped |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    skipped |= {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.keyword) and node.arg == "prog"}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            parts = (p.value if isinstance(p, ast.Constant) else f"{{{ast.unparse(p.value)}}}" for p in node.values)
            yield "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            yield node.value


def find_commands() -> Iterator[tuple[str, str]]:
    """Yield (file, command) for each printed command."""
    for folder in ("core", "agentic", "benchmarks", "scripts"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for text in find_texts(ast.parse(path.read_text())):
                # What is filled in may hold a comma or a point, which would end the command.
                parts = re.split(r"\{([^{}]*)\}", text)
                parts[1::2] = [VALUES.get(f"{path.stem}: {expression}", "{FILE}") for expression in parts[1::2]]
                for match in COMMAND.finditer("".join(parts)):
                    # A script of the shell has variables, and tests of its own.
                    if match[1].split()[0] in GROUPS and len(match[1].split()) > 1 and "$" not in match[1]:
                        yield str(path.relative_to(ROOT)), match[1]


FOUND = list(find_commands())


@pytest.mark.parametrize(("file", "command"), FOUND, ids=[f"{file}-{i}" for i, (file, _) in enumerate(FOUND)])
def test_a_printed_command_is_taken(file: str, command: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("{}\n")
    words = [
        str(tmp_path / "file") if word in ("FILE", "PATH") or "{FILE}" in word else PLACEHOLDERS.get(word, word)
        for word in shlex.split(command)
    ]
    assert not parse_command(words), f"{file} prints a command that is refused: tokentrue {command}"


def parse_command(words: list[str]) -> str:
    """Return what is wrong with the words behind `tokentrue`."""
    name = tokentrue.find_command(words)
    if name is None:  # a group alone, or nothing, lists its commands
        return "" if words[-1:] == ["--help"] else "no such command"
    try:
        parser = import_module(tokentrue.COMMANDS[name].module).make_parser()
        parser.parse_args(words[tokentrue.words_before_arguments(name) :])
    except SystemExit as error:
        return f"ends with {error.code}" if error.code else ""
    return ""


def test_the_commands_are_found() -> None:
    files = {file for file, _ in FOUND}
    assert {"core/data/tasks.py", "benchmarks/table/evaluations.py"} <= files
    assert len(FOUND) >= 12


def test_the_fix_for_raw_hotpotqa_makes_tasks(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is pasted with a tokenizer for MODEL, and what it writes is read."""
    items = [
        {
            "_id": f"{number}",
            "question": f"Who is number {number}?",
            "answer": f"name {number}",
            "supporting_facts": [[f"Title {number}", 0]],
            "context": [[f"Title {number}", [f"It is name {number}."]], [f"Other {number}", ["Nothing is here."]]],
        }
        for number in range(12)
    ]
    (tmp_path / "raw file.json").write_text(json.dumps(items))
    with pytest.raises(DataError, match="Fix: build tasks from the file") as caught:
        read_tasks(tmp_path / "raw file.json")
    command = str(caught.value).split("`")[1].replace("MODEL", str(model)).replace("tasks.jsonl", f"{tmp_path}/t.jsonl")
    assert tokentrue.main(shlex.split(command)[1:]) == 0, capsys.readouterr().err
    assert len(read_tasks(tmp_path / "t.jsonl")) == 12
