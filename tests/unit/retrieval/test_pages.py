"""A page is all passages of one title, whatever stands between them; it is named by that title, or by an id."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.retrieval import server as module
from core.retrieval.corpus import Corpus, CorpusError
from core.retrieval.server import Pages


def open_pages(path: Path, *passages: tuple[Any, str]) -> Pages:
    path.write_text("".join(json.dumps({"id": id_, "contents": contents}) + "\n" for id_, contents in passages))
    return Pages(Corpus(path))


def test_a_page_is_named_by_its_title_or_by_the_id_of_any_of_its_passages(tmp_path: Path) -> None:
    pages = open_pages(
        tmp_path / "c.jsonl",
        ("a1", '"Oak"\nA tree.'),
        (7, "Elm\nA tree, too.\nOf two lines."),
        ("a2", '"Oak"\nIts wood.'),
        ("a3", "Oak\n"),
        ("Elm", "Ash\nA third."),
        (8, "Empty\n"),
        (11, "Yew\u00a0\r\nA fourth."),
    )
    oak = "A tree.\nIts wood.\n"
    for name in ("Oak", '"Oak"', " Oak ", '"Oak"\nwhat follows is no part of a title', "a1", " a2\n", "a3"):
        assert pages.find(name) == oak
    assert pages.find("7") == pages.find("Elm") == "A tree, too.\nOf two lines.", "a title goes before an id"
    assert pages.find("Empty") == pages.find("8") == ""
    assert pages.find("Yew") == "A fourth.", "a policy's words have no such space around them"
    for name in ("oak", "Oa", "9", "", '"', "\n", "A tree."):
        assert pages.find(name) is None


def test_passages_without_a_title_are_pages_of_their_own(tmp_path: Path) -> None:
    pages = open_pages(tmp_path / "c.jsonl", (0, "\nOne."), (1, '""\nTwo.'), (2, "Three in one line."), (3, ""))
    assert [pages.find(str(row)) for row in range(4)] == ["One.", "Two.", "Three in one line.", ""]
    assert pages.find("Three in one line.") == "Three in one line."
    assert pages.find("") is None


def test_of_a_title_that_too_many_share_the_first_passages_are_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PASSAGES", 2)
    pages = open_pages(tmp_path / "c.jsonl", *[(row, f"Untitled\n{row}") for row in range(5)])
    assert pages.find("Untitled") == pages.find("4") == "0\n1"


def test_a_broken_line_is_named_each_time(tmp_path: Path) -> None:
    pages = open_pages(tmp_path / "c.jsonl", (1, "Oak\nA tree."), (2, None))  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(CorpusError, match=r"c.jsonl, line 2"):
            pages.find("Oak")


@settings(max_examples=40, deadline=None)
@given(titles=st.lists(st.sampled_from(["Oak", "Elm", "", "x\u2028y", "7"]), min_size=1, max_size=12))
def test_every_passage_is_on_the_page_of_its_id_and_in_the_order_of_the_corpus(
    titles: Sequence[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    passages = [(f"id {row}", f"{title}\ntext {row}") for row, title in enumerate(titles)]
    pages = open_pages(tmp_path_factory.mktemp("pages") / "c.jsonl", *passages)
    for row, title in enumerate(titles):
        same = [other for other, name in enumerate(titles) if name == title] if title else [row]
        assert pages.find(f"id {row}") == "\n".join(f"text {other}" for other in same)
