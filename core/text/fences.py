"""This module finds fenced blocks in a reply, as chat models write programs and commands."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from textwrap import dedent

PYTHON = frozenset({"python", "python3", "py"})
SHELL = frozenset({"bash", "sh", "shell"})
OUTPUT = "```output"
"""Opens the block in which a model that was taught to reason with tools expects what its program printed."""

_FENCE = re.compile(r"^[ \t]*```([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*```|\Z)", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Fence:
    """Holds the content of a block, without the indentation of the block, and what follows it."""

    text: str
    rest: str


def find_last_fence(text: str, languages: Collection[str]) -> Fence | None:
    """Return the last block in one of these languages, in lower case; one at the end may be unfinished.

    A fence begins a line. So does one in a text within the program, which ends the block there.
    """
    found = None
    for match in _FENCE.finditer(text):
        if match[1].lower() in languages:
            found = Fence(dedent(match[2]).strip(), text[match.end() :])
    return found
