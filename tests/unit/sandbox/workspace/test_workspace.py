"""What a workspace promises, on every backend that works here: files, commands, limits, the diff, and nothing left."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from core.sandbox.workspace import (
    DockerWorkspace,
    IsolatedWorkspace,
    RepositoryWorkspace,
    WorkspaceError,
    WorkspaceLimits,
    WorkspaceUnavailable,
)
from core.sandbox.workspace.docker import END_ALL
from tests.kit import adopt_orphans, list_descendants, list_new_processes

Make = Callable[..., RepositoryWorkspace]
FILES = {"a.py": b"x = 1\n", "pkg/b.py": b"y = 1\n", "tests/test_a.py": b"def test():\n    assert True\n"}


async def test_files_commands_and_the_diff(make: Make) -> None:
    async with make() as workspace:
        await workspace.start(FILES)
        assert await workspace.get("pkg/b.py") == b"y = 1\n"
        await workspace.put("new dir/it's.txt", b"\0\xff binary\n")
        await workspace.put("a.py", b"x = 2\n")
        result = await workspace.exec("cat a.py; echo oops >&2; git log --oneline | wc -l; exit 3", timeout_s=30)
        assert (result.stdout, result.stderr, result.exit_code, result.ok) == (b"x = 2\n1\n", b"oops\n", 3, False)
        assert (await workspace.exec("cat", b"in " * 99999, timeout_s=30)).stdout == b"in " * 99999
        await workspace.exec("git add -A; git commit -qm mine; rm pkg/b.py", timeout_s=30)
        settings = "git config color.ui always; git config diff.noprefix true; git init -q demo; git init -q kept;"
        settings += "git -C kept commit -q --allow-empty -m x; git add kept; echo 1 > kept/file; git init -q 新目录;"
        settings += "git -C 新目录 commit -q --allow-empty -m x; git add 新目录; echo 2 > 新目录/文件"
        await workspace.exec(settings, timeout_s=30)
        diff = await workspace.diff()
        with pytest.raises(WorkspaceError, match="get"):
            await workspace.get("missing")
    async with make() as other:
        await other.start(FILES)
        assert (await other.exec("git apply -", diff, timeout_s=30)).ok
        assert await other.get("new dir/it's.txt") == b"\0\xff binary\n"
        assert await other.get("a.py") == b"x = 2\n"
        assert await other.get("kept/file") == b"1\n"
        assert await other.get("新目录/文件") == b"2\n"
        assert not (await other.exec("ls pkg/b.py", timeout_s=30)).ok


async def test_limits_end_a_command_and_the_next_one_runs(make: Make) -> None:
    async with make(WorkspaceLimits(disk_mb=4, processes=16, memory_mb=256)) as workspace:
        await workspace.start(FILES)
        assert (await workspace.exec("sleep 60", timeout_s=0.3)).reason == "timeout"
        wordy = await workspace.exec("yes", timeout_s=30, output_bytes=1000)
        assert (wordy.reason, len(wordy.stdout)) == ("output_limit", 1000)
        assert not (await workspace.exec("head -c 9000000 /dev/zero > /tmp/big", timeout_s=30)).ok
        bomb = "b() { b | b & }; b; sleep 0.5; echo survived"
        assert (await workspace.exec(bomb, timeout_s=30, output_bytes=1 << 20)).reason in ("exit", "output_limit")
        assert not (await workspace.exec("python3 -c 'bytearray(1 << 30)'", timeout_s=30)).ok
        assert (await workspace.exec("echo alive", timeout_s=30)).stdout == b"alive\n"


@pytest.fixture
def orphans() -> Iterator[None]:
    with adopt_orphans():
        yield


async def test_nothing_outlives_its_command_or_the_workspace(make: Make, orphans: None) -> None:
    before = list_descendants(os.getpid())
    async with make() as workspace:
        await workspace.start(FILES)
        later = "(setsid sh -c 'sleep 0.3; echo x > late' > /dev/null 2>&1 &) ; echo now"
        assert (await workspace.exec(later, timeout_s=30)).stdout == b"now\n"
        await asyncio.sleep(0.5)
        assert not (await workspace.exec("ls late", timeout_s=30)).ok
        await workspace.exec("kill -9 1; kill -9 -1", timeout_s=30)
        assert (await workspace.exec("echo alive", timeout_s=30)).stdout == b"alive\n"
    assert list_new_processes(before) == []
    with pytest.raises(WorkspaceError, match="lost"):
        await workspace.exec("echo gone", timeout_s=1)


HISTORY = """mkdir pkg && git init -q && printf 'kept.log\\n' > .gitignore
printf '*.log\\nbuild/\\n' > .git/info/exclude
git init -q pkg/nested && (cd pkg/nested && echo old > n.py && git add . && git commit -qm nested && echo n > n.py)
echo 1 > kept.log && git add -A . && git add -f kept.log && git commit -qm broken
echo SECRET_REPAIR > a.py && git commit -qam repair && git tag v1 && git branch later && git checkout -q HEAD~1
echo SECRET_STASH > a.py && git stash -q && mkdir build && echo x > build/x.log"""


async def test_a_repository_with_a_history_has_one_commit_and_its_files(make: Make) -> None:
    """Neither a branch, a tag, a stash, the reflog nor an object tells what was before or comes after."""
    async with make() as workspace:
        await workspace.start(None, f"echo x = 1 > a.py && {HISTORY}")
        seen = (
            "git log --all --oneline --reflog | wc -l; git for-each-ref | wc -l; git cat-file --batch-all-objects "
            "--batch --unordered | grep -ac -e SECRET -e ^old; find . -name '*.pack' -o -path './*/.git' | wc -l; "
            "git status --porcelain; git ls-files"
        )
        shown = (await workspace.exec(seen, timeout_s=30)).stdout.decode().split()
        assert shown == ["1", "1", "0", "0", ".gitignore", "a.py", "kept.log", "pkg/nested/n.py"]
        await workspace.exec("echo 2 > kept.log; echo m > pkg/nested/n.py", timeout_s=30)
        diff = await workspace.diff()
        assert b"+2\n" in diff
        assert b"-n\n+m\n" in diff


async def test_settings_of_the_repository_start_nothing_outside_and_only_filters_inside(make: Make) -> None:
    """A hook, a file monitor, an external diff are ignored by what we run ourselves. A lost .git has a name."""
    name = f"/tmp/filtered-{secrets.token_hex(8)}"
    async with make() as workspace:
        await workspace.start(FILES)
        trap = (
            "echo 'touch /tmp/trapped' > .git/hooks/post-index-change; chmod +x .git/hooks/post-index-change; "
            "git config core.fsmonitor 'touch /tmp/trapped'; git config diff.external 'touch /tmp/trapped'; "
            f"git config filter.x.clean 'touch {name}; cat'; echo '* filter=x' > .gitattributes; "
            "echo 'x = 3' > a.py"
        )
        await workspace.exec(trap, timeout_s=30)
        assert b"+x = 3" in await workspace.diff()
        assert not (await workspace.exec("ls /tmp/trapped", timeout_s=30)).ok
        assert (await workspace.exec(f"ls {name}", timeout_s=30)).ok
        assert not Path(name).exists()
        await workspace.exec("rm -rf .git", timeout_s=30)
        with pytest.raises(WorkspaceError) as failure:
            await workspace.diff()
        assert failure.value.kind == "no_diff"


@pytest.mark.parametrize("setting", ["core.autocrlf true", "core.worktree /tmp", "diff.context 0", "diff.orderFile no"])
async def test_no_setting_of_git_loses_a_repair(make: Make, setting: str) -> None:
    files = {"a.py": b"a\r\nb\r\nc\r\nd\r\n"}
    async with make() as workspace:
        await workspace.start(files)
        await workspace.exec(f"git config {setting}; sed -i s/b/x/ a.py; cp a.py new.py", timeout_s=30)
        diff = await workspace.diff()
    async with make() as other:
        await other.start(files)
        assert (await other.exec("git apply -", diff, timeout_s=30)).ok
        assert await other.get("a.py") == await other.get("new.py") == b"a\r\nx\r\nc\r\nd\r\n"


async def test_a_git_that_was_ended_does_not_hide_the_diff(make: Make) -> None:
    async with make() as workspace:
        await workspace.start(FILES)
        command = "echo 2 > a.py; GIT_EDITOR='sleep 99 #' git commit -a"
        assert (await workspace.exec(command, timeout_s=4)).reason == "timeout"
        assert (await workspace.exec("ls .git/index.lock", timeout_s=30)).ok
        assert b"+2" in await workspace.diff()


async def test_a_huge_diff_has_a_name(make: Make) -> None:
    async with make(WorkspaceLimits(diff_bytes=1000)) as workspace:
        await workspace.start(FILES)
        await workspace.exec("seq 5000 > numbers", timeout_s=30)
        with pytest.raises(WorkspaceError) as failure:
            await workspace.diff()
        assert failure.value.kind == "huge_diff"


async def test_a_cancelled_command_ends_the_workspace(make: Make, orphans: None) -> None:
    """Its answer must not be taken for the next command's. Nothing of it is left, not even a dead process."""
    before = list_descendants(os.getpid())
    async with make() as workspace:
        await workspace.start(FILES)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(workspace.exec("sleep 60", timeout_s=60), 0.3)
        if isinstance(workspace, IsolatedWorkspace):
            with pytest.raises(WorkspaceError, match="lost"):
                await workspace.exec("echo next", timeout_s=30)
    assert list_new_processes(before) == []


