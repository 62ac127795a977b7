"""Defines a workspace: a repository in a sandbox of its own, in which an agent runs commands.

A backend says how a workspace starts, runs one command and stops. Files and the diff go through commands too, so the
host opens no path that untrusted code has made.
"""

from __future__ import annotations

import io
import os
import posixpath
import shlex
import socket
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt

from core.options import Section

Reason = Literal["exit", "timeout", "output_limit"]

BASH = 'exec 2>&1; set -- "$(cat)"; command -v bash > /dev/null && exec bash -c "$1"; eval "$1"'
"""Runs the command on standard input. Models write for bash: the `echo` of a plain sh makes two lines of a text with a
backslash and n in it. An image may have no bash."""

GIT = (
    "git --work-tree=. -c core.hooksPath=/dev/null -c core.fsmonitor=false -c core.attributesFile=/dev/null "
    "-c maintenance.auto=false -c core.autocrlf=false -c core.safecrlf=false -c core.fileMode=true"
)
"""Begins what we ask of git after an agent, so that no hook, file monitor or maintenance starts, and git reads these
files as they are. A filter of the repository does start: inside, like any command of the agent. A clean copy, in which
a diff is graded, has none of the agent's settings.
"""

FORGET = f"""find . -mindepth 2 -name .git -prune -exec rm -rf {{}} +
if [ -e .git ]; then
{GIT} ls-files -s | grep -v ^160000 > /tmp/tracked || true
[ -d .git ] || rm -f .git
[ ! -d .git ] || find .git -mindepth 1 -maxdepth 1 ! -name config ! -name info -exec rm -rf {{}} +
git init -q --template=
{GIT} update-index --index-info < /tmp/tracked
rm /tmp/tracked
fi"""
"""Forgets every commit of a repository that was there before, and those of repositories in it, so that no agent finds a
repair in them. What was tracked stays tracked, also where it is ignored. Files of submodules become files of its own.
"""

PACK = """
import marshal, os, sys
entries = []
for folder, folders, files in os.walk("."):
    for name in folders:
        path = os.path.join(folder, name)
        entries.append((path, os.stat(path).st_mode & 0o777, 0, None))
    for name in files:
        path = os.path.join(folder, name)
        with open(path, "rb") as file:
            found = os.fstat(file.fileno())
            entries.append((path, found.st_mode & 0o777, found.st_mtime_ns, file.read()))
sys.stdout.buffer.write(marshal.dumps(entries))
sys.stdout.buffer.flush()
"""
"""Writes the whole folder to stdout, of which every folder comes before what is in it, for UNPACK. Python that runs in
the workspace does at once what takes a shell several programs."""

UNPACK = """
import marshal, os, sys
for path, mode, changed, content in marshal.load(sys.stdin.buffer):
    if content is None:
        os.mkdir(path)
    else:
        with open(path, "wb") as file:
            file.write(content)
        os.utime(path, ns=(changed, changed))
    os.chmod(path, mode)
os.execvp("git", ["git", "update-index", "-q", "--refresh"])
"""
"""Reads that from stdin. Ends as git, which puts the inodes of these files into the index in place of those where they
were packed."""

ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",
    # Commits need an author. With fixed dates the same files give the same commit.
    **{f"GIT_{who}_{what}": "workspace" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
    **{f"GIT_{who}_DATE": "2000-01-01T00:00:00Z" for who in ("AUTHOR", "COMMITTER")},
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    # What Python and pytest leave behind is no part of a fix.
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTEST_ADDOPTS": "-p no:cacheprovider",
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
}


class WorkspaceUnavailable(RuntimeError):
    """Reports that nothing here can run the workspace; the message names what is missing and the fix."""


class WorkspaceError(RuntimeError):
    """Reports that a workspace did not do what it was asked; `kind` names the way."""

    def __init__(self, kind: str, message: str):
        super().__init__(f"{kind}: {message}")
        self.kind = kind


class WorkspaceLimits(Section):
    """Limits a workspace; a section of a recipe."""

    start_timeout_s: PositiveFloat = 120.0
    """Limits the wall clock of the start and of each of our own commands."""
    memory_mb: int = Field(default=1024, ge=64)
    """Limits the address space of each process; in Docker, the memory of all."""
    processes: PositiveInt = 32
    """Limits the processes and threads that run at a time."""
    disk_mb: PositiveInt = 64
    """Limits the repository, and beside it /tmp. They lie in memory; in Docker only /tmp is limited."""
    files: PositiveInt = 8192
    """Limits the files and folders of each of the two; Docker has no such limit."""
    diff_bytes: PositiveInt = 1 << 18
    """Limits the diff; a longer one is refused."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Describes how a command ended. `exit_code` is 128 + n after signal n, and what it was when a limit ended it."""

    reason: Reason
    exit_code: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def ok(self) -> bool:
        return self.reason == "exit" and self.exit_code == 0


