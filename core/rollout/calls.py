"""Lets a policy call tools in the form that its own chat template teaches, and read their results there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.options import RecipeError
from core.text.call_formats import CallFormat, Reply, detect_format, read_reply
from core.text.conversation import Renderer
from core.text.tokenizer import Ids, Tokenizer
from core.text.tool_calls import ToolSchema, check_call


def need_format(key: str, tokenizer: Tokenizer) -> CallFormat:
    """Return the form in which the chat template writes calls. Raises RecipeError if it shows none; `key` asks for it.

    The message names the key and what else it may be.
    """
    call_format = detect_format(tokenizer)
    if call_format is None:
        raise RecipeError(
            f"{key} is calls, and the model's chat template shows no tool calls in a known way; take another format, "
            "or a model whose template does"
        )
    return call_format


class TemplateCalls:
    """Reads the calls in a policy's replies, and renders what the tools answered."""

    def __init__(self, key: str, renderer: Renderer, tools: Sequence[ToolSchema]):
        """Take the tools that there are. Raises RecipeError as `need_format`."""
        self._renderer = renderer
        self._schemas = tuple(tools)
        self._format = need_format(key, renderer.tokenizer)
        self.tools = [tool.to_openai() for tool in tools]
        """Holds the tools as `Renderer.render` takes them."""

    def read(self, prompt: Ids, reply: Ids) -> Reply:
        """Read a reply to a prompt; one with a call that does not fit its tool has an error in place of calls."""
        text = self._renderer.tokenizer.decode(self._renderer.sampled_message(reply, prompt).ids)
        read = read_reply(text, self._format, self._schemas)
        error = next((error for call in read.calls if (error := check_call(call, self._schemas))), None)
        return replace(read, calls=(), error=error) if error else read

    def show(self, reply: Ids, *results: str) -> Ids:
        """Return the ids that follow a reply: its results as messages of the tools, and the head of the next reply."""
        return self._renderer.render_between(reply, *(self._renderer.message("tool", text) for text in results))
