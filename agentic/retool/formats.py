"""Finds the programs in a reply, and shows what they printed, in the form that `retool.format` names.

The texts that tell the policy of it are ours; the tags are the paper's.

| | a program | what it printed |
|---|---|---|
| `tags` (the paper) | between <code> and </code>, where a turn stops | <interpreter>, in the same message |
| `fences` | in a ```python block | an ```output block, in the same message if the model begins one there |
| `calls` | a call of the tool `python`, as the chat template writes calls | a tool's message |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from agentic.retool.config import Format
from core.rollout.calls import TemplateCalls, TurnFormat
from core.text.programs import OUTPUT, PYTHON, can_parse, extract_program, find_last_fence
from core.text.tokenizer import Ids
from core.text.tool_calls import CallError, make_schema

CODE, CODE_END = "<code>", "</code>"
"""Enclose a program that the policy writes; its turn stops at the second."""
INTERPRETER = "\n<interpreter>\n{output}\n</interpreter>\n"
"""Follows a program and shows what it printed, or how it failed."""


class TaggedPrograms(TurnFormat):
    instructions = (
        "\n\nThink step by step. At any point you may compute with Python: write a whole program between <code> and "
        "</code>, and print what you want to know. It is run at once, and its output follows between <interpreter> and "
        "</interpreter>. No program knows the variables of another. Write your final answer as \\boxed{answer}."
    )
    """Follows the question, unless the policy knows the format already."""
    stop = (CODE_END,)

    def find_programs(self, prompt: Ids, reply: Ids) -> Sequence[str | CallError]:
        """Return what the reply asks to run; an error is a call that cannot be read."""
        program = find_program(self.decode(reply))
        return [] if program is None else [program]

    def show_results(self, reply: Ids, results: Sequence[str]) -> Ids:
        """Return the ids that follow the reply: what its programs printed."""
        return self.encode(INTERPRETER.format(output=results[0]))


class FencedPrograms(TurnFormat):
    instructions = (
        "\n\nThink step by step. Compute with Python: write a whole program in a ```python block, and print what you "
        "want to know. It is run at once, and its output follows in an ```output block. No program knows the variables "
        "of another. Write your final answer as \\boxed{answer}."
    )
    stop = (OUTPUT,)

    def find_programs(self, prompt: Ids, reply: Ids) -> Sequence[str | CallError]:
        head, begun, _ = self.decode(reply).partition(OUTPUT)
        fence = find_last_fence(head, PYTHON)
        if begun:
            return [fence.text if fence else ""]
        return [] if fence is None or "\\boxed" in fence.rest else [fence.text]

    def show_results(self, reply: Ids, results: Sequence[str]) -> Ids:
        text = f"\n{results[0]}\n```"
        if OUTPUT in self.decode(reply):
            return self.encode(f"{text}\n")
        return self.renderer.render_between(reply, self.renderer.message("user", OUTPUT + text))


class CalledPrograms(TemplateCalls):
    instructions = (
        "\n\nThink step by step. At any point you may compute with the tool python. Write your final answer as "
        "\\boxed{answer}."
    )
    key = "retool.format"
    schemas = (
        make_schema(
            "python",
            "Runs a whole Python program and shows what it prints. No program knows the variables of another.",
            {"code": "string"},
        ),
    )

    def find_programs(self, prompt: Ids, reply: Ids) -> Sequence[str | CallError]:
        read = self.read_calls(prompt, reply)
        return [read.error] if read.error else [call.arguments["code"] for call in read.calls]


ProgramFormat = TaggedPrograms | FencedPrograms | CalledPrograms
FORMATS: Mapping[Format, type[ProgramFormat]] = {
    "tags": TaggedPrograms,
    "fences": FencedPrograms,
    "calls": CalledPrograms,
}


MAX_TAGS = 8
"""Limits the tags that may open a program: a reply that repeats them must not hold up the other rollouts."""


def find_program(reply: str) -> str | None:
    """Return the program that a reply ends with, without a fence; "" if it was not opened, None if there is none.

    The last tag opens it, or an earlier one behind which all is Python with the later tags in its strings.
    """
    before, end, _ = reply.partition(CODE_END)
    if not end:
        return None
    opened = [match.end() for match in re.finditer(re.escape(CODE), before)]
    if len(opened) > MAX_TAGS:
        opened = [opened[0], *opened[1 - MAX_TAGS :]]
    programs = [extract_program(before[place:]) for place in opened]
    # Elsewhere than in a string, an open bracket in place of a tag is no Python.
    whole = (program for program in programs[:-1] if can_parse(program.replace(CODE, "(")))
    return next(whole, programs[-1]) if programs else ""
