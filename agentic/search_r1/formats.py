"""Reads what the policy does in a turn, and shows what came of it, in the form that `search_r1.format` names.

| | a search | an answer | what was found |
|---|---|---|---|
| `tags` (the paper) | <search>, where a turn stops | <answer> | <information>, in the same message |
| `calls` | a call of the tool `search`, as the chat template writes calls | in a box | a tool's message |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from agentic.search_r1.prompts import CALL_INVALID, INFORMATION, INVALID, TOOL, Format
from core.rewards.answer_grader import find_answer
from core.rollout.calls import TemplateCalls
from core.text.conversation import Renderer
from core.text.tokenizer import Ids, encode_text

Action = Literal["search", "answer", "invalid"]

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


class TurnFormat(Protocol):
    stop: tuple[str, ...]
    """Lists the texts at which a turn stops."""
    tools: Sequence[Mapping[str, Any]]
    """Lists the tools that the chat template shows."""

    def read(self, prompt: Ids, reply: Ids) -> tuple[Action, str]:
        """Return the action of a turn, and its query or answer; with `invalid`, what was wrong with a call."""
        ...

    def show(self, reply: Ids, action: Action, text: str) -> Ids:
        """Return the ids that follow a turn: the passages in `text`, or that it was invalid, with what was wrong."""
        ...


class TaggedSearches:
    stop: tuple[str, ...] = ("</search>", "</answer>")
    tools: Sequence[Mapping[str, Any]] = ()

    def __init__(self, renderer: Renderer):
        self.tokenizer = renderer.tokenizer

    def read(self, prompt: Ids, reply: Ids) -> tuple[Action, str]:
        return read_action(self.tokenizer.decode(reply, skip_special_tokens=True))

    def show(self, reply: Ids, action: Action, text: str) -> Ids:
        return encode_text(self.tokenizer, INFORMATION.format(text) if action == "search" else INVALID)


class CalledSearches:
    stop: tuple[str, ...] = ()

    def __init__(self, renderer: Renderer):
        self.renderer = renderer
        self.calls = TemplateCalls("search_r1.format", renderer, [TOOL])
        self.tools: Sequence[Mapping[str, Any]] = self.calls.tools

    def read(self, prompt: Ids, reply: Ids) -> tuple[Action, str]:
        read = self.calls.read(prompt, reply)
        if read.error is not None:
            return "invalid", f"error: {read.error.message}"
        if len(read.calls) > 1:
            return "invalid", "error: call search once in a turn"
        if read.calls:
            return "search", read.calls[0].arguments["query"]
        answer = find_answer(read.text)
        return ("invalid", "") if answer is None else ("answer", answer)

    def show(self, reply: Ids, action: Action, text: str) -> Ids:
        if action == "search" or text:
            return self.calls.show(reply, text)
        return self.renderer.render_between(reply, self.renderer.message("user", CALL_INVALID))


def make_format(name: Format, renderer: Renderer) -> TurnFormat:
    """Return the format of a recipe. Raises RecipeError if it is `calls` and the chat template shows no calls."""
    return TaggedSearches(renderer) if name == "tags" else CalledSearches(renderer)


def read_action(text: str) -> tuple[Action, str]:
    """Return the action of a turn, and its query or answer: the first whole pair of tags counts."""
    found = _ACTION.search(text)
    if found is None:
        return "invalid", ""
    return ("search" if found[1] == "search" else "answer"), found[2].strip()
