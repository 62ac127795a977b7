from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.ruler.generate import generate
from benchmarks.ruler.hqa import hqa, read_hotpotqa, squad_qa
from core.data import DataError


def item(number: int) -> dict[str, Any]:
    paragraphs = [[f"T{number}.{i}", [f"First {i}.", f" Second {i}.", f" Third {i}."]] for i in range(10)]
    facts = [[f"T{number}.2", 1], [f"T{number}.2", 2], [f"T{number}.7", 0]]
    return {
        "_id": f"id{number}",
        "question": f"Q{number}?",
        "answer": "yes",
        "supporting_facts": facts,
        "context": paragraphs,
    }


def hub(record: dict[str, Any]) -> dict[str, Any]:
    titles, sentences = zip(*record["context"], strict=True)
    facts = {"title": [t for t, _ in record["supporting_facts"]], "sent_id": [n for _, n in record["supporting_facts"]]}
    return {**record, "context": {"title": titles, "sentences": sentences}, "supporting_facts": facts}


def task(record: dict[str, Any]) -> dict[str, Any]:
    paragraphs = [{"title": title, "sentences": sentences} for title, sentences in record["context"]]
    return {
        "task_id": record["_id"],
        "question": record["question"],
        "answers": [record["answer"]],
        "metadata": {
            "paragraphs": paragraphs,
            "needles": [
                {"key": title, "value": dict(record["context"])[title][number].strip()}
                for title, number in record["supporting_facts"]
            ],
        },
    }


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
    for task in generate(family, length=50, units=50, count=40, tokenizer=str.split):
        documents = task.context.split("\n\n")
        assert [text.split("\n")[0] for text in documents] == [f"Document {i}:" for i in range(1, 51)]
        assert len({text.split("\n", 1)[1] for text in documents}) == 50
        index = task.metadata["index"]
        assert task.question == f"Q{index}?"
        assert {(n["key"], n["value"]) for n in task.metadata["needles"]} == {
            (f"T{index}.2", "Second 2."),
            (f"T{index}.2", "Third 2."),
            (f"T{index}.7", "First 7."),
        }
        for needle in task.metadata["needles"]:
            start = round(needle["depth"] * len(task.context))
            assert task.context[start:].split("\n", 2)[1] == needle["key"]
            slots[next(i for i, text in enumerate(documents) if f"\n{needle['key']}\n" in text)] += 1
        assert task.metadata["num_docs"] == 50
    assert len(slots) > 30, "the original builder puts them at the same two places in every sample"


def test_impossible_sizes(file: Path) -> None:
    family = hqa(file)
    with pytest.raises(ValueError, match="5 units wanted, 10 to 400 possible"):
        next(generate(family, length=5, units=5, count=1, tokenizer=str.split))
    with pytest.raises(ValueError, match="all 400 units together"):
        next(generate(family, length=10**6, count=1, tokenizer=str.split))
    with pytest.raises(ValueError, match="sample 40 asked for, but the file has 40"):
        list(generate(family, length=1000, count=41, tokenizer=str.split))


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
    task = next(generate(squad_qa(path), length=4, units=4, count=1, tokenizer=str.split))
    assert set(re.findall(r"p\d\.\d", task.context)) == {"p0.0", "p0.1", "p0.2", "p0.3"}
    assert task.answers == ("A",)
    path.write_text("{}")
    with pytest.raises(DataError, match="not SQuAD's JSON"):
        squad_qa(path)