@dataclass(frozen=True, slots=True)
class PreparedRepository:
    """Holds a repository as `start` leaves it, so that other workspaces need not make it again."""

    base: str
    archive: bytes
    """Holds the files and .git. It was packed inside, and only workspaces unpack it."""


class RepositoryWorkspace(ABC):
    """Holds a repository in the folder `workdir` of a sandbox without network.

    >>> async with IsolatedWorkspace() as workspace:
    ...     await workspace.start({"stock.py": b"..."})
    ...     result = await workspace.exec("python3 -m pytest -q", timeout_s=60)
    ...     diff = await workspace.diff()
    """

    def __init__(self, limits: WorkspaceLimits | None = None, workdir: str = "/testbed"):
        """Make a workspace that is not open yet."""
        if not workdir.startswith("/") or ".." in workdir.split("/") or workdir.rstrip("/") in ("", "/tmp"):
            raise ValueError(f"workdir {workdir!r} must be an absolute path, without .., and neither / nor /tmp")
        self.limits = limits or WorkspaceLimits()
        self.workdir = workdir.rstrip("/")
        self.listener: socket.socket | None = None
        """Listens on a port of 127.0.0.1 inside, while a workspace that serves one is open."""
        self.base = ""
        """Names the commit that `diff` compares with."""

    async def start(self, files: Mapping[str, bytes] | None = None, prepare: str = "") -> None:
        """Open the sandbox, put `files` (path in the repository -> content) there and commit everything as the base.

        Without files the repository is the one that the image brings in `workdir`. `prepare` is a shell command that
        runs before the commit; whether it succeeds is not looked at. The base is then the only commit: what the
        repository knew of others (history, branches, tags, stashes) is gone.

        Raises:
            WorkspaceUnavailable: there is no such sandbox here.
            WorkspaceError: the repository cannot be made (kind `start`).
        """
        await self.open()
        steps = [
            "set -e",
            "tar -x --no-same-owner" if files else "",
            f"( {prepare}\n) < /dev/null > /dev/null 2>&1 || true" if prepare else "",
            FORGET,
            "[ -d .git ] || git init -q --template=",
            "mkdir -p .git/info",
            "printf '__pycache__/\\n*.pyc\\n.pytest_cache/\\n' >> .git/info/exclude",
            f"{GIT} add -A {'-f' if files else ''} && {GIT} commit -q --allow-empty --no-verify -m base",
            "git rev-parse HEAD",
        ]
        self.base = (await self._run_own("start", "\n".join(steps), pack_files(files or {}))).decode().strip()

    async def pack(self, max_bytes: int) -> PreparedRepository | None:
        """Return the repository as it is after `start`, or None if it cannot be packed in `max_bytes`."""
        result = await self.run_python(PACK, timeout_s=self.limits.start_timeout_s, output_bytes=max_bytes)
        return PreparedRepository(self.base, result.stdout) if result.ok else None

    async def start_from(self, prepared: PreparedRepository) -> None:
        """Open the sandbox with a repository that another workspace has packed. Raises as `start` does."""
        await self.open()
        check_result("start", await self.run_python(UNPACK, prepared.archive, timeout_s=self.limits.start_timeout_s))
        self.base = prepared.base

    @abstractmethod
    async def open(self) -> None:
        """Open the sandbox with an empty `workdir`, or with that of the image."""

    @abstractmethod
    async def stop(self) -> None:
        """End all processes and remove everything. It may be called at any time, and twice."""

    @abstractmethod
    async def exec(
        self, command: str, stdin: bytes = b"", *, timeout_s: float, output_bytes: int = 1 << 20
    ) -> CommandResult:
        """Run a shell command in `workdir` to its end, and then end every process that it left behind.

        Raises:
            WorkspaceError: the sandbox itself is gone (kind `lost`).
        """

    async def run_python(
        self, code: str, stdin: bytes = b"", *, timeout_s: float, output_bytes: int = 1 << 20
    ) -> CommandResult:
        """Run Python code like `exec`, with Python's own library alone. The exit code is not 0 if it raises.

        Raises:
            WorkspaceError: the sandbox itself is gone (kind `lost`).
        """
        command = f"exec python3 -I -B -S -c {shlex.quote(code)}"
        return await self.exec(command, stdin, timeout_s=timeout_s, output_bytes=output_bytes)

    @abstractmethod
    async def interrupt(self) -> None:
        """End the command that is running now, if there is one. Its result says `timeout`; in Docker, exit code 137."""

    async def put(self, path: str, content: bytes) -> None:
        """Write a file; `path` is relative to `workdir`, or absolute.

        Raises:
            WorkspaceError: it cannot be written (kind `put`).
        """
        folder = posixpath.dirname(path)
        make_folder = f"mkdir -p -- {shlex.quote(folder)} && " if folder else ""
        await self._run_own("put", f"{make_folder}cat > {shlex.quote(path)}", content)

    async def get(self, path: str, max_bytes: int = 1 << 20) -> bytes:
        """Read a file.

        Raises:
            WorkspaceError: it cannot be read, is no file, or is longer than `max_bytes` (kind `get`).
        """
        quoted = shlex.quote(path)
        return await self._run_own("get", f"[ -f {quoted} ] && cat -- {quoted}", output_bytes=max_bytes)

    async def diff(self) -> bytes:
        """Return what changed in the repository since the start, new files included, as git's binary diff.

        Commits of the agent do not hide changes.

        Raises:
            WorkspaceError: git failed, as after `rm -rf .git`, or the diff is too long (kinds `no_diff`, `huge_diff`).
        """
        # A git that a limit ended has left its lock, and no other runs now. A repository within, as by `git init`,
        # would be a submodule, and an empty one an error.
        command = (
            "rm -f .git/index.lock; find . -mindepth 2 -name .git -prune -exec rm -rf {} +; "
            f"{GIT} -c core.quotePath=false ls-files -s | grep ^160000 | cut -f2- | tr '\\n' '\\0' | "
            f"xargs -r -0 {GIT} update-index --force-remove --; {GIT} add -A && exec {GIT} diff --cached --binary -U3 "
            f"-O/dev/null --no-color --src-prefix=a/ --dst-prefix=b/ --no-renames --no-ext-diff --no-textconv "
            f"{self.base}"
        )
        limit = self.limits.diff_bytes
        result = await self.exec(command, timeout_s=self.limits.start_timeout_s, output_bytes=limit)
        if result.reason == "output_limit":
            raise WorkspaceError("huge_diff", f"the diff is longer than diff_bytes={limit}")
        if not result.ok:
            raise WorkspaceError("no_diff", _describe(result))
        return result.stdout

    async def _run_own(self, kind: str, command: str, stdin: bytes = b"", output_bytes: int = 1 << 16) -> bytes:
        result = await self.exec(command, stdin, timeout_s=self.limits.start_timeout_s, output_bytes=output_bytes)
        return check_result(kind, result)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


