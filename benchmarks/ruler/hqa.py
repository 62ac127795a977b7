"""Makes questions over documents: RULER-HQA of HotpotQA (MemAgent, arXiv 2507.02259), and RULER's qa_1 of SQuAD 2.0.

A question of HotpotQA has its ten paragraphs among many others. It is read from HotpotQA's files (in any form that
benchmarks/data/sets.py knows), or from tasks that `tokentrue data download hotpotqa-tasks` wrote.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.data.sets import join_sentences, read_facts, read_paragraphs
from benchmarks.ruler.documents import DocumentQa, QaItem
from benchmarks.ruler.haystack import Placement
from benchmarks.ruler.sample import Metric
from benchmarks.ruler.templates import HQA, QA, Template
from core.data.files import DataError, SourceLocation, read_records


def hqa(
    hotpotqa: str | Path,
    pools: Iterable[str | Path] = (),
    *,
    name: str = "hqa",
    template: Template = HQA,
    placement: Placement = "uniform",
) -> DocumentQa:
    """Return the family from a HotpotQA file; distractors come from that file's other questions and from `pools`.

    RULER's qa_2 is the same with the template QA. A pool is another HotpotQA file or a list of {title, text} passages.

    Raises:
        DataError: a file is missing or broken, or a record lacks a field.
    """
    items = read_hotpotqa(hotpotqa)
    pool = {document for item in items for document in item.own}
    for path in pools:
        pool.update(read_pool(path))
    metric: Metric = "sub_em" if template is HQA else "string_match_part"
    return DocumentQa(name, items, tuple(sorted(pool)), template, metric, placement)


def read_hotpotqa(path: str | Path) -> tuple[QaItem, ...]:
    """Return every question with its paragraphs; the gold ones are its evidence, with their supporting sentences."""
    return tuple(_item(record, place) for place, record in read_records(path))


def read_pool(path: str | Path) -> set[str]:
    """Return passages as "title, line break, text"."""
    passages: set[str] = set()
    for place, record in read_records(path):
        if "context" in record:
            passages.update(_document(title, sentences) for title, sentences in read_paragraphs(place, record))
        elif isinstance(record.get("title"), str) and isinstance(record.get("text"), str):
            passages.add(_document(record["title"], [record["text"]]))
        else:
            raise place.error("text", "no passage found", "give {title, text} passages or HotpotQA items")
    return passages


def _item(record: Mapping[str, Any], place: SourceLocation) -> QaItem:
    if "metadata" in record:
        return _task_item(record, place)
    for name in ("question", "answer"):
        if not isinstance(record.get(name), str) or not record[name].strip():
            raise place.error(name, "must be a non-empty string", "use HotpotQA's distractor files")
    paragraphs, wanted = read_paragraphs(place, record), read_facts(record)
    evidence = {}
    for title, sentences in paragraphs:
        if title in wanted:
            support = [text.strip() for number, text in enumerate(sentences) if number in wanted[title]]
            evidence[_document(title, sentences)] = tuple((title, text) for text in support or [""])
    return QaItem(
        question=record["question"],
        answers=(record["answer"],),
        own=tuple(dict.fromkeys(_document(title, sentences) for title, sentences in paragraphs)),
        evidence=evidence,
        source_id=str(record.get("_id") or record.get("id") or ""),
    )


def _task_item(record: Mapping[str, Any], place: SourceLocation) -> QaItem:
    try:
        paragraphs, needles = (record["metadata"][name] for name in ("paragraphs", "needles"))
        evidence = dict[str, tuple[tuple[str, str], ...]]()
        for needle in needles:
            # Two paragraphs of MuSiQue may have one title: the gold one has the supporting sentences, too.
            named = [each["sentences"] for each in paragraphs if each["title"] == needle["key"]]
            gold = next((each for each in named if needle["value"] in join_sentences(each)), named[-1])
            document = _document(needle["key"], gold)
            evidence[document] = (*evidence.get(document, ()), (needle["key"], needle["value"]))
        return QaItem(
            question=record["question"],
            answers=tuple(record["answers"]),
            own=tuple(dict.fromkeys(_document(each["title"], each["sentences"]) for each in paragraphs)),
            evidence=evidence,
            source_id=record["task_id"],
        )
    except (KeyError, TypeError, IndexError) as error:
        problem = f"lacks paragraphs or needles ({error!r})"
        raise place.error("metadata", problem, "write it with `tokentrue data download hotpotqa-tasks`") from None


def _document(title: str, sentences: list[str]) -> str:
    """Join a paragraph: HotpotQA's sentences begin with the space that parts them, those of 2WikiMultihopQA do not."""
    space = "" if any(sentence[:1].isspace() for sentence in sentences[1:]) else " "
    return f"{title}\n{space.join(sentences)}"


def squad_qa(path: str | Path) -> DocumentQa:
    """Return the family from SQuAD: the paragraph asked about, then those of its article, then others.

    Raises:
        DataError: the file is missing, or not SQuAD's JSON.
    """
    items = read_squad(path)
    pool = {document for item in items for document in (*item.own, *item.related)}
    return DocumentQa(name="qa_1", items=items, pool=tuple(sorted(pool)), template=QA)


def read_squad(path: str | Path) -> tuple[QaItem, ...]:
    """Return the answerable questions of SQuAD's own JSON: {data: [{title, paragraphs: [{context, qas}]}]}."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file. Fix: bring it with `tokentrue data download squad`.")
    try:
        articles = json.loads(path.read_text(encoding="utf-8"))["data"]
        items = tuple(item for article in articles for item in _list_items(article))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not SQuAD's JSON ({error!r}). Fix: use dev-v2.0.json as published.") from None
    if not items:
        raise DataError(f"{path}: field 'data': no answerable question. Fix: use dev-v2.0.json as published.")
    return items


def _list_items(article: dict) -> list[QaItem]:
    paragraphs = list(dict.fromkeys(paragraph["context"] for paragraph in article["paragraphs"]))
    title = article.get("title", "")
    items = []
    for paragraph in article["paragraphs"]:
        own = paragraph["context"]
        related = tuple(text for text in paragraphs if text != own)
        for question in paragraph["qas"]:
            if question.get("is_impossible"):
                continue
            answers = tuple(dict.fromkeys(answer["text"] for answer in question["answers"]))
            evidence = {own: ((title, answers[0]),)} if answers else {}
            items.append(QaItem(question["question"], answers, (own,), related, evidence, str(question.get("id", ""))))
    return items
