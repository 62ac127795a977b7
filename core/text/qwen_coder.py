"""This module reads the calls of Qwen3-Coder: `<function=NAME><parameter=KEY>VALUE</parameter></function>` in tags.

A value is written as it is, so it may hold any tag. It ends at the first `</parameter>` behind which a call goes on, or
ends as calls do. That is looked for in the lines of the template first and then with any spaces, and behind calls that
stand in the value as a whole first. A reply that can be read in no such way is an error.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.text.schemas import find_argument, read_value
from core.text.tool_calls import CLOSE, OPEN, CallError, Note, ToolCall, ToolSchema

_TAG = re.compile(r"<tool_call>|</tool_call>|<function=([^>\n]*)>|</function>|<parameter=([^>\n]*)>|</parameter>")
_ANYWHERE = re.compile(r"<parameter=([^>\n]*)>")
_OWN_LINE = re.compile(r"\n<parameter=([^>\n]*)>\n")
_OPENED_LINE = re.compile(r"^<parameter=[^>\n]*>\n", re.MULTILINE)
_CLOSED_LINE = re.compile(r"\n</parameter>$", re.MULTILINE)
_WAYS = (*itertools.product((True, False), (True, False), (False,)), (False, False, True))
"""Lists the ways to read a reply, as _Reading names them, best first."""


class _Misread(Exception):
    """The reply cannot be read in this way; `error` says why if it can be read in no other way either."""

    def __init__(self, error: CallError | None = None):
        super().__init__()
        self.error = error


def read_qwen_coder(text: str, tools: Sequence[ToolSchema]) -> tuple[str, list[ToolCall], list[Note]] | CallError:
    """Return the text outside of the calls, the calls, and what was not written as it should be."""
    tags = list(_TAG.finditer(text))
    schemas = {tool.name: tool.parameters for tool in tools}
    for way in _WAYS if tags else _WAYS[:1]:
        try:
            return _Reading(text, tags, schemas, *way).read()
        except _Misread as misread:
            if misread.error is not None:
                return misread.error
    return _explain(text)


@dataclass
class _Reading:
    """Reads a reply in one way: with tags in `lines` of their own, as the template writes them, or with any spaces.

    With `matched`, whole calls within a value belong to it. With `unended`, the reply may end within a value.
    """

    text: str
    tags: Sequence[re.Match[str]]
    tools: Mapping[str, Mapping[str, Any]]
    lines: bool
    matched: bool
    unended: bool
    notes: list[Note] = field(default_factory=list)
    surplus: int = 0

    def read(self) -> tuple[str, list[ToolCall], list[Note]]:
        outside, calls, place, i = "", list[ToolCall](), 0, 0
        while i < len(self.tags):
            if self.begins_call(i):
                outside += self.text[place : self.tags[i].start()]
                call, i, place = self.read_call(i)
                calls.append(call)
            elif self.tags[i][0] in (OPEN, CLOSE):
                raise _Misread
            elif self.looks_called(i):
                raise _Misread(CallError("unknown_tool", f"there is no tool {self.tags[i][1][:50]!r}"))
            else:
                i += 1
        return outside + self.text[place:], calls, self.notes

    def joins(self, i: int) -> bool:
        """Return whether nothing but spaces, or one line's end, stands between the tag `i` and the next one."""
        if i + 1 >= len(self.tags):
            return False
        between = self.text[self.tags[i].end() : self.tags[i + 1].start()]
        return between == "\n" if self.lines else not between.strip()

    def is_last(self, i: int) -> bool:
        """Return whether the reply ends with the tag `i`."""
        return i + 1 == len(self.tags) and not self.text[self.tags[i].end() :].strip()

    def begins_call(self, i: int) -> bool:
        """Return whether a call begins with the tag `i`; without `<tool_call>`, it must be of a known tool."""
        if self.tags[i][0] == OPEN:
            return self.joins(i) and self.tags[i + 1][1] is not None
        return self.looks_called(i) and self.tags[i][1].strip() in self.tools

    def looks_called(self, i: int) -> bool:
        """Return whether the tag `i` names a function, and parameters or the function's end follow at once."""
        if self.tags[i][1] is None or not self.joins(i):
            return False
        return self.tags[i + 1][2] is not None or self.tags[i + 1][0] == "</function>"

    def read_call(self, i: int) -> tuple[ToolCall, int, int]:
        """Read the call that begins with the tag `i`; return it, the tag behind it, and where the text goes on."""
        i, opened = (i + 1, True) if self.tags[i][0] == OPEN else (i, False)
        name = self.tags[i][1].strip()
        if not name:
            raise _Misread(CallError("missing_key", "<function=NAME> has no name or no end"))
        arguments: dict[str, Any] = {}
        self.surplus = 0
        if not opened:
            self.notes.append("unopened_call")
        while self.joins(i) and (key := self.tags[i + 1][2]) is not None:
            end = self.find_end(i + 1)
            value = self.text[self.tags[i + 1].end() : self.tags[end].start() if end < len(self.tags) else None]
            self.add(arguments, name, key, value)
            i = end
            if i == len(self.tags):
                self.notes.append("unended_argument")
                return ToolCall(name, arguments), i, len(self.text)
        if self.is_last(i):
            self.notes.append("unended_call")
        elif self.joins(i) and self.tags[i + 1][0] == "</function>":
            i += 1
            closed = self.joins(i) and self.tags[i + 1][0] == CLOSE
            i += closed
            if opened and not closed:
                self.notes.append("unended_call")
        else:
            raise _Misread
        return ToolCall(name, arguments), i + 1, self.tags[i].end()

    def find_end(self, i: int) -> int:
        """Return the tag that ends the value behind the tag `i`; the number of tags if the reply ends within it."""
        broken = self.lines and not self.text.startswith("\n", self.tags[i].end())
        depth = 0
        for j in range(i + 1, 0 if broken else len(self.tags)):
            tag = self.tags[j]
            # The depth is odd within a function that stands in the value, and even within a parameter of one.
            if self.matched and depth % 2 == 0 and self.looks_called(j):
                depth += 1
            elif depth % 2 and tag[0] == "</parameter>":
                raise _Misread
            elif depth % 2:
                depth += (tag[2] is not None) - (tag[0] == "</function>")
            elif depth:
                depth -= tag[0] == "</parameter>"
            elif tag[0] == "</parameter>" and self.ends_value(j):
                return j
        if not self.unended or i + 1 < len(self.tags):  # a tag behind it may be in the value, or end it
            raise _Misread
        return len(self.tags)

    def ends_value(self, i: int) -> bool:
        """Return whether a call goes on behind the `</parameter>` with the number `i`, or ends there."""
        if self.lines and self.text[self.tags[i].start() - 1] != "\n":
            return False
        if self.is_last(i):
            return True
        if not self.joins(i):
            return False
        if self.tags[i + 1][2] is not None:
            return True
        i += 1
        if self.tags[i][0] != "</function>":
            return False
        i += self.joins(i) and self.tags[i + 1][0] == CLOSE
        return i + 1 == len(self.tags) or self.begins_call(i + 1)

    def add(self, arguments: dict[str, Any], name: str, key: str, text: str) -> None:
        """Add an argument, typed by the tool's schema. Raises _Misread where a value may hold it instead."""
        schema = self.tools.get(name, {})
        found = find_argument(key, schema, schema)
        if key in arguments:
            raise _Misread(CallError("duplicate_key", f"the key {key[:50]!r} occurs twice"))
        if arguments and found is None and schema.get("properties"):
            raise _Misread(CallError("unknown_argument", f"{name[:50]} has no argument {key[:50]!r}"))
        text = text.removeprefix("\n").removesuffix("\n")
        inner = set(re.findall(_OWN_LINE if self.lines else _ANYWHERE, text)) - {*arguments, key}
        whole = self.matched and "<function=" in text  # then a call within it may name them
        if not whole and any(find_argument(each, schema, schema) is not None for each in inner):
            error = f"the parameter {key[:50]!r} was not closed with </parameter>, or holds another one"
            raise _Misread(CallError("unclosed_call", error))
        surplus = len(_OPENED_LINE.findall(text)) - len(_CLOSED_LINE.findall(text))
        if surplus < 0 < self.surplus:
            error = f"the parameter {key[:50]!r} closes what one before it opens: both may be one, with a call in it"
            raise _Misread(CallError("unclosed_call", error))
        self.surplus += surplus
        arguments[key], typed = read_value(text, found, schema)
        if not typed:
            self.notes.append("untyped_argument")


def _explain(text: str) -> CallError:
    """Return why the calls of a text cannot be read."""
    before, opened, body = text.partition(OPEN)
    if CLOSE in before or not (opened or "<function=" in text):
        return CallError("stray_tag", f"there is a {CLOSE} without {OPEN}")
    body = (body if opened else text[text.index("<function=") :]).lstrip()
    if not body.startswith("<function="):
        return CallError("not_object", "between the tags must stand <function=NAME>...</function>")
    if not body.partition(">")[2].lstrip().startswith(("<parameter=", "</function>")):
        return CallError("extra_key", "in a function, only <parameter=KEY>VALUE</parameter> may stand")
    return CallError("unclosed_call", "a parameter, a function or a call was not closed, or text stands behind it")
