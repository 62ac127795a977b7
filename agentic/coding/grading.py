"""Grades a diff: it is applied to a clean copy of the repository in a new sandbox, and the task's tests decide.

Only the diff leaves the agent's sandbox. In the clean copy, files that belong to the tests or configure them are then
restored, so the tests run as the task has them.

- `cases` are calls whose outcomes the host compares. The code under test runs in a process that never sees the right
  outcome, so nothing that it patches, prints or skips helps it.
- `FAIL_TO_PASS` and `PASS_TO_PASS` are tests of pytest, in one process with the code under test. Each must be reported
  as passed, or failed as its mark expects (as in SWE-bench), of a file or folder each test that no mark skips. Ours,
  which must fail, have to fail: else it is `tampered`. Code written against this very plugin could still lie.
- `eval_cmd` and `f2p_script` count by their exit code, as in slime. A package that ends its process with 0 passes them.
- `verifier` is Harbor's: its files come into /tests after the diff, and the number that test.sh writes is the reward.
  The whole repository is the agent's, so nothing in it is restored. Code under test runs inside test.sh, as in Harbor:
  it can end pytest with 0, or write the number itself.
"""

from __future__ import annotations

import json
import math
import re
import secrets
import shlex
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal, get_args

from agentic.coding.records import RepositoryTask
from core.sandbox.workspace import GIT, RepositoryWorkspace, WorkspaceError

Verdict = Literal[
    "solved", "tests_failed", "does_not_apply", "symlink", "submodule", "huge_diff", "no_diff", "no_report",
    "tampered", "test_timeout", "test_output_limit", "workspace_lost",
]  # fmt: skip
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
"""Names all ends of a grading. All but `solved` have the reward 0, or what a verifier's test.sh has written."""

PROTECTED_NAMES = frozenset(
    """
    conftest.py pytest.ini .pytest.ini tox.ini setup.cfg setup.py pyproject.toml noxfile.py sitecustomize.py
    usercustomize.py pytest.py unittest.py .gitattributes .gitmodules .coveragerc pytest.toml .pytest.toml
    """.split()
)
PROTECTED_FOLDERS = frozenset(("tests", "test", "testing", "__pycache__", "_pytest", "pytest", ".git", "tests.py"))
SCRIPT = re.compile(r"(?<![\w./-])(?:\./)*([\w./-]+\.sh)\b")  # from the beginning of a word, or long ones took seconds
OUTPUT_BYTES = 1 << 20
REPORT_BYTES = 1 << 12
VERIFIER_FOLDERS = ("/tests", "/logs")
"""Holds what only a verifier has: its files, and what it writes."""

# Runs as the process of the code under test: calls functions and writes their outcomes to the stream that was stdout.
_CALLER = """
import importlib, json, os, sys
answers = os.fdopen(os.dup(1), "w")
nowhere = os.open(os.devnull, os.O_WRONLY)
for stream in 1, 2:
    os.dup2(nowhere, stream)
sys.path.insert(0, os.getcwd())
for line in sys.stdin.read().splitlines():
    function, arguments = json.loads(line)
    module, _, name = function.rpartition(".")
    try:
        call = getattr(importlib.import_module(module), name)
        try:
            outcome = {"returns": call(*arguments)}
        except BaseException as error:
            outcome = {"raises": type(error).__name__}
        text = json.dumps(outcome, sort_keys=True)
    except BaseException as error:  # there is no such function, or JSON cannot hold what it returned: no case has that
        text = json.dumps({"lost": type(error).__name__})
    answers.write(text + "\\n")
answers.flush()
"""

