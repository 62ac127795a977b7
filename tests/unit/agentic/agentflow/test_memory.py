"""The memory as its readers see it."""

from __future__ import annotations

from agentic.agentflow.memory import Memory, Step, shorten
from core.text.tokenizer import encode_text


def test_a_step_makes_a_new_memory():
    empty = Memory()
    longer = empty.add(Step("ok", "echo", "say", "c", "hi"))
    assert (len(empty.steps), len(longer.steps)) == (0, 1)
    assert empty.render("official") == "none so far"
    assert empty.render("compact") == ""


def test_official_rendering_leaves_out_what_there_is_not():
    memory = Memory((Step("ok", "echo", 'it\'s "x"', "call()", "a\nb"), Step("malformed_step", result="no tool")))
    assert memory.render("official") == (
        'Action Step 1\nTool Name: echo\nSub-Goal: it\'s "x"\nCommand: call()\nResult: a\nb\n\n'
        "Action Step 2\nResult: no tool"
    )


def test_compact_rendering_is_one_line_a_step():
    memory = Memory((
        Step("ok", "python", "12 * 7", "12 * 7", "84"),
        Step("tool_not_found", "snake", "hiss", result="There is no such tool; the tools are ..."),
        Step("malformed_step", result="a long explanation"),
    ))  # fmt: skip
    assert memory.render("compact") == (
        " python : 12 * 7 = 84\n snake : hiss = tool not found\n ? : ? = malformed step\n"
    )


def test_a_long_text_keeps_its_ends(tokenizer):
    text = "".join(f" {number}" for number in range(200))
    short = shorten(tokenizer, text, 21)
    head, tail = short.split(f"\n[... {len(encode_text(tokenizer, text)) - 21} tokens left out ...]\n")
    assert len(encode_text(tokenizer, head)) == 11
    assert len(encode_text(tokenizer, tail)) == 10
    assert text.startswith(head)
    assert text.endswith(tail)
    assert shorten(tokenizer, text, 1000) == text
    assert shorten(tokenizer, text, 1).endswith("tokens left out ...]\n")
