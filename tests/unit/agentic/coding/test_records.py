"""Records: slime's, SWE-smith's and our own are read, and a broken one fails by the name of its field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentic.coding.records import read_task
from agentic.coding.repairs.generate import draw_record
from agentic.coding.rollout import SPEC
from core.data import DataError, read_tasks
from core.types import Task

GOOD = draw_record("dev", 0, "function")
SLIME = {"image": "an/image:1", "workdir": "/workspace/repo", "problem_statement": "It fails.", "eval_cmd": "pytest -x"}


def read(tmp_path: Path, record: dict[str, Any], *overrides: str) -> list[Task]:
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps(record) + "\n")
    return read_tasks(path, **SPEC.reading_options(SPEC.load("tiny", list(overrides))))


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


WRONG_TYPES = (0, 1.5, True, ["x"], "text", {"x": 1})
TYPES = {
    "image": str, "workdir": str, "problem_statement": str, "eval_cmd": str, "repository": dict, "cases": list,
    "remote_env_info": dict, "FAIL_TO_PASS": list, "PASS_TO_PASS": list,
}  # fmt: skip
BROKEN: list[tuple[str, dict[str, Any]]] = [
    (f"metadata.{field}", {field: value})
    for field, kind in TYPES.items()
    for value in WRONG_TYPES
    if not isinstance(value, kind) and value and not (kind is list and isinstance(value, str))
] + [
    ("metadata.FAIL_TO_PASS", {"FAIL_TO_PASS": "no json"}),
    ("metadata.FAIL_TO_PASS", {"FAIL_TO_PASS": [], "cases": [], "PASS_TO_PASS": ["tests/t.py::t"]}),
    *(("metadata.PASS_TO_PASS", {"PASS_TO_PASS": [name]}) for name in ("", 3, "-p", "/etc/x.py", "../x.py::t")),
    *(("metadata.workdir", {"workdir": path}) for path in ("repo", "/", "/tmp", "/a/../b")),
    *(("metadata.repository", {"repository": {path: "x"}}) for path in ("/a.py", "../a.py", ".git/config", "")),
    ("metadata.repository", {"repository": {"a.py": 1}}),
    ("metadata.repository", {"repository": {}}),
    ("metadata", {"cases": [], "FAIL_TO_PASS": [], "PASS_TO_PASS": []}),
    ("metadata.swepro", {"cases": [], "FAIL_TO_PASS": [], "PASS_TO_PASS": [], "swepro": {}}),
    *(
        ("metadata.cases[0]", {"cases": [case]})
        for case in (
            3, {}, {"function": "a.b"}, {"function": "a.b", "arguments": {}, "returns": 1},
            {"function": "b", "arguments": [], "returns": 1}, {"function": "a.b", "arguments": []},
            {"function": "a.b", "arguments": [], "returns": 1, "raises": "E"},
        )
    ),
]  # fmt: skip


@pytest.mark.parametrize(("field", "change"), BROKEN, ids=[f"{n}-{field}" for n, (field, _) in enumerate(BROKEN)])
def test_a_broken_record_fails_by_name_before_a_rollout(field: str, change: dict[str, Any], tmp_path: Path) -> None:
    broken = {**GOOD, "metadata": {**GOOD["metadata"], **change}}
    with pytest.raises(DataError) as failure:
        read(tmp_path, broken)
    assert f"field `{field}`" in str(failure.value) or field in str(failure.value)
    assert "Fix:" in str(failure.value)


def test_an_image_is_needed_where_docker_is_set(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"metadata\.image"):
        read(tmp_path, GOOD, "coding.backend=docker")