async def test_a_start_that_is_cancelled_leaves_nothing(make: Make, orphans: None) -> None:
    before = list_descendants(os.getpid())

    async def start(deadline_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline_s), make() as workspace:
                await workspace.start(FILES)
                await asyncio.sleep(60)

    async with asyncio.timeout(60):
        await asyncio.gather(*(start(deadline_s) for deadline_s in (0.0, 0.001, 0.002, 0.005, 0.01, 0.1)))
    assert list_new_processes(before) == []


async def test_a_cancellation_that_comes_with_an_answer_is_not_lost(
    isolation: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a rollout would go on after its deadline."""
    async with IsolatedWorkspace() as workspace:
        await workspace.open()
        exchange = workspace._exchange

        async def exchange_and_cancel(request: bytes) -> Any:
            answer = await exchange(request)
            asyncio.get_running_loop().call_soon(running.cancel)
            return answer

        async def rollout() -> None:
            await workspace.exec("true", timeout_s=30)
            await asyncio.sleep(30)

        monkeypatch.setattr(workspace, "_exchange", exchange_and_cancel)
        running = asyncio.create_task(rollout())
        done, _ = await asyncio.wait([running], timeout=20)
        assert done
        assert running.cancelled()
        monkeypatch.undo()


async def test_an_interrupt_ends_the_running_command_and_no_other(make: Make) -> None:
    async with make() as workspace:
        await workspace.start(FILES)
        await workspace.interrupt()  # nothing is running
        running = asyncio.create_task(workspace.exec("echo x > new; echo said; sleep 99", timeout_s=99))
        await asyncio.sleep(1)
        await workspace.interrupt()
        await workspace.interrupt()  # this one comes too late
        result = await running
        assert (result.stdout, result.ok) == (b"said\n", False)
        assert result.seconds < 60
        assert b"+x" in await workspace.diff()


@pytest.mark.parametrize("workdir", ["testbed", "/", "/tmp", "/a/../b"])
def test_a_workdir_that_cannot_be_is_refused(workdir: str) -> None:
    with pytest.raises(ValueError, match="workdir"):
        IsolatedWorkspace(workdir=workdir)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
        with pytest.raises(WorkspaceUnavailable, match="bubblewrap cannot count the processes of root"):
            IsolatedWorkspace(backend="bubblewrap")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(WorkspaceUnavailable, match="docker is not installed"):
        DockerWorkspace("python:3.11")


def test_a_container_has_no_network_no_privileges_and_bounds(tmp_path: Path) -> None:
    (tmp_path / "docker").touch(mode=0o755)
    limits = WorkspaceLimits(memory_mb=512, processes=20, disk_mb=32)
    workspace = DockerWorkspace("an/image", limits, "/repo", runtime=str(tmp_path / "docker"))
    words = " ".join(workspace.start_command())
    for wanted in (
        "--network none", "--cap-drop ALL", "--security-opt no-new-privileges", "--pids-limit 20", "--memory 512m",
        "--tmpfs /tmp:exec,size=32m", "--workdir /repo", "--rm", "--entrypoint /bin/sh an/image -c while",
    ):  # fmt: skip
        assert wanted in words
    assert "-v" not in words.split()
    assert "--init" not in words.split(), "its child, which keeps the container running, can be killed from inside"


async def test_a_container_survives_the_end_of_a_command(tmp_path: Path) -> None:
    """Its first process runs in a PID namespace, as in Docker, and another process there kills all it can."""
    try_out = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child"]
    if not shutil.which("unshare") or subprocess.run([*try_out, "true"], capture_output=True).returncode:
        pytest.skip("needs namespaces of the user: unshare")
    (tmp_path / "docker").touch(mode=0o755)
    words = DockerWorkspace("an/image", runtime=str(tmp_path / "docker")).start_command()
    first = [words[words.index("--entrypoint") + 1], *words[words.index("an/image") + 1 :]]
    process = await asyncio.create_subprocess_exec(*try_out, *first)
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        for _ in range(2):
            await asyncio.sleep(0.3)
            (pid,) = children.read_text().split()
            enter = ["nsenter", "--target", pid, "--user", "--pid", "--preserve-credentials", "/bin/sh", "-c"]
            pipe = asyncio.subprocess.PIPE
            ended = await asyncio.create_subprocess_exec(*enter, f"sleep 60 & {END_ALL}", stdout=pipe)
            assert await ended.communicate() == (b"ended\n", None)
    finally:
        process.kill()
        await process.wait()


async def test_a_container_that_is_full_of_processes_is_lost(tmp_path: Path) -> None:
    """As Docker answers where a command has forked up to --pids-limit: nothing can start there, `kill` neither."""
    full = "OCI runtime exec failed: exec failed: resource temporarily unavailable"
    docker = tmp_path / "docker"
    docker.write_text(f'#!/bin/sh\ncase "$*" in *"kill -9 -1"*) echo "{full}" >&2; exit 126;; esac\n')
    docker.chmod(0o755)
    workspace = DockerWorkspace("an/image", runtime=str(docker))
    await workspace.open()
    with pytest.raises(WorkspaceError, match=f"lost: the processes inside cannot be ended .*{full}"):
        await workspace.exec("bomb", timeout_s=30)


async def test_a_docker_that_does_not_answer_is_unavailable() -> None:
    try:
        workspace = DockerWorkspace("an/image/that/nobody/has", WorkspaceLimits(start_timeout_s=20))
    except WorkspaceUnavailable as problem:
        pytest.skip(f"needs the docker program: {problem}")
    async with workspace:
        with pytest.raises(WorkspaceUnavailable, match="docker run of an/image/that/nobody/has failed"):
            await workspace.start()
