"""Reads what the policy does in a turn, and shows what came of it, in the form that `search_r1.format` names.

| | a search | an answer | what was found |
|---|---|---|---|
| `tags` (the paper) | <search>, where a turn stops | <answer> | <information>, in the same message |
| `calls` | a call of the tool `search`, as the chat template writes calls | in a box | a tool's message |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from agentic.search_r1.prompts import CALL_INVALID, INFORMATION, INVALID, TOOL, Format
from core.rewards.answer_grader import find_answer
from core.rollout.calls import TemplateCalls, TurnFormat
from core.text.tokenizer import Ids

Action = Literal["search", "answer", "invalid"]

_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>", re.DOTALL)


class TaggedSearches(TurnFormat):
    stop = ("</search>", "</answer>")

    def read(self, prompt: Ids, reply: Ids) -> tuple[Action, str]:
        """Return the action of a turn, and its query or answer; with `invalid`, what was wrong with a call."""
        return read_action(self.decode(reply))

    def show(self, reply: Ids, action: Action, text: str) -> Ids:
        """Return the ids that follow a turn: the passages in `text`, or that it was invalid, with what was wrong."""
        return self.encode(INFORMATION.format(text) if action == "search" else INVALID)


class CalledSearches(TemplateCalls):
    key = "search_r1.format"
    schemas = (TOOL,)

    def read(self, prompt: Ids, reply: Ids) -> tuple[Action, str]:
        read = self.read_calls(prompt, reply)
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
            return self.show_results(reply, [text])
        return self.renderer.render_between(reply, self.renderer.message("user", CALL_INVALID))


FORMATS: Mapping[Format, type[TaggedSearches | CalledSearches]] = {"tags": TaggedSearches, "calls": CalledSearches}


def read_action(text: str) -> tuple[Action, str]:
    """Return the action of a turn, and its query or answer: the first whole pair of tags counts."""
    found = _ACTION.search(text)
    if found is None:
        return "invalid", ""
    return ("search" if found[1] == "search" else "answer"), found[2].strip()