def check_result(kind: str, result: CommandResult) -> bytes:
    """Return what a command has written. Raises WorkspaceError (`kind`) if it failed."""
    if not result.ok:
        raise WorkspaceError(kind, _describe(result))
    return result.stdout


def check_paths(paths: Sequence[str], workdir: str) -> None:
    """Raise ValueError for a path of the host that no workspace can show."""
    for path in paths:
        if not os.path.isabs(path) or os.path.normpath(path) != path or not os.path.exists(path):
            raise ValueError(f"{path!r} must be the absolute path of a file or folder that is there, without ..")
        if any(PurePosixPath(own).is_relative_to(path) for own in (workdir, "/tmp", "/packages0")):
            raise ValueError(f"{path!r} would cover the workspace's own {workdir}, /tmp or packages")
        if any(PurePosixPath(path).is_relative_to(own) for own in (workdir, "/tmp")):
            raise ValueError(f"{path!r} would be covered by the workspace's own {workdir} or /tmp")


def find_bad_path(files: Any) -> tuple[str, str] | None:
    """Return what is wrong with the files of a record, and the fix; None if they can lie in a folder."""
    if not isinstance(files, Mapping):
        return f"is a {type(files).__name__}", "give the files as path -> text"
    for path, text in files.items():
        plain = PurePosixPath(path)
        if path != str(plain) or not plain.parts or plain.is_absolute() or {"..", "\0"} & {*plain.parts, *path}:
            return f"has the path {path!r:.99}", "give plain paths inside of the folder, such as a/b.py"
        if any(len(part.encode(errors="replace")) > 255 for part in plain.parts):
            return f"has the path {path!r:.99}", "give names of at most 255 bytes"
        if not isinstance(text, str):
            return f"has no text at {path}", "give the file's text"
        if both := [str(folder) for folder in plain.parents if str(folder) in files]:
            return f"has {both[0]} as a file and as a folder", "rename one of them"
    return None


def _describe(result: CommandResult) -> str:
    said = result.stderr.decode(errors="replace").strip()
    return f"{result.reason}, exit code {result.exit_code}: {said}"[:500]


def shorten(text: str, limit: int) -> str:
    """Keep the head and the tail of an output that has more than `limit` characters."""
    if len(text) <= limit:
        return text
    tail = limit // 2
    return f"{text[: limit - tail]}\n... {len(text) - limit} characters left out ...\n{text[len(text) - tail :]}"


def pack_files(files: Mapping[str, bytes]) -> bytes:
    """Return the files as a tar archive."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return buffer.getvalue()
