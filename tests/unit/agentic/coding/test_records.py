"""Records: slime's, SWE-smith's and our own are read, and a broken one fails by the name of its field."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from agentic.coding.grading import is_protected
from agentic.coding.records import check_task, read_task
from agentic.coding.repairs.generate import draw_record
from agentic.coding.rollout import SPEC
from core.data import DataError, read_tasks
from core.types import Task

GOOD = draw_record("dev", 0, "function")
REMOTE = {"image_url": "an/image", "workdir": "/repo", "f2p_script": "raise SystemExit(1)"}
SLIME = {"image": "an/image:1", "workdir": "/workspace/repo", "problem_statement": "It fails.", "eval_cmd": "pytest -x"}


def read(tmp_path: Path, record: dict[str, Any], *overrides: str) -> list[Task]:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(record) + "\n")
    return read_tasks(path, **reading_options(*overrides))


@cache
def reading_options(*overrides: str) -> Any:
    return SPEC.reading_options(SPEC.load("tiny", list(overrides)))


def test_our_own_and_slimes_records_are_read(tmp_path: Path) -> None:
    (task,) = read(tmp_path, GOOD)
    assert read_task(task).files["tests/test_" + next(iter(GOOD["metadata"]["repository"]))]
    (task,) = read(tmp_path, {"prompt": "-", "label": "i", "metadata": SLIME}, "coding.backend=docker")
    found = read_task(task)
    assert (found.image, found.workdir, found.statement) == ("an/image:1", "/workspace/repo", "It fails.")
    assert found.eval_cmd == "pytest -x"


def test_names_of_tests_may_be_json_and_remote(tmp_path: Path) -> None:
    remote = {"image_url": "an/image", "FAIL_TO_PASS": '["tests/test_a.py::test_b"]', "PASS_TO_PASS": ["tests/t.py::t"]}
    record = {"prompt": "It fails.", "label": "i", "metadata": {"remote_env_info": remote, "pre_commands": ["a", "b"]}}
    (task,) = read(tmp_path, record, "coding.backend=docker")
    found = read_task(task)
    assert found.tests == ("tests/test_a.py::test_b", "tests/t.py::t")
    assert (found.image, found.pre_commands, found.statement) == ("an/image", "a\nb", "It fails.")


@pytest.mark.parametrize(
    "metadata",
    [
        {"FAIL_TO_PASS": ["docs/usage.rst::usage.rst"]},
        {"eval_cmd": "cd /testbed && bash ./docs/usage.rst.sh; sh /testbed/run.sh"},
    ],
    ids=["a doctest", "a script"],
)
def test_what_decides_is_no_source(metadata: dict[str, Any]) -> None:
    task = read_task(Task("t", "It fails.", ("i",), metadata={"repository": {"a.py": ""}, **metadata}))
    files = ("docs/usage.rst",) if task.tests else ("docs/usage.rst.sh", "run.sh")
    assert all(is_protected(path, task) for path in files)
    assert not is_protected("docs/other.rst", task)


def test_a_script_that_the_repair_touches_is_source() -> None:
    metadata = {"repository": {"run.sh": ""}, "eval_cmd": "bash run.sh", "patch": "--- a/run.sh\n+++ b/run.sh\n"}
    assert not is_protected("run.sh", read_task(Task("t", "It fails.", ("i",), metadata=metadata)))


def test_the_files_that_git_keeps_are_counted_as_they_are() -> None:
    recipe = SPEC.load("tiny", ["coding.workspace.files=8192"])
    for count, text, fault in ((3957, "{}", False), (3958, "{}", True), (7000, "", False)):
        files = {f"{number}.py": text.format(number) for number in range(count)}
        task = Task("t", "It fails.", ("i",), metadata={"repository": files, "eval_cmd": "true"})
        assert (check_task(recipe, task) is not None) == fault


WRONG_TYPES = (7, 1.5, True, ["x", 3], "text", {"x": 1})
SMALL = ("coding.workspace.files=99", "coding.workspace.disk_mb=1")
TYPES = {
    "image": str, "workdir": str, "problem_statement": str, "eval_cmd": str, "pre_commands": str, "repository": dict,
    "cases": list, "remote_env_info": dict, "FAIL_TO_PASS": list, "PASS_TO_PASS": list,
    "verifier": dict,
}  # fmt: skip
LONG = "x" * 600_000
NULL, SURROGATE = "a\0b", "a\ud800b"
CASE, SOURCE = GOOD["metadata"]["cases"][0], next(iter(GOOD["metadata"]["repository"]))
NOTHING: dict[str, Any] = {"cases": [], "FAIL_TO_PASS": [], "PASS_TO_PASS": []}
Broken = tuple[str, dict[str, Any]]
"""A field, and the change of a right record's metadata after which that field is wrong."""

