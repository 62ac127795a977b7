"""Splits by hash do not move, and nothing that is tested is trained on or shown."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path

import pytest

from core.data.files import DataError
from core.data.splits import COMMON, draw_split, drop_overlaps, refuse_shown
from core.types import Task

LONG = "a farmer has three fields with nine rows of corn each and sells every second row"


def _tasks(*questions: str) -> list[Task]:
    return [Task(f"t-{number}", question, ("1",)) for number, question in enumerate(questions)]


def test_the_hash_of_a_question_chooses_its_split() -> None:
    drawn = Counter(draw_split(f"question {number}") for number in range(4000))
    assert drawn["eval"] == pytest.approx(250, abs=50)
    assert drawn["test"] == pytest.approx(500, abs=70)
    first = hashlib.sha256(b"question 7").digest()[0] % 16
    assert draw_split("question 7") == ("eval" if first == 0 else "test" if first < 3 else "train")


@pytest.mark.parametrize(
    ("trained", "kept"),
    [
        ("What is 2 + 2?", False),  # the same words
        ("What is 2 + 3?", True),
        (f"Yesterday {LONG}.", False),  # 16 words in a row
        (LONG.replace("nine", "ten").replace("sells", "keeps"), True),  # 6 words in a row at most
    ],
)
def test_a_training_question_that_overlaps_with_test_is_dropped(trained: str, kept: bool) -> None:
    told: Counter[str] = Counter()
    splits = drop_overlaps({"train": _tasks(trained), "eval": [], "test": _tasks("what is 2 2", LONG)}, told)
    assert (len(splits["train"]), len(splits["test"])) == (kept, 2)
    assert told.total() == (not kept)


def test_a_chinese_question_overlaps_by_its_characters_two_for_a_word() -> None:
    shared = "甲乙两人同时从相距一百二十千米的两地相向而行问几小时后相遇"
    tested, trained = f"{shared}？", [f"小明说：{shared}。", f"小明说：{shared[:25]}。", "问题" + shared]
    kept = drop_overlaps({"train": _tasks(*trained), "eval": [], "test": _tasks(tested)}, Counter())["train"]
    assert [task.question for task in kept] == [trained[1]]


def test_what_eval_shares_with_test_is_dropped_and_no_longer_costs_training_tasks() -> None:
    told: Counter[str] = Counter()
    shared = _tasks(LONG)
    splits = drop_overlaps({"train": _tasks("Which one?"), "eval": shared + _tasks("Which one?"), "test": shared}, told)
    assert [len(splits[name]) for name in ("train", "eval", "test")] == [0, 1, 1]
    assert sorted(told.values()) == [1, 1]


def test_an_instruction_that_many_questions_share_is_no_overlap() -> None:
    questions = [f"{LONG}; which of these is number {number}?" for number in range(COMMON + 2)]
    splits = {"train": _tasks(*questions[1:]), "eval": [], "test": _tasks(questions[0])}
    assert len(drop_overlaps(splits, Counter())["train"]) == COMMON + 1  # type: ignore[arg-type]
    splits["train"] = splits["train"][:5]
    assert drop_overlaps(splits, Counter())["train"] == []  # type: ignore[arg-type]


@pytest.mark.parametrize("question", ["What is 2 + 2?", LONG])
def test_a_few_shot_text_with_a_tested_question_is_refused(question: str, tmp_path: Path) -> None:
    shown = tmp_path / "shown.txt"
    shown.write_text(f"Question: what is (2+2)?\nAnswer: 4\nQuestion: Today {LONG}.")
    with pytest.raises(DataError, match=r"shown\.txt: holds or overlaps with 1 of the questions.*training set"):
        refuse_shown(_tasks(question, "What is 2 + 25?"), shown)
    refuse_shown(_tasks("What is 2 + 25?"), shown)
