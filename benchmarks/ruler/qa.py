"""Makes RULER's qa_1: the answerable questions of SQuAD 2.0, from the given file."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.ruler.documents import DocumentQa, QaItem
from benchmarks.ruler.templates import QA
from core.data.files import DataError


def squad_qa(path: str | Path, *, name: str = "qa_1") -> DocumentQa:
    """Return the family from SQuAD: the paragraph asked about, then those of its article, then others.

    Raises:
        DataError: the file is missing, or not SQuAD's JSON.
    """
    items = read_squad(path)
    pool = {document for item in items for document in (*item.own, *item.related)}
    return DocumentQa(name=name, items=items, pool=tuple(sorted(pool)), template=QA)


def read_squad(path: str | Path) -> tuple[QaItem, ...]:
    """Return the answerable questions of SQuAD's own JSON: {data: [{title, paragraphs: [{context, qas}]}]}."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file. Fix: bring it with `tokentrue data download squad`.")
    try:
        articles = json.loads(path.read_text(encoding="utf-8"))["data"]
        items = tuple(item for article in articles for item in _article(article))
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise DataError(f"{path}: not SQuAD's JSON ({error!r}). Fix: use dev-v2.0.json as published.") from None
    if not items:
        raise DataError(f"{path}: field 'data': no answerable question. Fix: use dev-v2.0.json as published.")
    return items


def _article(article: dict) -> list[QaItem]:
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
            evidence = {own: (title, answers[0])} if answers else {}
            items.append(QaItem(question["question"], answers, (own,), related, evidence, str(question.get("id", ""))))
    return items
