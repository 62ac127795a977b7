from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.ruler.generate import generate
from benchmarks.ruler.haystack import Essay
from benchmarks.ruler.niah import Niah
from benchmarks.ruler.sample import TaskFamily
from benchmarks.ruler.vt import VariableTracking
from core.types import Task

KEYS = tuple(f"key{i}" for i in range(20))
VALUES = tuple(f"value{i}" for i in range(30))


def build(family: TaskFamily, length: int = 500, count: int = 1, **options: object) -> list[Task]:
    return list(generate(family, length=length, count=count, tokenizer=str.split, **options))  # type: ignore[arg-type]


FAMILIES = [
    Niah(num_k=3, num_v=2, num_q=2),
    Niah(haystack="needle", key_type="uuids", value_type="uuids"),
    Niah(haystack="essay", essay=Essay("One two three. Four five! Six seven eight nine? " * 9)),
    Niah(num_k=2, key_words=KEYS, value_words=VALUES, value_type="words", noise=("x y z.", "u v.")),
    VariableTracking(),
]


@pytest.mark.parametrize("family", FAMILIES)
def test_needles_stand_where_metadata_says(family: TaskFamily) -> None:
    for task in build(family, count=20):
        context, needles = task.context, task.metadata["needles"]
        assert task.metadata["depth"] == [needle["depth"] for needle in needles if needle["queried"]]
        for needle in needles:
            start = round(needle["depth"] * len(context))
            found = context[max(start - 1, 0) : start + len(needle["key"]) + len(needle["value"]) + 60]
            assert needle["key"] in found
            assert needle["value"] in found


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_depends_on_its_own_name_alone(family: TaskFamily) -> None:
    tasks = build(family, count=5)
    assert build(family, count=2, start=3) == tasks[3:]
    assert len({task.context for task in tasks}) == 5
    for other in (build(family, count=5, seed=1), build(family, count=5, split="train")):
        assert all(a.context != b.context for a, b in zip(tasks, other, strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_length_changes_neither_question_nor_answers_nor_depths(family: TaskFamily) -> None:
    (short,), (long,) = build(family, 400), build(family, 16_000)
    assert (short.question, short.answers) == (long.question, long.answers)
    assert long.metadata["depth"] == pytest.approx(short.metadata["depth"], abs=0.25)
    assert len(long.context) > 20 * len(short.context)


def test_answers_are_the_values_of_the_queried_keys_and_the_question_has_no_haystack() -> None:
    (task,) = build(FAMILIES[0])
    asked = [needle for needle in task.metadata["needles"] if needle["queried"]]
    assert len(task.metadata["needles"]) == 6
    assert Counter(needle["value"] for needle in asked) == Counter(task.answers)
    assert len(task.answers) == 4
    assert all(needle["key"] in task.question for needle in asked)
    assert "grass" not in task.question
    assert "special magic numbers for" in task.question


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"haystack": "essay"}, "needs `essay`"),
        ({"num_q": 0}, "at least 1"),
        ({"noise": (" ",)}, "holds no text"),
        ({"num_k": 3, "key_words": ("a", "b")}, "`key_words` has 2 different words; 3 are needed"),
        ({"num_v": 3, "value_words": ("a", "b")}, "`value_words` has 2 different words; 3"),
    ],
)
def test_impossible_options(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Niah(**options)
