"""The reward is the F1 of files, modules and functions against the gold patch, as in the released code."""

from __future__ import annotations

from typing import Any

import pytest

from agentic.codescout.places import CodePlaces, measure_f1, read_answer, read_gold, score

GOLD = [
    {
        "file": "a/b.py",
        "changes": {"edited_modules": ["a/b.py:C", "a/b.py:f"], "edited_entities": ["a/b.py:C.m", "a/b.py:f"]},
    },
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


def test_f1_is_two_hits_over_both_and_repeats_do_not_count() -> None:
    assert measure_f1(["a", "b"], ["a", "c", "d"]) == pytest.approx(2 / 5)
    assert measure_f1(["a", "a"], ["a"]) == 1.0
    assert (measure_f1([], ["a"]), measure_f1(["a"], []), measure_f1([], [])) == (0.0, 0.0, 0.0)


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