COMMON: list[Broken] = [
    *(
        (field, {field: value})
        for field, kind in TYPES.items()
        for value in WRONG_TYPES
        if not isinstance(value, kind) or (field.endswith("PASS") and isinstance(value, list))
    ),
    *((field, {field: text}) for field in ("image", "workdir", "eval_cmd", "pre_commands") for text in (NULL, LONG)),
    *(("metadata", {field: SURROGATE}) for field in ("problem_statement", "eval_cmd", "pre_commands")),
    ("pre_commands", {"pre_commands": ["make", NULL]}),
    *(("image", {"image": name}) for name in ("--privileged", "-v /:/host an/image", "an image")),
    *(("workdir", {"workdir": path}) for path in ("repo", "/", "/tmp", "/a/../b", "../x", ".")),
    ("FAIL_TO_PASS", {"FAIL_TO_PASS": "no json"}),
    ("FAIL_TO_PASS", {"FAIL_TO_PASS": [], "cases": [], "PASS_TO_PASS": ["tests/t.py::t"]}),
    ("PASS_TO_PASS", {"FAIL_TO_PASS": ["tests/t.py::a"], "PASS_TO_PASS": ["tests/t.py::b", "tests/t.py::a"]}),
    *(
        (field, {field: [name]})
        for field in ("FAIL_TO_PASS", "PASS_TO_PASS")
        for name in ("", 3, None, "-p", "/etc/x.py", "../x.py::t", f"tests/{NULL}.py", LONG)
    ),
    ("swepro", {**NOTHING, "eval_cmd": None, "remote_env_info": None, "swepro": {"instance_id": "x"}}),
    *(
        ("cases[0]", {"cases": [case]})
        for case in (
            3, None, [], {}, {"function": "a.b"}, {**CASE, "arguments": {}}, {**CASE, "arguments": None},
            {**CASE, "function": None}, {**CASE, "function": "b"}, {**CASE, "function": ".b"},
            {**CASE, "function": "a..b"}, {**CASE, "function": "a.b()"}, {**CASE, "function": "a.b c"},
            {"function": "a.b", "arguments": []}, {**CASE, "returns": 1, "raises": "E"},
            {"function": "a.b", "arguments": [], "raises": 3}, {"function": "a.b", "arguments": [], "return": 3},
        )
    ),
    ("cases[1]", {"cases": [CASE, {**CASE, "function": "nowhere"}]}),
    ("cases", {"cases": [{**CASE, "arguments": [LONG]}] * 3}),
    *(("verifier", {"verifier": files}) for files in ({"a.sh": ""}, {"test.sh": 1}, {"../test.sh": ""})),
]  # fmt: skip
OURS: list[Broken] = [
    *(
        ("repository", {"repository": {path: "x"}})
        for path in (
            "/a.py", "../a.py", "a/../../b.py", ".git/config", "sub/.git/hooks/x", "", ".", "./a.py", "a//b.py", "a/",
            NULL, "n" * 256,
        )
    ),
    *(("repository", {"repository": {"a.py": text}}) for text in (1, None, ["x"], {"x": "y"})),
    ("repository", {"repository": {}}),
    ("repository", {"repository": None}),
    ("repository", {"repository": {"a": "x", "a/b.py": "x"}}),
    ("repository", {"repository": {f"{number}.py": f"{number}" for number in range(40)}}),
    ("repository", {"repository": {"a.py": "x" * (1 << 20), "b.py": "x"}}),
    *(("workdir", {"workdir": path}) for path in ("/usr/src/app", "/bin", "/proc/x", "/dev/shm")),
    ("cases[0]", {"cases": [{**CASE, "function": "missing.count"}]}),
    *((field, {field: ["tests/missing.py::t"]}) for field in ("FAIL_TO_PASS", "PASS_TO_PASS")),
    ("FAIL_TO_PASS", {"FAIL_TO_PASS": ["test::t"]}),
    ("metadata", {**NOTHING}),
    ("metadata", dict.fromkeys(NOTHING)),
]  # fmt: skip
SLIMES: list[Broken] = [
    ("image", {"image": None}),
    ("image", {"image": ""}),
    ("metadata", {"eval_cmd": None}),
    ("metadata", {"eval_cmd": ""}),
    ("metadata", {"eval_cmd": None, "remote_env_info": {}}),
    *(
        (field, {"eval_cmd": None, "image": None, "workdir": None, "remote_env_info": {**REMOTE, field: value}})
        for field in ("image_url", "workdir", "f2p_script")
        for value in (7, ["x"], {"x": 1}, NULL, LONG)
    ),
    ("image", {"image": None, "remote_env_info": {**REMOTE, "image_url": None}}),
    ("FAIL_TO_PASS", {"eval_cmd": None, "remote_env_info": {**REMOTE, "PASS_TO_PASS": ["tests/t.py::t"]}}),
    ("FAIL_TO_PASS", {"eval_cmd": None, "remote_env_info": {**REMOTE, "FAIL_TO_PASS": "{}"}}),
]
TOP: list[Broken] = [
    *(("prompt", {"prompt": value}) for value in (None, "", 7, {"x": 1})),
    *(("label", {"label": value}) for value in (None, "", {"x": 1})),
    *(("metadata", {"metadata": value}) for value in (7, "text", ["x"])),
]
"""Changes of a record itself."""

