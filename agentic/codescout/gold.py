"""Makes records of rows of SWE-bench, SWE-bench Pro or SWE-smith: a checkout, and the places that the patch touches.

    tokentrue data codescout ROWS --repositories DIR --checkouts DIR --out FILE

ROWS is a file or a data set of the hub (core/data). DIR of --repositories holds a git clone of every repository, by its
name with two underscores for the slash, such as django__django; it may be bare. The files of a row's `base_commit` come
into a folder of --checkouts, without .git.

| field of a record's metadata | meaning |
|---|---|
| folder | the checkout; or `repository`, the files themselves, as path -> text |
| file_changes | a list of {file, changes: {edited_modules, edited_entities}}; names are `a/b.py:Class.method` |
| repo, base_commit | where it comes from |

A row of the released data sets (OpenHands/SWE-bench_Verified-locagent and others) brings `file_changes`, which is taken
as it is. Otherwise it is found by comparing every Python file before and after the patch with the library `ast`: a
module is a class or function outside of any class, a function is one of these or a method, and one is touched if its
text differs or it is removed. What a patch adds is nowhere yet, so neither new files nor new functions count. A file
that it renames is named as it was, and only what changes in it counts. A row with `use_patch` (SWE-smith) has the
patch that breaks the code: the checkout has it, and undoing it is the change.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agentic.codescout.places import read_gold
from core.data import DataError, read_records, write_jsonl
from core.options import show_errors
from core.types import Task


def make_task(row: Mapping[str, Any], repositories: Path, checkouts: Path) -> Task:
    """Make the record of a row, and its checkout, unless that is there.

    Raises:
        DataError: the row has no places to find, or git failed.
    """
    needed = "instance_id", "repo", "problem_statement", "patch"
    if lacking := [field for field in needed if not str(row.get(field) or "").strip()]:
        raise DataError(f"{row.get('instance_id')} has no {lacking[0]}; it needs {', '.join(needed)}")
    name, repo = str(row["instance_id"]), str(row["repo"])
    clone, folder = repositories / repo.replace("/", "__"), (checkouts / name).resolve()
    commit = row.get("base_commit") or "HEAD"
    try:
        if not folder.exists():
            check_out(clone, commit, folder, row["patch"] if row.get("use_patch") else "")
        changes = row.get("file_changes") or find_changes(folder, row["patch"], reverse=bool(row.get("use_patch")))
        read_gold(changes)
    except (OSError, SyntaxError, ValueError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", b"") or b""
        raise DataError(f"{name}: {error} {said.decode(errors='replace').strip()}".rstrip()) from error
    metadata = {"folder": str(folder), "file_changes": changes, "repo": repo, "base_commit": commit}
    return Task(name, row["problem_statement"], (changes[0]["file"],), metadata=metadata)


def check_out(clone: Path, commit: str, folder: Path, patch: str = "") -> None:
    """Put the files of a commit into a new folder, with a patch if one is given. It is there whole, or not at all."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as made:
        files = Path(made, "files").resolve()
        files.mkdir()
        # `git archive` would leave out, and change, what a .gitattributes marks for export.
        index = {"GIT_INDEX_FILE": str(files.with_name("index"))}
        run_git(clone, "read-tree", commit, environment=index)
        run_git(clone, f"--work-tree={files}", "checkout-index", "--all", environment=index)
        if patch:
            apply_patch(files, patch)
        files.rename(folder)


