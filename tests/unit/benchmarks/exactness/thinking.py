"""A tokenizer for the tests of this folder and of tests/optional/exactness."""

from __future__ import annotations

import copy
from typing import Any

from tests.unit.gateway.templates import QWEN3, make_tokenizer

_THOUGHTS = (
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
)


def make_thinking_tokenizer() -> Any:
    """Make a tokenizer whose template shows thoughts as Qwen3's does: those after the last user's message."""
    tokenizer = copy.copy(make_tokenizer("qwen3"))
    begin = "<|im_start|>assistant\n"
    tokenizer.chat_template = QWEN3.replace(f"{begin}{{% if", f"{begin}{_THOUGHTS}{{% if", 1)
    return tokenizer