EVERY = [
    *(("ours", GOOD, change) for change in (*COMMON, *OURS)),
    *(("slime's", {"prompt": "-", "label": "i", "metadata": SLIME}, change) for change in (*COMMON, *SLIMES)),
]


def expect_fault(tmp_path: Path, record: dict[str, Any], field: str, *overrides: str) -> None:
    with pytest.raises(DataError) as failure:
        read(tmp_path, record, *overrides)
    said = str(failure.value)
    assert f"field '{field}'" in said or f"field 'metadata.{field}'" in said, said[:500]
    assert "Fix:" in said
    assert len(said) < 1000


@pytest.mark.parametrize(
    "number", range(len(EVERY)), ids=[f"{n}-{kind}-{c[0]}" for n, (kind, _, c) in enumerate(EVERY)]
)
def test_a_broken_record_fails_by_name_before_a_rollout(number: int, tmp_path: Path) -> None:
    kind, right, (field, change) = EVERY[number]
    broken = {**right, "metadata": {**right["metadata"], **change}}
    expect_fault(tmp_path, broken, field, *(SMALL if kind == "ours" else ("coding.backend=docker",)))


@pytest.mark.parametrize(("field", "change"), TOP, ids=[f"{n}-{field}" for n, (field, _) in enumerate(TOP)])
def test_a_record_with_a_broken_top_fails_by_name(field: str, change: dict[str, Any], tmp_path: Path) -> None:
    expect_fault(tmp_path, {**GOOD, **change}, field)
