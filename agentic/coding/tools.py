"""Runs the agent's tools in its workspace. Each gives a text, also when something is wrong."""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from core.sandbox.workspace import BASH, RepositoryWorkspace, WorkspaceError, shorten

READ_BYTES = 1 << 20


async def run_tool(
    workspace: RepositoryWorkspace, name: str, arguments: Mapping[str, Any], timeout_s: float, output_chars: int
) -> tuple[str, bool]:
    """Run bash, read or edit. Return what it says and whether it failed; a command that ends by itself has not.

    Raises:
        WorkspaceError: the workspace is gone (kind `lost`).
    """
    try:
        if name == "bash":
            return await _run_bash(workspace, arguments["command"], timeout_s, output_chars)
        text = (await workspace.get(arguments["path"], READ_BYTES)).decode(errors="surrogateescape")
        if name == "read":
            first, last = arguments.get("first", 1), arguments.get("last")
            return shorten(number_lines(text, first, last), output_chars), False
        return await _edit(workspace, arguments["path"], text, arguments)
    except WorkspaceError as error:
        if error.kind == "lost":
            raise
        return f"error: {error}", True


def number_lines(text: str, first: int = 1, last: int | None = None) -> str:
    lines = list(enumerate(split_lines(text), 1))[max(0, first - 1) : last]
    return "".join("{} {}\n".format(number, line.rstrip("\r\n")) for number, line in lines)


def split_lines(text: str) -> list[str]:
    """Return the lines with their ends, as sed counts them: a form feed ends none."""
    return io.StringIO(text, newline="\n").readlines()


async def _run_bash(
    workspace: RepositoryWorkspace, command: str, timeout_s: float, output_chars: int
) -> tuple[str, bool]:
    given, most = command.encode(errors="replace"), max(1 << 16, 4 * output_chars)
    result = await workspace.exec(BASH, given, timeout_s=timeout_s, output_bytes=most)
    text = shorten(result.stdout.decode(errors="replace"), output_chars)
    match result.reason:
        case "timeout":
            return f"{text}\nThe command took more than {timeout_s:g} seconds and was ended.", True
        case "output_limit":
            return f"{text}\nThe command wrote too much and was ended.", True
    return (text if result.exit_code == 0 else f"{text}\nexit code {result.exit_code}"), False


async def _edit(workspace: RepositoryWorkspace, path: str, text: str, arguments: Mapping[str, Any]) -> tuple[str, bool]:
    lines = split_lines(text)
    first, last = arguments["line"], arguments.get("last", arguments["line"])
    if not 1 <= first <= last <= len(lines):
        return f"error: {path} has the lines 1 to {len(lines)}", True
    new = arguments["text"]
    if not new.isascii() and text.encode(errors="replace").decode() != text:  # the file would have two encodings
        return f"error: {path} is not UTF-8 text: change it by a program, or write ASCII", True
    if new and not new.endswith("\n"):
        new += "\n"
    changed = "".join([*lines[: first - 1], new, *lines[last:]])
    await workspace.put(path, changed.encode(errors="surrogateescape"))
    return "edited", False
