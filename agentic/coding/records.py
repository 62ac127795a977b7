"""Reads the metadata of a repository task. The fields are slime's, SWE-smith's and our own.

| field | meaning |
|---|---|
| image | the Docker image that holds the repository (slime) |
| repository | or the repository itself, as path -> text (ours) |
| workdir | the repository's folder, /testbed if it is missing (slime) |
| problem_statement | what is wrong; else the question (slime) |
| pre_commands | shell commands that prepare the repository, for the agent and again for the tests (slime) |
| cases | hidden calls with their outcomes: function, arguments, returns or raises (ours) |
| FAIL_TO_PASS, PASS_TO_PASS | names of pytest's tests, all of which must pass (SWE-smith, SWE-Gym) |
| verifier | or the files of a Harbor task's tests/, as path -> text; what test.sh writes is the reward (harbor.py) |
| eval_cmd | or a shell command, where exit code 0 means solved (slime) |
| remote_env_info | holds image_url, workdir, f2p_script (a Python file whose exit code decides) or the names (slime) |
| patch | the right diff, for checks alone (SWE-smith) |
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from agentic.coding.config import CodingRecipe
from core.sandbox.workspace import find_bad_path
from core.types import Task

COMMAND_BYTES = 100_000
"""Limits a text that becomes part of one command; Linux takes 128 KiB."""
NAMES_BYTES = 1 << 19
"""Limits the names of FAIL_TO_PASS, and of PASS_TO_PASS: all are the arguments of one command."""
CASES_CHARS = 1 << 19
"""Limits the cases; the outcomes of all calls must fit the output of one command (grading.py)."""
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
_DIFF_PATH = re.compile(r"^(?:---|\+\+\+) [ab]/([^\t\n]+)", re.MULTILINE)
_SYSTEM_FOLDERS = ("usr", "bin", "sbin", "lib", "lib64", "etc", "dev", "proc", "sys", "tmp")

Fault = tuple[str, str, str]
"""Says what is wrong with a record: field, problem, fix."""


class RecordError(ValueError):
    """Says what is wrong with a record; `fault` holds field, problem and fix."""

    def __init__(self, *fault: str):
        super().__init__(" ".join(fault))
        self.fault: Fault = (fault[0], fault[1], fault[2])


@dataclass(frozen=True, slots=True)
class RepositoryTask:
    """Holds what a rollout needs of a task. One of `cases`, `tests`, `verifier`, `eval_cmd` and `script` decides the
    reward."""

    statement: str
    workdir: str
    image: str
    files: Mapping[str, bytes]
    pre_commands: str
    cases: tuple[Mapping[str, Any], ...]
    tests: tuple[str, ...]
    verifier: Mapping[str, bytes]
    eval_cmd: str
    script: str
    test_files: frozenset[str] = frozenset()
    """Holds the files that the names of `tests` begin with."""
    repaired: frozenset[str] = frozenset()
    """Holds the paths that the right diff touches, where the record has it."""


def read_task(task: Task) -> RepositoryTask:
    """Read a task's metadata.

    Raises:
        RecordError: a field is missing, has another type, or cannot be graded here.
    """
    data = task.metadata
    remote = _mapping(data, "remote_env_info")
    tests = (*_names(data, remote, "FAIL_TO_PASS"), *_names(data, remote, "PASS_TO_PASS"))
    found = RepositoryTask(
        statement=_text(data, "problem_statement") or task.question,
        workdir=_text(data, "workdir") or _text(remote, "workdir") or "/testbed",
        image=_text(data, "image") or _text(remote, "image_url") or _text(remote, "image"),
        files=_read_files(data, "repository"),
        pre_commands=_commands(data) or _commands(remote),
        cases=tuple(_read_cases(data)),
        tests=tests,
        verifier=_read_files(data, "verifier"),
        eval_cmd=_text(data, "eval_cmd"),
        script=_text(remote, "f2p_script"),
        test_files=frozenset(name.partition("::")[0] for name in tests),
        repaired=frozenset(_DIFF_PATH.findall(_text(data, "patch"))),
    )
    path = PurePosixPath(found.workdir)
    if not path.is_absolute() or ".." in path.parts or str(path) in ("/", "/tmp"):
        raise RecordError("metadata.workdir", f"is {found.workdir!r}", "give a folder such as /testbed")
    if found.verifier and "test.sh" not in found.verifier:
        raise RecordError("metadata.verifier", "has no test.sh", "make it by `tokentrue data harbor FOLDER --out FILE`")
    if not (found.cases or found.tests or found.verifier or found.eval_cmd or found.script):
        if "swepro" in data:
            raise RecordError("metadata.swepro", "needs files of the host", "give FAIL_TO_PASS, PASS_TO_PASS instead")
        raise RecordError("metadata", "has nothing that grades", "give cases, FAIL_TO_PASS, eval_cmd or verifier")
    if found.tests and not (data.get("FAIL_TO_PASS") or remote.get("FAIL_TO_PASS")):
        raise RecordError("metadata.FAIL_TO_PASS", "is empty", "name the tests that a repair makes pass")
    if both := set(_names(data, remote, "FAIL_TO_PASS")) & set(_names(data, remote, "PASS_TO_PASS")):
        raise RecordError("metadata.PASS_TO_PASS", f"has {min(both)}, as FAIL_TO_PASS has", "name it in one of them")
    return found


def check_task(recipe: CodingRecipe, task: Task) -> Fault | None:
    """Return what is wrong with a task's record, or None."""
    try:
        found = read_task(task)
    except RecordError as error:
        return error.fault
    if recipe.coding.backend == "docker":
        if not found.image:
            return "metadata.image", "is missing", "name the Docker image, or set coding.backend=auto"
    elif not found.files and not (found.verifier and "repository" in task.metadata):
        fix = "give the repository as path -> text, or set coding.backend=docker and metadata.image"
        return "metadata.repository", "is missing", fix
    elif PurePosixPath(found.workdir).parts[1] in (*_SYSTEM_FOLDERS, *(("tests", "logs") if found.verifier else ())):
        return "metadata.workdir", f"{found.workdir} is the system's", "give a folder such as /testbed"
    return _check_files(recipe, task, found) if found.files else None


