"""What the orchestrator has gathered keeps within its budgets."""

from __future__ import annotations

from typing import Any

from agentic.toolorchestra.config import BudgetSection
from agentic.toolorchestra.context import Workspace
from core.text.tokenizer import encode_text


def test_documents_alternate_new_ones_first_and_are_kept_once() -> None:
    workspace = Workspace()
    workspace.add_documents(["a", "b", "c"])
    workspace.add_documents(["x", "b"])
    assert workspace.documents == ["x", "a", "b", "c"]


def test_attempts_come_first_then_programs_then_documents_and_the_end_is_kept(tokenizer: Any) -> None:
    names = ("document", "program", "attempt")
    workspace = Workspace(*([f"{name}{i}" for i in range(60)] for name in names))
    text = workspace.render(tokenizer, BudgetSection(attempts=50, code=120), 200)
    headings = "Documents:\n\n\nPython code and outputs:\n\n\nAttempts:\n"
    assert len(encode_text(tokenizer, text)) < 200 + len(encode_text(tokenizer, headings)) + 10
    assert text.endswith("attempt59")
    for name in names:
        assert f"{name}59" in text
        assert f"{name}0" not in text
    only_attempts = workspace.render(tokenizer, BudgetSection(attempts=50, code=50), 50)
    assert "document" not in only_attempts
    assert "program" not in only_attempts
