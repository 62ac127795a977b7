"""Rows of SWE-bench and SWE-smith become records; a patch gives the places that the reward compares, as released."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentic.codescout.gold import compare, find_changes, main
from agentic.codescout.places import CodePlaces, read_answer, read_gold, score
from core.data import read_tasks
from core.types import Task
from tests.kit import git

BEFORE = {
    "shop/stock.py": """\
import os

LIMIT = 3


def total(rows):
    def inner(row):
        return row
    return sum(inner(row) for row in rows)


class Stock:
    size = 1

    @property
    def count(self):
        return 0

    @count.setter
    def count(self, value):
        pass

    def drop(self):
        return None

    class Part:
        def name(self):
            return ""


try:
    def guarded():
        return 1
except ImportError:
    pass


async def gone():
    return 4
""",
    "shop/old.py": "A = 1\n",
    "notes.txt": "a\n",
    ".gitattributes": "shop export-ignore\n",
}
AFTER = {
    "shop/stock.py": BEFORE["shop/stock.py"]
    .replace("        return row\n", "        return row + 1\n")
    .replace("        pass\n\n    def drop", "        self.value = value\n\n    def drop")
    .replace('            return ""', '            return "part"')
    .replace("        return 1\n", "        return 2\n")
    .replace("\n\nasync def gone():\n    return 4\n", "\n\ndef fresh():\n    return 5\n"),
    "shop/new.py": "B = 1\n",
    "shop/old.py": "A = 2\n",
    "notes.txt": "b\n",
}
PLACES = {"modules": {"total", "Stock", "guarded", "gone"}, "functions": {"total", "Stock.count", "guarded", "gone"}}


def commit(folder: Path, files: dict[str, str]) -> str:
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", "x")
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def history(tmp_path: Path) -> tuple[str, str, str]:
    """The commits before and after a change, in clones/a__shop of `tmp_path`, and the change."""
    folder = tmp_path / "clones/a__shop"
    folder.mkdir(parents=True)
    git(folder, "init", "-q")
    first, second = commit(folder, BEFORE), commit(folder, AFTER)
    return first, second, f"{git(folder, 'diff', first, second)}\n"


def convert(tmp_path: Path, base: str | None, patch: str, **more: Any) -> int:
    """Run the command on one row; return its status."""
    row = {"instance_id": "a-1", "repo": "a/shop", "base_commit": base, "problem_statement": "It is wrong."}
    (tmp_path / "rows.jsonl").write_text(json.dumps({**row, "patch": patch, **more}) + "\n")
    places = {"--repositories": "clones", "--checkouts": "checkouts", "--out": "out.jsonl"}
    where = [word for option, name in places.items() for word in (option, str(tmp_path / name))]
    return main([str(tmp_path / "rows.jsonl"), *where])


def make(tmp_path: Path, base: str | None, patch: str, **more: Any) -> Task:
    assert convert(tmp_path, base, patch, **more) == 0
    (task,) = read_tasks(tmp_path / "out.jsonl", require_context=False, short_answers=False)
    return task


def test_a_row_of_swe_bench_becomes_the_checkout_before_and_what_the_patch_touches(
    tmp_path: Path, history: tuple[str, str, str]
) -> None:
    first, _, patch = history
    task = make(tmp_path, first, patch)
    assert (task.task_id, task.question) == ("a-1", "It is wrong.")
    folder = Path(task.metadata["folder"])
    assert (folder / "shop/stock.py").read_text() == BEFORE["shop/stock.py"]
    assert not (folder / ".git").exists()
    gold = read_gold(task.metadata["file_changes"])
    assert gold.files == {"shop/stock.py", "shop/old.py"}, "neither a new file nor one that is no Python"
    assert gold.modules == {f"shop/stock.py:{name}" for name in PLACES["modules"]}
    assert gold.functions == {f"shop/stock.py:{name}" for name in PLACES["functions"]}


def test_a_row_of_swe_smith_becomes_the_broken_checkout_and_what_undoes_the_patch(
    tmp_path: Path, history: tuple[str, str, str]
) -> None:
    first, second, _ = history
    breaks = git(tmp_path / "clones/a__shop", "diff", second, first)
    task = make(tmp_path, None, f"{breaks}\n", use_patch=True)
    folder = Path(task.metadata["folder"])
    assert (folder / "shop/stock.py").read_text() == BEFORE["shop/stock.py"]
    assert not (folder / "shop/new.py").exists()
    assert read_gold(task.metadata["file_changes"]).functions == {f"shop/stock.py:{n}" for n in PLACES["functions"]}


@pytest.mark.parametrize("undone", [False, True])
def test_a_renamed_file_is_named_as_it_was_and_counts_by_what_changes_in_it(tmp_path: Path, undone: bool) -> None:
    source = "".join(f"def f{number}():\n    return {number}\n\n\n" for number in range(8))
    files = {"a.py": source, "b.py": source.replace("return 3", "return 4")}
    old, new = ("b.py", "a.py") if undone else ("a.py", "b.py")
    git(tmp_path, "init", "-q")
    first = commit(tmp_path, {old: files[old], "same.py": "B = 1\n", "empty.py": ""})
    git(tmp_path, "rm", "-q", old, "empty.py")
    git(tmp_path, "mv", "same.py", "moved.py")
    between = [first, commit(tmp_path, {new: files[new]})]
    patch = f"{git(tmp_path, 'diff', *(reversed(between) if undone else between))}\n"
    assert patch.count("rename from") == 2
    git(tmp_path, "checkout", "-q", first)
    changes = {"edited_modules": [f"{old}:f3"], "edited_entities": [f"{old}:f3"]}
    removed = {"file": "empty.py", "changes": {level: [] for level in changes}}
    assert find_changes(tmp_path, patch, reverse=undone) == [{"file": old, "changes": changes}, removed]


def test_the_places_of_a_released_row_are_taken_as_they_are(tmp_path: Path, history: tuple[str, str, str]) -> None:
    released = [{"file": "x.py", "changes": {"edited_modules": None, "edited_entities": ["x.py:f"]}}]
    assert make(tmp_path, history[0], "-", file_changes=released).metadata["file_changes"] == released


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"base": "f" * 40}, "read-tree"),
        ({"patch": "diff --git a/x.py b/x.py\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a\n+b\n"}, "No such file"),
        ({"patch": ""}, "a-1 has no patch"),
        ({"problem_statement": " "}, "a-1 has no problem_statement"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, history: tuple[str, str, str], capsys: pytest.CaptureFixture[str], change: dict[str, Any], says: str
) -> None:
    assert convert(tmp_path, **{"base": history[0], "patch": history[2], **change}) != 0
    assert says in capsys.readouterr().err


def test_a_decorator_belongs_to_its_definition() -> None:
    assert compare("a.py", b"@x\ndef f(): pass\n", b"@y\ndef f(): pass\n")["edited_entities"] == ["a.py:f"]


def test_only_the_line_ends_of_python_count() -> None:
    """A form feed, with which old files part their sections, begins no line for `ast`."""
    before = b"def one():\n    return 1\n\x0c\n\ndef two():\n    x = 2\n    return x\n"
    assert compare("a.py", before, before.replace(b"return x", b"return -x"))["edited_entities"] == ["a.py:two"]


ENTITIES = ["a/b.py:C.m", "a/b.py:f"]
GOLD = [
    {"file": "a/b.py", "changes": {"edited_modules": ["a/b.py:C", "a/b.py:f"], "edited_entities": ENTITIES}},
    {"file": "a/c.py", "changes": {"edited_modules": None, "edited_entities": None, "added_entities": ["a/c.py:g"]}},
]


def read(locations: Any) -> CodePlaces:
    answer = read_answer(locations)
    assert answer is not None
    return answer


def test_an_answer_names_files_modules_and_functions() -> None:
    answer = read_answer(
        [
            {"file": "a/b.py", "class_name": "C", "function_name": "m"},
            {"file": " a/b.py ", "class_name": None, "function_name": " f"},
            {"file": "a/b.py", "class_name": "D", "function_name": ""},
            {"file": "a/c.py"},
        ]
    )
    assert answer == CodePlaces(
        frozenset({"a/b.py", "a/c.py"}),
        frozenset({"a/b.py:C", "a/b.py:f", "a/b.py:D"}),
        frozenset({"a/b.py:C.m", "a/b.py:f"}),
    )


@pytest.mark.parametrize(
    "locations",
    [None, "a.py", {"file": "a.py"}, ["a.py"], [{"file": ""}], [{"class_name": "C"}], [{"file": "a.py"}, {"file": 3}]],
)
def test_a_list_with_a_bad_entry_is_no_answer(locations: Any) -> None:
    assert read_answer(locations) is None


def test_what_the_patch_adds_is_no_place_that_can_be_found_and_a_level_without_places_scores_nothing() -> None:
    functions = frozenset({"a/b.py:C.m", "a/b.py:f"})
    assert read_gold(GOLD) == CodePlaces(
        frozenset({"a/b.py", "a/c.py"}), frozenset({"a/b.py:C", "a/b.py:f"}), functions
    )
    gold = read_gold(GOLD[1:])
    assert list(score(read([{"file": "a/c.py"}]), gold).values()) == [1.0, 0.0, 0.0]
    assert list(score(CodePlaces(), gold).values()) == [0.0, 0.0, 0.0]


def test_naming_everything_costs_precision() -> None:
    gold = read_gold(GOLD)
    one = [{"file": "a/b.py", "class_name": "C", "function_name": "m"}]
    assert score(read(one), gold) == pytest.approx(dict.fromkeys(("file_f1", "module_f1", "function_f1"), 2 / 3))
    many = [*one, *({"file": f"a/{name}.py"} for name in "defgh")]
    assert score(read(many), gold)["file_f1"] == pytest.approx(2 / 8)


@pytest.mark.parametrize("changes", [[], [{"changes": {}}], [{"file": "a.py"}], ["a.py"]])
def test_a_record_without_gold_places_is_refused(changes: Any) -> None:
    with pytest.raises(ValueError, match=r"names no file|another form"):
        read_gold(changes)