# A plugin of pytest: writes the outcome of every test as a line of JSON to the stream that was stdout. The repository
# comes last in sys.path, so a file of it replaces no module of Python or pytest.
_REPORTER = """
import json, os, sys
sys.path.append(os.getcwd())
answers = os.fdopen(os.dup(9), "w")
def pytest_runtest_logreport(report):
    outcome, marks = report.outcome, {*report.keywords}  # without a mark the code under test may have skipped it
    if outcome == "skipped" and hasattr(report, "wasxfail") and "xfail" in marks:  # nor may it have called xfail()
        outcome = "passed" if report.when == "setup" or "XFailed" not in str(report.longrepr) else "skipped"
    elif outcome == "skipped" and report.when == "setup" and marks & {"skip", "skipif"}:
        outcome = "left out"
    if report.when == "call" or report.outcome != "passed":
        answers.write(json.dumps([report.nodeid, outcome]) + "\\n")
        answers.flush()
"""
# Finds the configuration in the repository's root: a protected file, so it is as it was before the diff. NONE is an
# empty one of ours.
_FIND_CONFIG = """config=NONE
for each in 'setup.cfg [[]tool:pytest]' 'tox.ini [[]pytest]' 'pyproject.toml [[]tool[.]pytest[].]' \
    .pytest.ini pytest.ini .pytest.toml pytest.toml; do
    file=${each%% *} section=${each#* }
    [ -f $file ] && { [ $file = "$section" ] || grep -q "^$section" $file; } && config=$file
done
"""
_CONTROLS = """
import unittest
class Test_NAME(unittest.TestCase):
    def test_1(self):
        assert 1 == 2
    def test_2(self):
        raise RuntimeError
    def test_3(self):
        self.assertEqual([1], [2])
"""


@dataclass(frozen=True, slots=True)
class DiffGrade:
    """Holds the verdict on a diff, and what a reader should know of it."""

    verdict: Verdict
    detail: str = ""
    score: float | None = None
    """Holds the number that a verifier has written."""

    @property
    def reward(self) -> float:
        return float(self.verdict == "solved") if self.score is None else self.score


async def grade(workspace: RepositoryWorkspace, task: RepositoryTask, diff: bytes, timeout_s: float) -> DiffGrade:
    """Grade a diff in `workspace`, a clean copy of the repository that has been started.

    Raises:
        WorkspaceError: the workspace failed before any code of the diff ran.
    """
    if len(diff) > workspace.limits.diff_bytes:
        return DiffGrade("huge_diff", f"{len(diff)} bytes")
    if diff.strip():
        refused = await _apply(workspace, diff, task)
        if refused is not None:
            return refused
    try:
        if task.cases:
            return await _run_cases(workspace, task, timeout_s)
        if task.tests:
            return await _run_tests(workspace, task, timeout_s)
        if task.verifier:
            return await _run_verifier(workspace, task, timeout_s)
        command = task.eval_cmd or 'exec python3 -c "$(cat)" < /dev/null'  # in its quotes Linux would not take it all
        script = b"" if task.eval_cmd else task.script.encode(errors="replace")
        result = await workspace.exec(command, script, timeout_s=timeout_s, output_bytes=OUTPUT_BYTES)
        return _judge(result.reason) or DiffGrade("solved" if result.ok else "tests_failed", _tail(result.stdout))
    except WorkspaceError as error:
        return DiffGrade("workspace_lost", str(error))  # by the code of the diff: the copy was fine before


async def _apply(workspace: RepositoryWorkspace, diff: bytes, task: RepositoryTask) -> DiffGrade | None:
    """Apply the diff; without a verifier bring back every protected file as it was. Return why, if it is refused."""
    command = (
        f"{GIT} apply --index --whitespace=nowarn - && "
        f"exec {GIT} diff --cached --raw -z --no-renames --no-ext-diff {workspace.base}"
    )
    result = await workspace.exec(
        command, diff, timeout_s=workspace.limits.start_timeout_s, output_bytes=2 * workspace.limits.diff_bytes
    )
    if not result.ok:
        return DiffGrade("does_not_apply", result.stderr.decode(errors="replace")[:500])
    # For each file: `:OLDMODE NEWMODE OLDHASH NEWHASH STATUS`, then its path.
    fields = result.stdout.decode("utf-8", "surrogateescape").split("\0")
    added: list[str] = []
    changed: list[str] = []
    for head, path in zip(fields[0::2], fields[1::2], strict=False):
        old_mode, new_mode = head[1:].split()[:2]
        if "120000" in (old_mode, new_mode):
            return DiffGrade("symlink", path)
        if "160000" in (old_mode, new_mode):
            return DiffGrade("submodule", path)
        if not task.verifier and is_protected(path, task):
            (added if old_mode == "000000" else changed).append(path)
    for undo, paths in ((f"{GIT} rm -q -f", added), (f"{GIT} checkout -q {workspace.base}", changed)):
        if not paths:
            continue
        listed = "\0".join(paths).encode("utf-8", "surrogateescape")
        command = f"GIT_LITERAL_PATHSPECS=1 {undo} --pathspec-from-file=- --pathspec-file-nul"
        undone = await workspace.exec(command, listed, timeout_s=workspace.limits.start_timeout_s)
        if not undone.ok:  # such as a file where the tests have a folder
            return DiffGrade("does_not_apply", undone.stderr.decode(errors="replace")[:500])
    return None


