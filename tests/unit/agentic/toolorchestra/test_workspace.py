"""The rebuilt context keeps within its budgets."""

from __future__ import annotations

from typing import Any

from agentic.toolorchestra.config import BudgetSection
from agentic.toolorchestra.context import Workspace
from core.text.tokenizer import encode_text


def test_documents_alternate_new_ones_first_and_are_kept_once() -> None:
    work = Workspace()
    work.add_documents(["a", "b", "c"])
    work.add_documents(["x", "b"])
    assert work.documents == ["x", "a", "b", "c"]


def test_everything_is_there_when_it_fits(tokenizer: Any) -> None:
    work = Workspace(["a document"], ["a program"], ["an attempt"])
    text = work.text(tokenizer, BudgetSection(), 24000)
    assert text == "Documents:\na document\n\nPython code and outputs:\na program\n\nAttempts:\nan attempt"
    assert Workspace().text(tokenizer, BudgetSection(), 24000) == ""


def test_attempts_come_first_then_programs_then_documents_and_the_end_is_kept(tokenizer: Any) -> None:
    def many(name: str) -> list[str]:
        return [f"{name}{i}" for i in range(60)]

    def count(text: str) -> int:
        return len(encode_text(tokenizer, text))

    work = Workspace(many("document"), many("program"), many("attempt"))
    whole = work.text(tokenizer, BudgetSection(), 24000)
    attempts = count("\n\n".join(work.attempts))
    text = work.text(tokenizer, BudgetSection(attempts=50, code=120), 200)
    assert attempts > 200
    assert count(text) < 200 + count("Documents:\n\n\nPython code and outputs:\n\n\nAttempts:\n") + 10
    assert text.endswith("attempt59")
    assert "program59" in text
    assert "document59" in text
    assert "attempt0" not in text
    assert "program0" not in text
    assert "document0" not in text
    assert len(text) < len(whole)
    none_left = work.text(tokenizer, BudgetSection(attempts=50, code=50), 50)
    assert "document" not in none_left
    assert "program" not in none_left


def test_a_document_is_cut_by_itself(tokenizer: Any) -> None:
    work = Workspace(["x" * 100])
    assert work.text(tokenizer, BudgetSection(document_characters=10), 24000) == "Documents:\n" + "x" * 10
