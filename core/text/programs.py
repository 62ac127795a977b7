"""This module finds fenced blocks and programs in a reply: in a fence, indented as a whole, or an expression."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from textwrap import dedent
from typing import Literal

PYTHON = frozenset({"python", "python3", "py"})
SHELL = frozenset({"bash", "sh", "shell"})
OUTPUT = "```output"
"""Opens the block in which a model that was taught to reason with tools expects what its program printed."""

_ATTRIBUTES = r"(?:[ \t]+\S+=\S+)*[ \t\r]*\n"
_PROGRAM = re.compile(rf"[ \t]*\{{?\.?(?:i?python[\d.]*|py3?|tool_code)\}}?{_ATTRIBUTES}\s*\S", re.IGNORECASE)
_INFO = re.compile(rf"\A[ \t]*[\w.+{{}}-]*{_ATTRIBUTES}")
"""Matches what stands behind a fence that begins a line: a language, `{python}`, `python title=x`, or nothing."""
_LANGUAGE = re.compile(r"\A(?:python3?|py)?[ \t\r]*\n", re.IGNORECASE)
"""Matches the same where a fence stands within a line, or is missing: there a first line may be code."""
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


def extract_program(reply: str) -> str:
    """Return the reply if it is a program; else its longest block, one of Python before others, if it has any."""
    if can_parse(plain := dedent_program(reply)):
        return plain
    program = reply
    # A text in a program may hold a fence, so those count first that begin a line.
    lines = re.split(r"^[ \t]*```", reply, flags=re.MULTILINE)
    for parts, info in ((lines, _INFO), (reply.split("```"), _LANGUAGE)):
        # A fence that only ends has nothing behind it.
        code = max(parts[1::2], key=lambda text: (bool(_PROGRAM.match(text)), len(text)), default="")
        program = dedent_program(info.sub("", code) if code else _LANGUAGE.sub("", parts[0]))
        if can_parse(program) and not any("```" in outside for outside in parts[::2]):
            break
    return program


def dedent_program(code: str) -> str:
    """Return `code` without the indentation that all its lines have, or all but the first, as in an item of a list."""
    first, line_break, rest = code.strip().partition("\n")
    forms = (code.strip(), dedent(code).strip(), first + line_break + dedent(rest))
    return next((form for form in forms if can_parse(form)), forms[0])


def can_parse(code: str, mode: Literal["exec", "eval"] = "exec") -> bool:
    """Return whether `code` is a program, or with `eval` an expression."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in what a model wrote
            ast.parse(code, mode=mode)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def print_value(code: str) -> str:
    """Return `code`, or a program that prints its value if it is an expression."""
    if not can_parse(code.strip(), "eval"):
        return code
    expression = ast.parse(code.strip(), mode="eval").body
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "print":
        return code
    return f"print({code.strip()}\n)"  # on a line of its own: a comment may end the expression
