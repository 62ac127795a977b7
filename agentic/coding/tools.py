"""Runs the agent's tools in its workspace. Each gives a text, also when something is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from core.sandbox.workspace import RepositoryWorkspace, WorkspaceError, shorten

READ_BYTES = 1 << 20


async def run_tool(
    workspace: RepositoryWorkspace, name: str, arguments: Mapping[str, Any], timeout_s: float, output_chars: int
) -> str:
    """Run bash, read or edit.

    Raises:
        WorkspaceError: the workspace is gone (kind `lost`).
    """
    try:
        if name == "bash":
            return await _run_bash(workspace, arguments["command"], timeout_s, output_chars)
        text = await _read_text(workspace, arguments["path"])
        if name == "read":
            first, last = arguments.get("first", 1), arguments.get("last")
            return shorten(number_lines(text, first, last), output_chars)
        return await _edit(workspace, arguments["path"], text, arguments)
    except WorkspaceError as error:
        if error.kind == "lost":
            raise
        return f"error: {error}"


def number_lines(text: str, first: int = 1, last: int | None = None) -> str:
    lines = list(enumerate(text.splitlines(), 1))[max(0, first - 1) : last]
    return "".join(f"{number} {line}\n" for number, line in lines)


async def _run_bash(workspace: RepositoryWorkspace, command: str, timeout_s: float, output_chars: int) -> str:
    result = await workspace.exec(
        f"exec 2>&1\n{command}", timeout_s=timeout_s, output_bytes=max(1 << 16, 4 * output_chars)
    )
    text = shorten(result.stdout.decode(errors="replace"), output_chars)
    match result.reason:
        case "timeout":
            return f"{text}\nThe command took more than {timeout_s:g} seconds and was ended."
        case "output_limit":
            return f"{text}\nThe command wrote too much and was ended."
    return text if result.exit_code == 0 else f"{text}\nexit code {result.exit_code}"


async def _read_text(workspace: RepositoryWorkspace, path: str) -> str:
    return (await workspace.get(path, READ_BYTES)).decode(errors="surrogateescape")


async def _edit(workspace: RepositoryWorkspace, path: str, text: str, arguments: Mapping[str, Any]) -> str:
    lines = text.splitlines(keepends=True)
    first, last = arguments["line"], arguments.get("last", arguments["line"])
    if not 1 <= first <= last <= len(lines):
        return f"error: {path} has the lines 1 to {len(lines)}"
    new = arguments["text"]
    if new and not new.endswith("\n"):
        new += "\n"
    changed = "".join([*lines[: first - 1], new, *lines[last:]])
    await workspace.put(path, changed.encode(errors="surrogateescape"))
    return "edited"