def find_changes(folder: Path, patch: str, *, reverse: bool = False) -> list[dict[str, Any]]:
    """Return `file_changes`: what a patch, or undoing it with `reverse`, touches of the Python files of a checkout."""
    listed = run_git(folder, "apply", "--numstat", "-z", stdin=patch.encode()).decode()
    moves = re.findall("^rename from (.+)\nrename to (.+)$", patch, re.MULTILINE)
    renamed = {new: old for old, new in moves} if reverse else dict(moves)
    paths = {*(line.split("\t")[2] for line in listed.split("\0") if line), *renamed}
    before = {path: (folder / path).read_bytes() for path in paths if (folder / path).is_file()}
    with tempfile.TemporaryDirectory() as made:
        changed = Path(made)
        for path, content in before.items():
            (changed / path).parent.mkdir(parents=True, exist_ok=True)
            (changed / path).write_bytes(content)
        apply_patch(changed, patch, reverse=reverse)
        left = {path: changed / renamed.get(path, path) for path in before}
        after = {path: file.read_bytes() if file.is_file() else b"" for path, file in left.items()}
    moved = {path for path in before if path in renamed and before[path] == after[path]}
    files = sorted(path for path in before if path.endswith(".py") and path not in moved)
    return [{"file": path, "changes": compare(path, before[path], after[path])} for path in files]


def compare(path: str, before: bytes, after: bytes) -> dict[str, list[str]]:
    """Return the modules and functions of a file whose text differs, or that are removed.

    Raises:
        SyntaxError: the file is no Python.
    """
    edited = [
        [f"{path}:{name}" for name, text in old.items() if new.get(name) != text]
        for old, new in zip(list_definitions(before), list_definitions(after), strict=True)
    ]
    return dict(zip(("edited_modules", "edited_entities"), edited, strict=True))


def list_definitions(source: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """Map the names of modules, and those of functions, to their text with decorators.

    What a function holds belongs to it, as does a class in a class. Definitions of one name, such as a property and its
    setter, are one.
    """
    lines = re.split("\r\n|\r|\n", source.decode(errors="replace"))  # as `ast` counts them
    modules, functions = dict[str, str](), dict[str, str]()

    def visit(node: ast.AST, owner: str) -> None:
        for child in ast.iter_child_nodes(node):
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                if isinstance(child, ast.stmt | ast.excepthandler):  # a definition may stand in an if, try or with
                    visit(child, owner)
                continue
            first = min(each.lineno for each in (child, *child.decorator_list))  # lines count from 1
            name, text = f"{owner}{child.name}", "\n".join(lines[first - 1 : child.end_lineno])
            if not owner:
                modules[name] = modules.get(name, "") + text
            if not isinstance(child, ast.ClassDef):
                functions[name] = functions.get(name, "") + text
            elif not owner:
                visit(child, f"{name}.")

    visit(ast.parse(source), "")
    return modules, functions


def apply_patch(folder: Path, patch: str, *, reverse: bool = False) -> None:
    """Apply a patch to the files of a folder, or undo it. Raises CalledProcessError: it does not fit."""
    run_git(folder, "apply", *(["--reverse"] if reverse else []), stdin=patch.encode())


def run_git(folder: Path, *words: str, stdin: bytes = b"", environment: Mapping[str, str] | None = None) -> bytes:
    """Run git in a folder, which is no part of a repository around it, and return what it prints."""
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(folder.resolve().parent), **(environment or {})}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, input=stdin, check=True, capture_output=True, env=environment).stdout


@show_errors(DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    tasks, refused = list[Task](), list[str]()
    for _, row in read_records(options.rows):
        try:
            tasks.append(make_task(row, options.repositories, options.checkouts))
        except DataError as error:
            refused.append(str(error))
    if not tasks:
        raise DataError(f"{options.rows}: gives no record; {refused[0]}")
    write_jsonl(options.out, tasks)
    print(*(f"note: left out {line}\n" for line in refused), sep="", end="", file=sys.stderr)
    print(f"{options.out}: {len(tasks)} tasks, {len(refused)} rows left out")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue data codescout", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", metavar="ROWS", help="a file, or a data set of the hub")
    parser.add_argument("--repositories", type=Path, required=True, metavar="DIR", help="holds the git clones")
    parser.add_argument("--checkouts", type=Path, required=True, metavar="DIR", help="gets a folder for each row")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    return parser