def is_protected(path: str, task: RepositoryTask) -> bool:
    """Say whether a file belongs to the tests, configures or runs them; a change of it never counts.

    Some packages have source in a folder of the tests' names, as django/test: there a file is source that the record's
    own repair touches, if no test is named in that folder, nor a folder around the file.
    """
    whole = PurePosixPath(path)
    parts = [part.lower() for part in whole.parts]
    name = parts[-1]
    if (
        name in PROTECTED_NAMES
        or path in task.test_files
        or (path not in task.repaired and path in SCRIPT.findall(task.eval_cmd.replace(f"{task.workdir}/", "")))
        or name.startswith("test_")
        or name.endswith(("_test.py", ".pth", ".pyc", ".so"))
    ):
        return True
    depth = next((n for n, part in enumerate(parts, 1) if part in PROTECTED_FOLDERS), 0)
    if not depth or path not in task.repaired:
        return bool(depth)
    folder, named = PurePosixPath(*whole.parts[:depth]), map(PurePosixPath, task.test_files)
    return any(place in whole.parents or folder in (place, *place.parents) for place in named)


async def _run_cases(workspace: RepositoryWorkspace, task: RepositoryTask, timeout_s: float) -> DiffGrade:
    calls = "\n".join(json.dumps([case["function"], case["arguments"]]) for case in task.cases)
    if task.image or task.pre_commands:  # they may have installed packages that the repository needs
        # -I: neither variables nor the repository decide which modules the interpreter itself takes.
        command = f"exec python3 -I -B -c {shlex.quote(_CALLER)}"
        result = await workspace.exec(command, calls.encode(), timeout_s=timeout_s, output_bytes=OUTPUT_BYTES)
    else:
        result = await workspace.run_python(_CALLER, calls.encode(), timeout_s=timeout_s, output_bytes=OUTPUT_BYTES)
    if (ended := _judge(result.reason)) is not None:
        return ended
    right = [_canonical({key: case[key] for key in ("returns", "raises") if key in case}) for case in task.cases]
    answers = [_read_outcome(line) for line in result.stdout.splitlines()]
    if len(answers) != len(right):
        return DiffGrade("no_report", f"{len(answers)} answers to {len(right)} calls")
    wrong = sum(answer != expected for answer, expected in zip(answers, right, strict=True))
    return DiffGrade("tests_failed", f"{wrong} of {len(right)} cases") if wrong else DiffGrade("solved")


def _canonical(outcome: object) -> str:
    """Return JSON as one text, in which 1, 1.0 and true differ."""
    return json.dumps(outcome, sort_keys=True)


def _read_outcome(line: bytes) -> str:
    try:
        return _canonical(json.loads(line))
    except (ValueError, RecursionError):
        return ""


async def _run_tests(workspace: RepositoryWorkspace, task: RepositoryTask, timeout_s: float) -> DiffGrade:
    """Run the named tests by pytest under the repository's configuration, or none, and the controls among them."""
    secret = secrets.token_hex(8)
    folder = f"/tmp/{secret}"
    plugin, controls = f"report_{secret}", f"{folder}/test_{secret}.py"
    await workspace.put(f"{folder}/{plugin}.py", _REPORTER.encode())
    await workspace.put(f"{folder}/pytest.ini", b"[pytest]\n")
    await workspace.put(controls, _CONTROLS.replace("NAME", secret).encode())
    names = " ".join(map(shlex.quote, (*task.tests, controls)))
    command = (
        f"{_FIND_CONFIG.replace('NONE', f'{folder}/pytest.ini')}"
        # An empty part of PYTHONPATH would be the current folder.
        f"PYTHONPATH={folder}${{PYTHONPATH:+:$PYTHONPATH}} PYTEST_ADDOPTS= exec python3 -P -m pytest "
        f'-p {plugin} -c "$config" -o addopts= -o required_plugins= -o cache_dir={folder}/cache '
        f"--rootdir {shlex.quote(workspace.workdir)} -q {names} 9>&1 >/dev/null 2>&1\n"
    )
    await workspace.put(f"{folder}/run.sh", command.encode())  # as an argument Linux takes 128 KiB
    result = await workspace.exec(f"exec sh {folder}/run.sh", timeout_s=timeout_s, output_bytes=OUTPUT_BYTES)
    if (ended := _judge(result.reason)) is not None:
        return ended
    outcomes: dict[str, set[str]] = {}
    for line in result.stdout.splitlines():
        try:
            name, outcome = json.loads(line)
        except ValueError:
            return DiffGrade("no_report", "a line is no report")
        outcomes.setdefault(str(name), set()).add(str(outcome))
    failed_controls = sum(seen == {"failed"} for name, seen in outcomes.items() if secret in name)
    if not outcomes or not any(secret in name for name in outcomes):
        return DiffGrade("no_report", f"exit code {result.exit_code}")
    if failed_controls != 3:
        return DiffGrade("tampered", f"{failed_controls} of 3 controls failed")
    wrong = [name for name in task.tests if not passes(name, outcomes)]
    return DiffGrade("tests_failed", " ".join(wrong)[:500]) if wrong else DiffGrade("solved")


