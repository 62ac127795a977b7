"""Workspaces are forks of one server, and start from a repository that is prepared once: neither shares anything."""

from __future__ import annotations

import ast
import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest

from core.sandbox.workspace import (
    IsolatedWorkspace,
    PreparedRepository,
    RepositoryWorkspace,
    WorkspaceError,
)
from core.sandbox.workspace.isolated import SERVER, make_environment
from tests import kit

Make = Callable[..., RepositoryWorkspace]
FILES = {
    "a.py": b"x = 1\n",
    "pkg/deep/b.py": b"y = 1\n",
    "an empty file": b"",
    ".gitignore": b"*.log\n",
    "kept.log": b"ignored, and there\n",
    ".gitattributes": b"*.txt text eol=crlf\n",
    "lines.txt": b"one\ntwo\n",
    "bytes": bytes(range(256)),
}
LOOKS = (
    "git rev-parse HEAD",
    "git status --porcelain --ignored",
    "git diff-files",
    "git diff-index HEAD",
    "git ls-files --stage",
    "git fsck --strict",
    "find . -printf '%p %y %m %U %G %l\n' | sort",
    "find . -type f ! -path ./.git/index | sort | xargs -d '\n' sha256sum",
    "git ls-files -z | xargs -0 stat -c '%n %Y'",
)


async def test_a_prepared_repository_equals_a_fresh_one(make: Make) -> None:
    async with make() as fresh, make() as other:
        await fresh.start(FILES)
        prepared = await fresh.pack(1 << 20)
        assert prepared is not None
        assert await fresh.pack(100) is None
        await other.start_from(prepared)
        assert other.base == fresh.base
        for look in LOOKS:
            seen = [(await workspace.exec(look, timeout_s=60)).stdout for workspace in (fresh, other)]
            assert seen[0] == seen[1], look
        assert await other.diff() == b""
        diffs = []
        for workspace in (fresh, other):
            await workspace.put("a.py", b"x = 2\n")
            await workspace.put("new/c.py", b"z = 1\n")
            diffs.append(await workspace.diff())
        assert diffs[0] == diffs[1] != b""


async def test_what_one_workspace_does_no_other_sees(make: Make) -> None:
    """Neither while it lives nor after it, in the repository, in .git, in /tmp or in Python's own memory."""
    traces = "echo x > a.py; git commit -qam mine; git config user.name me; echo x > .git/hooks; echo x > /tmp/left"
    spoil = "import json, os, sys; json.dumps = sys.modules['os'].getcwd = None; os.environ['SPOILED'] = '1'"
    look = "import json, os; print(json.dumps(sorted(os.listdir('/tmp'))), os.getcwd(), 'SPOILED' in os.environ)"
    async with make() as first, make() as second, make() as third:
        await first.start(FILES)
        prepared = await first.pack(1 << 20)
        assert prepared is not None
        await second.start_from(prepared)
        for workspace in (first, second):
            await workspace.exec(traces, timeout_s=60)
            await workspace.run_python(spoil, timeout_s=60)
        await third.start_from(prepared)
        assert await third.get("a.py") == FILES["a.py"]
        for workspace, left in ((second, '["left"]'), (third, "[]")):
            assert (await workspace.run_python(look, timeout_s=60)).stdout == f"{left} /testbed False\n".encode()
        assert (await third.exec("git log --format=%an; git config user.name", timeout_s=60)).stdout == b"workspace\n"


async def test_an_archive_that_is_none_is_told(make: Make) -> None:
    async with make() as workspace:
        with pytest.raises(WorkspaceError, match="start"):
            await workspace.start_from(PreparedRepository("0" * 40, b"no archive"))


OWN = """
import json, os, sys
def is_open(number):
    try:
        os.fstat(number)
    except OSError:
        return False
    return True
names = [name for name in ("spec", "request", "call", "libc") if name in globals()]
print([sys.argv, sys.stdin.read(), list(filter(is_open, range(5000))), dict(os.environ), names, sys.flags.safe_path])
"""


async def test_code_has_its_own_streams_and_variables_and_no_others(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_SECRET_OF_OURS", "hush")
    async with make() as neighbour, make() as workspace:
        await neighbour.start(FILES)
        await workspace.start(FILES)
        result = await workspace.run_python(OWN, b"given", timeout_s=60)
        argv, given, descriptors, environment, names, isolated = ast.literal_eval(result.stdout.decode())
        assert (argv, given, names, isolated) == (["-c"], "given", [], True)
        if isinstance(workspace, IsolatedWorkspace):
            assert descriptors == [0, 1, 2]
            assert environment == make_environment()
        ended = await workspace.run_python("raise ValueError('so it ends')", timeout_s=60)
        assert not ended.ok
        assert b"so it ends" in ended.stderr
        assert (await workspace.run_python("while True: pass", timeout_s=0.3)).reason == "timeout"
        left = (
            "import os, time\nif os.fork() == 0:\n    time.sleep(0.3)\n    open('late', 'w')\nprint('now', flush=True)"
        )
        assert (await workspace.run_python(left, timeout_s=60)).stdout == b"now\n"
        await asyncio.sleep(0.5)
        with pytest.raises(WorkspaceError, match="get"):
            await workspace.get("late")


@pytest.fixture
def landlock(isolation: None) -> Any:
    return lambda: IsolatedWorkspace(backend="landlock")


async def test_a_server_that_was_killed_is_started_again(landlock: Any) -> None:
    async with landlock() as lost:
        await lost.start(FILES)
        server = SERVER.pid
        (monitor,) = kit.list_children(server)
        (inside,) = kit.list_children(monitor)
        os.kill(server, signal.SIGKILL)
        kit.wait_until(lambda: not kit.is_running(monitor) and not kit.is_running(inside))
        with pytest.raises(WorkspaceError, match="lost"):
            await lost.exec("true", timeout_s=60)
    async with landlock() as workspace:
        await workspace.start(FILES)
        assert (await workspace.exec("echo alive", timeout_s=60)).stdout == b"alive\n"
    assert SERVER.pid != server


async def test_the_server_outlives_the_thread_that_started_it(landlock: Any) -> None:
    SERVER.close()

    async def run() -> bytes:
        async with landlock() as workspace:
            await workspace.start(FILES)
            return bytes((await workspace.exec("echo alive", timeout_s=60)).stdout)

    thread = Thread(target=asyncio.run, args=(run(),))
    thread.start()
    thread.join()
    server = SERVER.pid
    assert await run() == b"alive\n"
    assert SERVER.pid == server
    assert kit.list_children(server) == []


HOST = """
import asyncio
from core.sandbox.workspace import IsolatedWorkspace
from core.sandbox.workspace.isolated import SERVER
async def main():
    async with IsolatedWorkspace(backend="landlock") as workspace:
        await workspace.start({"a.py": b""})
        running = asyncio.create_task(workspace.exec("sleep 1000", timeout_s=1000))
        print(SERVER.pid, flush=True)
        await running
asyncio.run(main())
"""


def test_the_server_and_its_workspaces_die_with_the_host(isolation: None) -> None:
    with subprocess.Popen([sys.executable, "-c", HOST], stdout=subprocess.PIPE, text=True) as host:
        assert host.stdout is not None
        server = int(host.stdout.readline())
        (monitor,) = kit.list_children(server)
        (first,) = kit.list_children(monitor)
        host.kill()
        for pid in (server, monitor, first):
            kit.wait_until(lambda pid=pid: not kit.is_running(pid))
