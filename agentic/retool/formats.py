"""Finds the programs in a reply, and shows what they printed, in the form that `retool.format` names.

| | a program | what it printed |
|---|---|---|
| `tags` (the paper) | between <code> and </code>, where a turn stops | <interpreter>, in the same message |
| `fences` | in a ```python block | an ```output block, in the same message if the model begins one there |
| `calls` | a call of the tool `python`, as the chat template writes calls | a tool's message |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from agentic.retool.config import Format
from agentic.retool.prompts import (
    CALL_INSTRUCTIONS,
    CODE,
    CODE_END,
    FENCE_INSTRUCTIONS,
    INSTRUCTIONS,
    INTERPRETER,
    TOOL,
)
from core.rollout.calls import TemplateCalls
from core.text.conversation import Renderer
from core.text.fences import OUTPUT, PYTHON, find_last_fence
from core.text.tokenizer import Ids, encode_text
from core.text.tool_calls import CallError
from core.tools.programs import can_parse, extract_program


class ProgramFormat(Protocol):
    instructions: str
    stop: tuple[str, ...]
    """Lists the texts at which a turn stops."""
    tools: Sequence[Mapping[str, Any]]
    """Lists the tools that the chat template shows."""

    def find_programs(self, prompt: Ids, reply: Ids) -> Sequence[str | CallError]:
        """Return what the reply asks to run; an error is a call that cannot be read."""
        ...

    def show(self, reply: Ids, outputs: Sequence[str]) -> Ids:
        """Return the ids that follow the reply: what its programs printed."""
        ...


class TaggedPrograms:
    instructions = INSTRUCTIONS
    stop: tuple[str, ...] = (CODE_END,)
    tools: Sequence[Mapping[str, Any]] = ()

    def __init__(self, renderer: Renderer):
        self.tokenizer = renderer.tokenizer

    def find_programs(self, prompt: Ids, reply: Ids) -> Sequence[str | CallError]:
        program = find_program(self.tokenizer.decode(reply, skip_special_tokens=True))
        return [] if program is None else [program]

    def show(self, reply: Ids, outputs: Sequence[str]) -> Ids:
        return encode_text(self.tokenizer, INTERPRETER.format(output=outputs[0]))


class FencedPrograms:
    instructions = FENCE_INSTRUCTIONS
    stop: tuple[str, ...] = (OUTPUT,)
    tools: Sequence[Mapping[str, Any]] = ()

    def __init__(self, renderer: Renderer):
        self.renderer = renderer

    def find_programs(self, prompt: Ids, reply: Ids) -> Sequence[str | CallError]:
        head, begun, _ = self._decode(reply).partition(OUTPUT)
        fence = find_last_fence(head, PYTHON)
        if begun:
            return [fence.text if fence else ""]
        return [] if fence is None or "\\boxed" in fence.rest else [fence.text]

    def show(self, reply: Ids, outputs: Sequence[str]) -> Ids:
        text = f"\n{outputs[0]}\n```"
        if OUTPUT in self._decode(reply):
            return encode_text(self.renderer.tokenizer, f"{text}\n")
        return self.renderer.render_between(reply, self.renderer.message("user", OUTPUT + text))

    def _decode(self, reply: Ids) -> str:
        return str(self.renderer.tokenizer.decode(reply, skip_special_tokens=True))


class CalledPrograms:
    instructions = CALL_INSTRUCTIONS
    stop: tuple[str, ...] = ()

    def __init__(self, renderer: Renderer):
        self.calls = TemplateCalls("retool.format", renderer, [TOOL])
        self.tools: Sequence[Mapping[str, Any]] = self.calls.tools

    def find_programs(self, prompt: Ids, reply: Ids) -> Sequence[str | CallError]:
        read = self.calls.read(prompt, reply)
        return [read.error] if read.error else [call.arguments["code"] for call in read.calls]

    def show(self, reply: Ids, outputs: Sequence[str]) -> Ids:
        return self.calls.show(reply, *outputs)


def make_format(name: Format, renderer: Renderer) -> ProgramFormat:
    """Return the format of a recipe. Raises RecipeError if it is `calls` and the chat template shows no calls."""
    kinds: dict[Format, type[TaggedPrograms | FencedPrograms | CalledPrograms]] = {
        "tags": TaggedPrograms,
        "fences": FencedPrograms,
        "calls": CalledPrograms,
    }
    return kinds[name](renderer)


def find_program(reply: str) -> str | None:
    """Return the program that a reply ends with, without a fence; "" if it was not opened, None if there is none.

    The last tag opens it, or an earlier one behind which all is Python with the later tags in its strings.
    """
    before, end, _ = reply.partition(CODE_END)
    if not end:
        return None
    opened = [match.end() for match in re.finditer(re.escape(CODE), before)]
    programs = [extract_program(before[place:]) for place in opened]
    # Elsewhere than in a string, an open bracket in place of a tag is no Python.
    whole = (program for program in programs[:-1] if can_parse(program.replace(CODE, "(")))
    return next(whole, programs[-1]) if programs else ""
