"""Reads what the policy does in a turn, and shows what came of it, in the form that `search_r1.format` names.

| | a search or visit | an answer | what was found |
|---|---|---|---|
| `tags` (the paper) | <search>, <visit>, where a turn stops | <answer> | <information>, in the same message |
| `calls` | a call of the tool `search` or `visit`, as the chat template writes it | in a box | a tool's message |

Without `search_r1.visit` a visit is no action. The text of a visit is the page's title, and from the second line on the
goal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal, cast

from agentic.search_r1.prompts import CALL_INVALID, INFORMATION, INVALID, TOOL, VISIT_TOOL, Format
from core.rewards.answer_grader import find_answer
from core.rollout.calls import TemplateCalls, TurnFormat
from core.text.conversation import Renderer
from core.text.tokenizer import Ids

Action = Literal["search", "visit", "answer", "invalid"]


class TaggedSearches(TurnFormat):
    def __init__(self, renderer: Renderer, visits: bool):
        super().__init__(renderer)
        names = ("search", "visit", "answer") if visits else ("search", "answer")
        self.stop = tuple(f"</{name}>" for name in names)
        self._action = re.compile(rf"<({'|'.join(names)})>(.*?)</\1>", re.DOTALL)

    def read(self, prompt: Ids, reply: Ids) -> tuple[Action, str]:
        """Return the action of a turn, and its query, page or answer; with `invalid`, what was wrong with a call.

        The first whole pair of tags counts.
        """
        found = self._action.search(self.decode(reply))
        return ("invalid", "") if found is None else (cast(Action, found[1]), found[2].strip())

    def show(self, reply: Ids, action: Action, text: str) -> Ids:
        """Return the ids that follow a turn: what was found, in `text`, or that it was invalid, with what was wrong."""
        return self.encode(INVALID if action == "invalid" else INFORMATION.format(text))


class CalledSearches(TemplateCalls):
    key = "search_r1.format"

    def __init__(self, renderer: Renderer, visits: bool):
        self.schemas = (TOOL, VISIT_TOOL) if visits else (TOOL,)
        super().__init__(renderer)

    def read(self, prompt: Ids, reply: Ids) -> tuple[Action, str]:
        read = self.read_calls(prompt, reply)
        if read.error is not None:
            return "invalid", f"error: {read.error.message}"
        if len(read.calls) > 1:
            return "invalid", f"error: call {' or '.join(tool.name for tool in self.schemas)} once in a turn"
        for call in read.calls:
            if call.name == VISIT_TOOL.name:
                return "visit", f"{call.arguments['page']}\n{call.arguments.get('goal', '')}"
            return "search", call.arguments["query"]
        answer = find_answer(read.text)
        return ("invalid", "") if answer is None else ("answer", answer)

    def show(self, reply: Ids, action: Action, text: str) -> Ids:
        if action == "search" or text:
            return self.show_results(reply, [text])
        return self.renderer.render_between(reply, self.renderer.message("user", CALL_INVALID))


FORMATS: Mapping[Format, type[TaggedSearches | CalledSearches]] = {"tags": TaggedSearches, "calls": CalledSearches}