def passes(name: str, outcomes: Mapping[str, set[str]]) -> bool:
    """Return whether a named test has passed: of a folder, file, class or parameters, each that no mark leaves out."""
    if name in outcomes:  # as most are; to look through all outcomes for each of thousands would take long
        return outcomes[name] == {"passed"}
    inside = (f"{name.rstrip('/')}/", f"{name}::", f"{name}[")
    found = [seen for test, seen in outcomes.items() if test.startswith(inside)]
    return {"passed"} in found and all(seen in ({"passed"}, {"left out"}) for seen in found)


async def _run_verifier(workspace: RepositoryWorkspace, task: RepositoryTask, timeout_s: float) -> DiffGrade:
    """Run test.sh of a Harbor task, and read the number that it has written into /logs/verifier."""
    for path, content in task.verifier.items():
        await workspace.put(f"/tests/{path}", content)
    command = "mkdir -p /logs/verifier && rm -f /logs/verifier/reward.* && chmod -R +x /tests && exec /tests/test.sh"
    result = await workspace.exec(command, timeout_s=timeout_s, output_bytes=OUTPUT_BYTES)
    if (ended := _judge(result.reason)) is not None:
        return ended
    if result.exit_code > 128:  # what it had written until then is no verdict
        return DiffGrade("no_report", f"test.sh was ended by signal {result.exit_code - 128}")
    # Both are there and differ: one of them is not test.sh's.
    read = (
        "cd /logs/verifier && "
        '{ [ ! -f reward.json ] || [ ! -f reward.txt ] || [ "$(cat reward.json)" = "$(cat reward.txt)" ]; } && '
        "for file in reward.json reward.txt; do [ -f $file ] && exec cat $file; done; exit 1"
    )
    report = await workspace.exec(read, timeout_s=workspace.limits.start_timeout_s, output_bytes=REPORT_BYTES)
    score = read_score(report.stdout) if report.ok else None
    if score is None:
        told = report.stdout.decode(errors="replace") if report.ok else "nothing"
        return DiffGrade("no_report", f"test.sh wrote {told!r:.80} as its reward: {_tail(result.stdout)}")
    return DiffGrade("solved" if score >= 1 else "tests_failed", f"{score:g}: {_tail(result.stdout)}", score)


def read_score(report: bytes) -> float | None:
    """Return the number in reward.txt or reward.json; of several the one named `reward`. None if there is none."""
    with suppress(ValueError, KeyError, RecursionError, OverflowError):
        try:
            value = float(report)  # `bc` writes .5, which is no JSON
        except ValueError:
            value = json.loads(report)
        if isinstance(value, dict):
            value = value["reward"] if "reward" in value or len(value) != 1 else next(iter(value.values()))
        if isinstance(value, int | float) and math.isfinite(value):
            return float(value)
    return None


def _judge(reason: str) -> DiffGrade | None:
    """Return the grade of tests that a limit ended."""
    if reason == "exit":
        return None
    return DiffGrade("test_timeout" if reason == "timeout" else "test_output_limit")


def _tail(output: bytes) -> str:
    return output.decode(errors="replace")[-500:]
