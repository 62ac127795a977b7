"""The families of tasks: needles, counts and documents are where and as often as a sample says."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ruler.counts import CommonWords
from benchmarks.ruler.documents import OFFICIAL_ORDER
from benchmarks.ruler.generate import generate
from benchmarks.ruler.haystack import Essay
from benchmarks.ruler.hqa import hqa, read_hotpotqa, squad_qa
from benchmarks.ruler.niah import Niah
from benchmarks.ruler.sample import SampleKey, TaskFamily
from benchmarks.ruler.vt import VariableTracking
from core.data import DataError
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


def listed(context: str) -> list[str]:
    """The words of "1. word 2. word ..."; some have a space in them."""
    return re.findall(r"\d+\. (.+?)(?= \d+\. |$)", context)


@pytest.mark.parametrize(("length", "often", "rarely"), [(2000, 6, 1), (6000, 30, 3), (60_000, 30, 3)])
def test_cwe_repeats_as_ruler_does(length: int, often: int, rarely: int) -> None:
    for index in range(3):
        draft = CommonWords().draw(SampleKey("cwe", "test", 1, index, length)).build(length // 8)
        counts = Counter(listed(draft.context))
        assert Counter(counts.values()) == {often: 10, rarely: length // 8 - 10}
        assert {counts[answer] for answer in draft.answers} == {often}


def test_cwe_goes_on_beyond_its_word_list() -> None:
    key = SampleKey("cwe", "test", 1, 0, 450_000)
    draft = CommonWords().draw(key).build(30_000)
    words = listed(draft.context)
    assert len(words) == 10 * 30 + 3 * 29_990
    assert len(set(words)) == 30_000
    assert CommonWords().draw(key).build(100).answers == draft.answers


def item(number: int) -> dict[str, Any]:
    paragraphs = [[f"T{number}.{i}", [f"First {i}.", f" Second {i}.", f" Third {i}."]] for i in range(10)]
    facts = [[f"T{number}.2", 1], [f"T{number}.2", 2], [f"T{number}.7", 0]]
    said = {"_id": f"id{number}", "question": f"Q{number}?", "answer": "yes"}
    return said | {"supporting_facts": facts, "context": paragraphs}


def hub(record: dict[str, Any]) -> dict[str, Any]:
    titles, sentences = zip(*record["context"], strict=True)
    facts = {"title": [t for t, _ in record["supporting_facts"]], "sent_id": [n for _, n in record["supporting_facts"]]}
    return {**record, "context": {"title": titles, "sentences": sentences}, "supporting_facts": facts}


def task(record: dict[str, Any]) -> dict[str, Any]:
    paragraphs = [{"title": title, "sentences": sentences} for title, sentences in record["context"]]
    texts = dict(record["context"])
    needles = [{"key": title, "value": texts[title][n].strip()} for title, n in record["supporting_facts"]]
    said = {"task_id": record["_id"], "question": record["question"], "answers": [record["answer"]]}
    return said | {"metadata": {"paragraphs": paragraphs, "needles": needles}}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "hotpot.json"
    path.write_text(json.dumps([item(i) for i in range(40)]))
    return path


@pytest.mark.parametrize("layout", [hub, task])
def test_all_layouts_read_alike(layout: Any, file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps([layout(item(i)) for i in range(40)]))
    assert read_hotpotqa(file) == read_hotpotqa(other)


def test_paragraphs_of_one_title_stay_apart_and_sentences_without_spaces_get_them(tmp_path: Path) -> None:
    record = {**item(0), "context": [["A", ["One.", "Two."]], ["A", ["Three."]], ["B", ["Four.", " Five."]]]}
    found = task({**record, "supporting_facts": []})
    found["metadata"]["needles"] = [{"key": "A", "value": "Two."}]
    path = tmp_path / "musique.jsonl"
    path.write_text(json.dumps(found))
    (read,) = read_hotpotqa(path)
    assert read.own == ("A\nOne. Two.", "A\nThree.", "B\nFour. Five.")
    assert read.evidence == {"A\nOne. Two.": (("A", "Two."),)}


def test_gold_documents_are_marked_and_everywhere(file: Path) -> None:
    family = hqa(file)
    slots: Counter[int] = Counter()
    for task in build(family, count=40, units=50):
        documents = task.context.split("\n\n")
        assert [text.split("\n")[0] for text in documents] == [f"Document {i}:" for i in range(1, 51)]
        assert len({text.split("\n", 1)[1] for text in documents}) == 50
        index = task.metadata["index"]
        assert task.question == f"Q{index}?"
        facts = {(f"T{index}.2", "Second 2."), (f"T{index}.2", "Third 2."), (f"T{index}.7", "First 7.")}
        assert {(n["key"], n["value"]) for n in task.metadata["needles"]} == facts
        for needle in task.metadata["needles"]:
            start = round(needle["depth"] * len(task.context))
            assert task.context[start:].split("\n", 2)[1] == needle["key"]
            slots[next(i for i, text in enumerate(documents) if f"\n{needle['key']}\n" in text)] += 1
        assert task.metadata["num_docs"] == 50
    assert len(slots) > 30, "the original builder puts them at the same two places in every sample"


def test_gold_documents_stand_where_the_official_builder_puts_them(file: Path) -> None:
    order = list(range(20))
    random.Random(OFFICIAL_ORDER).shuffle(order)
    for task in build(hqa(file, placement="official"), count=3, units=20):
        titles = [text.splitlines()[1] for text in task.context.split("\n\n")]
        gold = [titles.index(f"T{task.metadata['index']}.{place}") for place in (2, 7)]
        assert gold == [order.index(2), order.index(7)]


def test_impossible_sizes(file: Path) -> None:
    family = hqa(file)
    with pytest.raises(ValueError, match="5 units wanted, 10 to 400 possible"):
        build(family, units=5)
    with pytest.raises(ValueError, match="all 400 units together"):
        build(family, 10**6)
    with pytest.raises(ValueError, match="sample 40 asked for, but the file has 40"):
        build(family, 1000, count=41)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": ""}, "record 1: field 'answer'"),
        ({"context": []}, "field 'context'"),
        ({"question": 3}, "'question'"),
        ({"metadata": {"paragraphs": []}}, "'metadata'.*lacks paragraphs or needles"),
    ],
)
def test_bad_items(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps([item(0), {**item(1), **change}]))
    with pytest.raises(DataError, match=message):
        hqa(path)


def test_squad_takes_the_article_first(tmp_path: Path) -> None:
    question = {"question": "Q?", "answers": [{"text": "A"}, {"text": "A"}], "is_impossible": False, "id": "1"}
    articles = [
        {"title": f"t{i}", "paragraphs": [{"context": f"p{i}.{j}", "qas": [question] * (j == 0)} for j in range(4)]}
        for i in range(5)
    ]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"data": articles}))
    (task,) = build(squad_qa(path), units=4)
    assert set(re.findall(r"p\d\.\d", task.context)) == {"p0.0", "p0.1", "p0.2", "p0.3"}
    assert task.answers == ("A",)
    path.write_text("{}")
    with pytest.raises(DataError, match="not SQuAD's JSON"):
        squad_qa(path)
