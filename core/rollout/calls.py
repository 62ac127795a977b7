"""Reads a policy's replies in one of a method's formats; one of them is the form that its own chat template teaches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from core.text.call_formats import Reply, need_format, read_reply
from core.text.conversation import Renderer
from core.text.tokenizer import Ids, encode_text, end_ids
from core.text.tool_calls import ToolSchema, check_call
from core.types import Turn


class TurnFormat:
    """Reads the replies of a policy, and encodes what it is shown between them."""

    stop: tuple[str, ...] = ()
    """Lists the texts at which a turn stops."""
    tools: Sequence[Mapping[str, Any]] = ()
    """Holds the tools as `Renderer.render` takes them."""

    def __init__(self, renderer: Renderer):
        self.renderer = renderer

    def decode(self, reply: Ids) -> str:
        return str(self.renderer.tokenizer.decode(reply, skip_special_tokens=True))

    def encode(self, text: str) -> Ids:
        return encode_text(self.renderer.tokenizer, text)

    def count_notes(self, turns: Sequence[Turn]) -> Mapping[str, int]:
        """Count by name what was read in the turns `act` although it was not written as it should be."""
        return {}


class TemplateCalls(TurnFormat):
    """Reads calls in the form that the chat template teaches, and renders what the tools answered."""

    key: str
    """Names the key of the recipe that asks for this format."""
    schemas: Sequence[ToolSchema]

    def __init__(self, renderer: Renderer):
        """Raises RecipeError as `need_format`."""
        super().__init__(renderer)
        self._format = need_format(self.key, renderer.tokenizer)
        self._ends = end_ids(renderer.tokenizer)
        self.tools = [tool.to_openai() for tool in self.schemas]

    def read_calls(self, prompt: Ids, reply: Ids) -> Reply:
        """Read a reply to a prompt; one with a call that does not fit its tool has an error in place of calls."""
        ids = self.renderer.sampled_message(reply, prompt).ids
        if ids and ids[-1] in self._ends:  # a second one, which the template does not write
            ids = ids[:-1]
        text = self.renderer.tokenizer.decode(ids)
        read = read_reply(text, self._format, self.schemas)
        error = next((error for call in read.calls if (error := check_call(call, self.schemas))), None)
        return replace(read, calls=(), error=error) if error else read

    def count_notes(self, turns: Sequence[Turn]) -> Mapping[str, int]:
        replies = [(turn.prompt_ids, turn.completion.token_ids) for turn in turns if turn.role == "act"]
        return Counter(note for prompt, reply in replies for note in self.read_calls(prompt, reply).notes)

    def show_results(self, reply: Ids, results: Sequence[str]) -> Ids:
        """Return the ids that follow a reply: its results as messages of the tools, and the head of the next reply."""
        calls = self.read_calls((), reply).calls if self.renderer.shows_ids else ()
        shown_ids = [call.shown_id for call in calls] + [""] * (len(results) - len(calls))
        tools = [self.renderer.message("tool", text) for text in results]
        tools = [replace(tool, call_id=shown_id) for tool, shown_id in zip(tools, shown_ids, strict=False)]
        return self.renderer.render_between(reply, *tools)
