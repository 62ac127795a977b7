"""What the orchestrator has gathered keeps within its budgets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from agentic.toolorchestra.config import BudgetSection
from agentic.toolorchestra.context import Workspace, drop_oldest, message_budget, truncate
from core.text.conversation import Message, Renderer
from core.text.tokenizer import encode_text
from core.text.tool_calls import ToolCall


@pytest.mark.parametrize(
    ("old", "new", "merged"),
    [("", "ab", "ab"), ("ab", "xy", "xayb"), ("abcde", "xy", "xabycde"), ("a", "xyz", "axyz"), ("abc", "", "abc")],
)
def test_new_documents_are_spread_as_in_the_released_code(old: str, new: str, merged: str) -> None:
    """merge_documents in training/lead_agent/llm_agent/generation_quick3.py gave these for the same lists."""
    workspace = Workspace([*old])
    workspace.add_documents([*new])
    assert "".join(workspace.documents) == merged


def test_equal_documents_are_kept_once() -> None:
    workspace = Workspace(["a", "b", "c"])
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


def test_a_call_that_the_template_writes_takes_its_part_of_the_budget() -> None:
    calls = (ToolCall("write", {"text": "word " * 60}),)  # some 100 tokens that are in no message's ids
    dialogue = [Message("user", (1,)), *[Message("assistant", (), calls), Message("tool", (2,))] * 5]
    assert drop_oldest(dialogue, 250, 1) == [dialogue[0], *dialogue[-4:]]


def test_tools_in_chinese_take_the_budget_that_the_chat_template_shows(tokenizer: Any) -> None:
    tool, config = {"description": "搜索资料"}, SimpleNamespace(budget=SimpleNamespace(total=1000))
    shown = encode_text(tokenizer, '{"description": "搜索资料"}')
    assert message_budget(config, Renderer(tokenizer), [tool]) == 1000 - len(shown)  # type: ignore[arg-type]


def test_of_a_character_that_is_cut_nothing_is_shown(tokenizer: Any) -> None:
    """Each character has three tokens here, so a limit cuts one two times of three."""
    for limit in (9, 10, 11):
        config = SimpleNamespace(budget=SimpleNamespace(result_tokens=limit))
        assert truncate(config, Renderer(tokenizer), "数" * 9) == "数数数"  # type: ignore[arg-type]
        workspace = Workspace(attempts=["数" * 9])
        assert workspace.render(tokenizer, BudgetSection(attempts=limit), 200) == "Attempts:\n数数数"