def _check_files(recipe: CodingRecipe, task: Task, found: RepositoryTask) -> Fault | None:
    """Return what is wrong with the files of a repository, which git keeps once more, or with what grades them."""
    limits, field, files = recipe.coding.workspace, "metadata.repository", found.files
    folders = {str(folder) for path in files for folder in PurePosixPath(path).parents}
    kept = len({*files.values()}) + len(folders)  # by git, which spreads them over 256 folders, beside 20 files
    if len(files) + len(folders) + kept + min(256, kept) + 20 > limits.files:
        return field, f"has {len(files)} files, twice with git", f"raise coding.workspace.files={limits.files}"
    if (size := sum(map(len, files.values()))) > limits.disk_mb << 20:
        return field, f"has {size} bytes", f"raise coding.workspace.disk_mb={limits.disk_mb}"
    if found.pre_commands:  # they may make what is missing
        return None
    for number, case in enumerate(found.cases):
        module = case["function"].rpartition(".")[0].replace(".", "/")
        if not {f"{module}.py", f"{module}/__init__.py"} & files.keys():
            return f"metadata.cases[{number}]", f"there is no {module}.py in the repository", "name its module"
    for key in ("FAIL_TO_PASS", "PASS_TO_PASS"):
        for name in _names(task.metadata, _mapping(task.metadata, "remote_env_info"), key):
            if name.partition("::")[0] not in files.keys() | folders:
                return f"metadata.{key}", f"{name} is not in the repository", "name a test in it"
    return None


def _text(data: Mapping[str, Any], field: str) -> str:
    value = data.get(field)
    if value is not None and not isinstance(value, str):
        raise RecordError(f"metadata.{field}", f"must be a text, is a {type(value).__name__}", "quote it")
    if "\0" in (value or ""):
        raise RecordError(f"metadata.{field}", "holds a null character", "no command can hold one; remove it")
    if field not in ("problem_statement", "patch") and len((value or "").encode(errors="replace")) > COMMAND_BYTES:
        raise RecordError(f"metadata.{field}", f"is longer than {COMMAND_BYTES} bytes", "put it into a file")
    if field == "image" and value and (value.startswith("-") or re.search(r"\s", value)):
        raise RecordError(f"metadata.{field}", f"{value!r} names no image", "write such as python:3.11")
    return value or ""


def _mapping(data: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    value = data.get(field)
    if value is not None and not isinstance(value, Mapping):
        raise RecordError(f"metadata.{field}", f"must be an object, is a {type(value).__name__}", "write a JSON object")
    return value or {}


def _commands(data: Mapping[str, Any]) -> str:
    value = data.get("pre_commands")
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        value = "\n".join(value)
    return _text({"pre_commands": value}, "pre_commands")


def _read_files(data: Mapping[str, Any], field: str) -> dict[str, bytes]:
    files = _mapping(data, field)
    if fault := find_bad_path(files):
        raise RecordError(f"metadata.{field}", *fault)
    if any(".git" in PurePosixPath(path).parts for path in files):
        raise RecordError(f"metadata.{field}", "has a folder .git", "leave it out: the workspace makes its own")
    return {path: text.encode("utf-8", "surrogatepass") for path, text in files.items()}


def _read_cases(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    cases = data.get("cases") or []
    if not isinstance(cases, list):
        raise RecordError("metadata.cases", "must be a list", "list calls with function, arguments and returns")
    for number, case in enumerate(cases):
        fix = 'write {"function": "package.module.name", "arguments": [...], "returns": ...}'
        if not isinstance(case, Mapping) or not isinstance(case.get("arguments"), list):
            raise RecordError(f"metadata.cases[{number}]", "has no list of arguments", fix)
        if not isinstance(name := case.get("function"), str) or not _FUNCTION.fullmatch(name):
            raise RecordError(f"metadata.cases[{number}]", "names no function", fix)
        if ("returns" in case) == ("raises" in case):
            raise RecordError(f"metadata.cases[{number}]", "must have one of returns and raises", fix)
        if not isinstance(case.get("raises", ""), str):
            raise RecordError(f"metadata.cases[{number}]", "raises must be the name of an exception", "quote it")
    if len(json.dumps(cases)) > CASES_CHARS:
        raise RecordError("metadata.cases", f"are longer than {CASES_CHARS} characters", "give fewer or smaller ones")
    return cases


def _names(data: Mapping[str, Any], remote: Mapping[str, Any], field: str) -> list[str]:
    """Read names of tests: a list, or the same as JSON text, as SWE-bench has it."""
    value = data.get(field) or remote.get(field) or []
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = None
    if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
        raise RecordError(f"metadata.{field}", "must be a list of pytest's names", "such as tests/test_a.py::test_b")
    if any(name.startswith(("-", "/")) or ".." in PurePosixPath(name.split("::")[0]).parts for name in value):
        raise RecordError(
            f"metadata.{field}", "names a path outside the repository", "give names such as tests/t.py::t"
        )
    if any("\0" in name for name in value):
        raise RecordError(f"metadata.{field}", "holds a null character", "remove it")
    if sum(len(name.encode(errors="replace")) for name in value) > NAMES_BYTES:
        raise RecordError(f"metadata.{field}", f"are longer than {NAMES_BYTES} bytes", "name folders or files")
    return value
