r"""Parses what the roles write into a next step, a tool command or a verdict, or into an error with a name.

`official` is the prose of the paper's prompts; `released` is read in the same way. `compact` says the same in a few
tokens, for small policies. `fences` is as `official`, but a command is what stands in the last fenced block, as chat
models write programs:

| | official | compact |
|---|---|---|
| next step | Context, Sub-Goal, Tool Name under these labels | ` tool : sub-goal` |
| command | `execution = tool.execute(query="...")`, fenced or not | the query itself |
| verdict | the last `Conclusion: STOP` or `Conclusion: CONTINUE`, also as a heading | the last word, STOP or CONTINUE |

A command is parsed, never run. Every parser takes time linear in the text.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

from core.rewards.answers import fold_text
from core.text.programs import PYTHON, dedent_program, find_last_fence

Style = Literal["official", "released", "fences", "compact"]

QUERY_FENCES = PYTHON | {"", "text"}


@dataclass(frozen=True, slots=True)
class NextStep:
    context: str
    sub_goal: str
    tool: str
    """Names the tool as the model wrote it. The format does not know which tools there are."""


@dataclass(frozen=True, slots=True)
class ParsedCommand:
    arguments: Mapping[str, Any]
    text: str
    """Holds the command as the memory shows it."""


@dataclass(frozen=True, slots=True)
class ParseError:
    """A text that is not of the format. `message` says what is wrong, to the model that wrote it."""

    kind: str
    message: str


_NO_COMMAND = ParseError("no_command", 'there is no `execution = tool.execute(query="...")`')
_NO_CONCLUSION = ParseError("no_conclusion", "there is no verdict STOP or CONTINUE at the end")


class OfficialFormat:
    """Reads labels in any case, in bold, numbered or not. The last set of labels counts; later lines do not."""

    def parse_next_step(self, text: str) -> NextStep | ParseError:
        labels = _labels(text, _LABEL_AT_START)
        if not {"tool", "sub_goal"} <= {label.name for label in labels}:
            labels = _labels(text, _LABEL_ANYWHERE)
        # The fields stand in the order of the prompt. Read them from the last back: each ends where the next begins.
        fields: dict[str, str] = {}
        end = len(text)
        for name in ("tool", "sub_goal", "context"):
            found = next((label for label in reversed(labels) if label.name == name and label.stop <= end), None)
            fields[name] = _clean(text[found.stop : end]) if found else ""
            end = found.start if found else end
        tool = fold_text(fields["tool"].partition("\n")[0]).strip(" \t`*_\"'[]").removesuffix(".").rstrip("`*\"']")
        if not tool:
            return ParseError("no_tool", "there is no `Tool Name:` with a tool after it")
        if not fields["sub_goal"]:
            return ParseError("no_sub_goal", "there is no `Sub-Goal:` with text after it, before `Tool Name:`")
        return NextStep(fields["context"], fields["sub_goal"], tool)

    def parse_command(self, text: str) -> ParsedCommand | ParseError:
        blocks = [re.sub(r"\A(?:python3?|py)?[ \t]*\n", "", block) for block in text.split("```")[1::2]]
        bare = text[max((match.start() for match in _EXECUTION.finditer(text)), default=len(text)) :]
        error = None
        for code in map(dedent_program, (*reversed(blocks), text, bare, bare[: bare.rfind(")") + 1])):
            command = _read_command(code)
            if not isinstance(command, ParseError):
                return command
            error = error or (command if "execute" in code else None)
        return error or _NO_COMMAND

    def parse_verdict(self, text: str) -> bool | ParseError:
        """Return whether to stop."""
        conclusions = _CONCLUSION.findall(fold_text(text))
        return conclusions[-1].upper() == "STOP" if conclusions else _NO_CONCLUSION


class FencedFormat(OfficialFormat):
    def parse_command(self, text: str) -> ParsedCommand | ParseError:
        fence = find_last_fence(text, QUERY_FENCES)
        if fence is None or not fence.text:
            return ParseError("no_command", "there is no fenced block with the tool's query")
        return ParsedCommand({"query": fence.text}, fence.text)


class CompactFormat:
    def parse_next_step(self, text: str) -> NextStep | ParseError:
        tool, colon, sub_goal = (part.strip() for part in text.partition(":"))
        if not colon or not tool:
            return ParseError("no_tool", "write `tool : sub-goal`")
        if not sub_goal:
            return ParseError("no_sub_goal", "write a sub-goal after the colon")
        return NextStep("", sub_goal, tool)

    def parse_command(self, text: str) -> ParsedCommand | ParseError:
        query = text.strip()
        return ParsedCommand({"query": query}, query) if query else ParseError("no_command", "the command is empty")

    def parse_verdict(self, text: str) -> bool | ParseError:
        word = text.rstrip(" \t\n.").rsplit(maxsplit=1)[-1:]
        return word == ["STOP"] if word in (["STOP"], ["CONTINUE"]) else _NO_CONCLUSION


FORMATS: Mapping[Style, OfficialFormat | CompactFormat] = {
    "official": OfficialFormat(),
    "released": OfficialFormat(),
    "fences": FencedFormat(),
    "compact": CompactFormat(),
}

_LABEL = r"(?P<name>context|sub-?[ ]?goals?|tool(?:[ _-]?name)?)[ *_`]*[:：][*_`]*"
_LABEL_AT_START = re.compile(rf"^[ \t*#>_`0-9.)(-]*{_LABEL}", re.IGNORECASE | re.MULTILINE)
_LABEL_ANYWHERE = re.compile(rf"(?<![a-z-]){_LABEL}", re.IGNORECASE)
_EXECUTION = re.compile(r"^[ \t]*execution[ \t]*=", re.MULTILINE)
_CONCLUSION = re.compile(r"(?<![a-z\d])conclusion[ \t*_`]*[:：\n][\s*_`\"']*(stop|continue)(?![a-z\d])", re.IGNORECASE)
_NOT_LITERAL = (ValueError, TypeError, SyntaxError, RecursionError, MemoryError)


@dataclass(frozen=True, slots=True)
class _Label:
    name: str
    start: int
    stop: int


def _labels(text: str, pattern: re.Pattern[str]) -> list[_Label]:
    names = {"c": "context", "s": "sub_goal", "t": "tool"}
    return [_Label(names[match["name"][0].lower()], match.start(), match.end()) for match in pattern.finditer(text)]


def _clean(field: str) -> str:
    """Strip the marks around a field, and the number or bullet of the list item that follows it."""
    lines = field.strip().splitlines()
    while lines and re.fullmatch(r"(?:\d+[.)])?", lines[-1].strip(" \t*#>_`-")):
        lines.pop()
    return "\n".join(lines).strip().removeprefix("**").removesuffix("**").strip()


def _read_command(code: str) -> ParsedCommand | ParseError:
    """Read the last `execution = tool.execute(...)`: its arguments are literals, or names bound to literals.

    Of several calls the memory shows the one that runs, or its readers would take the result for that of all.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in what a model wrote
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return ParseError("bad_command", f"the command is not Python: {error}")
    constants: dict[str, Any] = {}
    calls: list[dict[str, Any] | ParseError] = []
    for statement in tree.body:
        match statement:
            case ast.Assign([ast.Name("execution")], ast.Call(ast.Attribute(ast.Name("tool"), "execute")) as call):
                calls.append(_keywords(call, constants))
                continue
        for node in ast.walk(statement):  # a command that uses a name with a new value, which is no literal, is refused
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                constants.pop(node.id, None)
        match statement:
            case ast.Assign([ast.Name(name)], value):
                with suppress(*_NOT_LITERAL):
                    constants[name] = ast.literal_eval(value)
    arguments = calls[-1] if calls else _NO_COMMAND
    if isinstance(arguments, ParseError):
        return arguments
    if len(calls) > 1:
        with suppress(ValueError):  # an integer of thousands of digits is not written
            code = f"execution = tool.execute({', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    return ParsedCommand(arguments, code)


def _keywords(call: ast.Call, constants: Mapping[str, Any]) -> dict[str, Any] | ParseError:
    if call.args or any(keyword.arg is None for keyword in call.keywords):
        return ParseError("bad_command", 'name every argument: tool.execute(query="...")')
    arguments = {}
    for keyword in call.keywords:
        assert keyword.arg is not None
        if isinstance(keyword.value, ast.Name) and keyword.value.id in constants:
            arguments[keyword.arg] = constants[keyword.value.id]
            continue
        try:
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
        except _NOT_LITERAL:
            return ParseError("bad_command", f"argument {keyword.arg} must be a literal, such as a string in quotes")
    return arguments
