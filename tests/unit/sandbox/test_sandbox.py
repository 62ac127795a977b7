"""What `Sandbox` promises its callers, on the isolation that `auto` finds here."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.sandbox import Sandbox, SandboxLimits, SandboxUnavailable, backends, sandbox
from core.sandbox.process import OutputCapture
from core.sandbox.sandbox import SERVER
from tests import kit


@pytest.fixture(scope="module")
def box(isolation: None) -> Sandbox:
    return Sandbox(SandboxLimits(timeout_s=60))


def programs() -> set[int]:
    """Return the processes that wait for programs: our children or those of the fork server."""
    return {child for pid in (os.getpid(), SERVER.pid) for child in kit.list_children(pid)} - {SERVER.pid}


async def test_a_set_is_printed_alike_in_every_process(box: Sandbox) -> None:
    code = "print(hash('fig'))"
    alike = subprocess.run([sys.executable, "-c", code], env={"PYTHONHASHSEED": "0"}, capture_output=True, text=True)
    assert (await box.run(code)).stdout == alike.stdout


async def test_result_says_what_happened(box: Sandbox) -> None:
    result = await box.run("import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)")
    assert (result.status, result.exit_code, result.stdout, result.stderr) == ("error", 3, "out\n", "err\n")
    assert result.backend == box.backend
    assert result.seconds > 0


async def test_traceback_shows_the_codes_own_lines_alone(box: Sandbox) -> None:
    result = await box.run("def f():\n    return 1 / 0\nf()")
    assert "return 1 / 0" in result.stderr
    assert "inside.py" not in result.stderr


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("import urllib.request as u; u.urlopen('http://127.0.0.1/')", "blocked"),
        ("import os\ntry: os.fork()\nexcept OSError: print('no')", "ok"),
        ("raise PermissionError('my own')", "blocked"),
    ],
)
async def test_what_the_code_does_with_a_refusal_decides_its_status(box: Sandbox, code: str, status: str) -> None:
    assert (await box.run(code)).status == status


async def test_what_was_printed_before_the_timeout_is_kept(box: Sandbox) -> None:
    code = "print('so far')\nwhile True: pass"
    result = await box.run(code, timeout_s=3)
    assert (result.status, result.exit_code, result.stdout) == ("timeout", None, "so far\n")


async def test_one_run_gets_less_time_never_more() -> None:
    box = Sandbox(SandboxLimits(timeout_s=0.5))
    assert (await box.run("import time; time.sleep(30)", timeout_s=60)).status == "timeout"


async def test_output_limit_counts_both_streams() -> None:
    box = Sandbox(SandboxLimits(timeout_s=60, output_bytes=1000))
    code = "import sys\nsys.stdout.write('x' * 600)\nsys.stderr.write('y' * {})"
    assert (await box.run(code.format(400))).status == "ok"
    assert (await box.run(code.format(401))).status == "output_limit"


async def test_least_memory_is_enough_to_start() -> None:
    box = Sandbox(SandboxLimits(timeout_s=60, memory_mb=64))
    assert (await box.run("print(1)")).stdout == "1\n"


async def test_at_most_slots_at_once() -> None:
    box = Sandbox(SandboxLimits(timeout_s=60), slots=2)
    most, running = 0, [asyncio.create_task(box.run("import time; time.sleep(0.3)")) for _ in range(6)]
    before = programs()
    while not all(task.done() for task in running):
        most = max(most, len(programs() - before))
        await asyncio.sleep(0.01)
    assert 1 <= most <= 2


def test_one_sandbox_serves_several_event_loops(box: Sandbox) -> None:
    assert [asyncio.run(box.run("print(1)")).stdout for _ in range(2)] == ["1\n", "1\n"]


def test_code_dies_with_a_killed_parent() -> None:
    """A trainer that is killed leaves no endless loop behind."""
    script = "import asyncio; from core.sandbox import Sandbox as S\nasyncio.run(S().run('while True: pass'))"
    parent = subprocess.Popen([sys.executable, "-c", script], cwd=Path(__file__).parents[3])
    kit.wait_until(lambda: len(kit.list_descendants(parent.pid)) >= 2)
    below = kit.list_descendants(parent.pid)
    parent.kill()
    parent.wait()
    kit.wait_until(lambda: not any(map(kit.is_running, below)))


def test_without_isolation_it_refuses_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_namespaces(*_: object, **__: object) -> Any:
        raise SandboxUnavailable("landlock: " + backends.explain("user namespaces: Operation not permitted"))

    monkeypatch.setattr(backends.shutil, "which", lambda _: None)
    monkeypatch.setattr(sandbox, "_run", no_namespaces)
    sandbox._try_backend.cache_clear()
    sandbox._pick_backend.cache_clear()
    with pytest.raises(SandboxUnavailable) as refusal:
        Sandbox()
    for word in ("apt-get install bubblewrap", "max_user_namespaces", "unsafe_local"):
        assert word in str(refusal.value)
    assert Sandbox(backend="unsafe_local").backend == "unsafe_local"


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"#!/bin/sh\necho it was started >&2; exit 1\n", "it was started"), (b"\x7fELF", "could not be run")],
)
def test_bubblewrap_is_started_where_it_was_found(
    content: bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bwrap").write_bytes(content)
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailable, match=f"bubblewrap: .*{says}"):
        sandbox._try_backend.__wrapped__("bubblewrap")


def test_kernel_that_forbids_user_namespaces_is_found_out() -> None:
    """A container may look like this: a process whose user may make no further namespace."""
    kit.require(os.getuid() == 0, kit.ROOT)
    script = (
        "import ctypes, os; libc = ctypes.CDLL(None)\n"
        "assert libc.unshare(0x10000000) == 0\n"
        "open('/proc/self/setgroups', 'w').write('deny'); open('/proc/self/uid_map', 'w').write('0 0 1')\n"
        "open('/proc/sys/user/max_user_namespaces', 'w').write('0')\n"
        "from core.sandbox import Sandbox, SandboxUnavailable\n"
        "try: Sandbox()\nexcept SandboxUnavailable as problem: print(problem)"
    )
    command, root = [sys.executable, "-c", script], Path(__file__).parents[3]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert "landlock: user namespaces: " in done.stdout, done.stderr
    assert "user.max_user_namespaces" in done.stdout


def test_landlock_holds_by_itself() -> None:
    """The second wall: what it must stop were the namespaces and the filter not there."""
    script = (
        "import errno, os, sys\nfrom core.sandbox import inside\n"
        "def refused(action, *arguments):\n"
        "    try: action(*arguments)\n"
        "    except OSError as error: return error.errno == errno.EACCES\n"
        "inside.libc.prctl(inside.NO_NEW_PRIVS, 1, 0, 0, 0)\ninside.apply_landlock(True)\n"
        "assert refused(open, sys.argv[1] + '/new', 'w') and refused(os.truncate, sys.argv[1] + '/old', 0)\n"
        "assert refused(os.execv, '/bin/true', ['true'])\n"
        "open(sys.argv[1] + '/old').close(); open('/dev/null', 'w').close(); print('held')"
    )
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:  # not below /tmp, where it may write
        Path(outside, "old").write_text("x")
        done = subprocess.run(
            [sys.executable, "-B", "-c", script, outside],
            cwd=Path(__file__).parents[3], capture_output=True, text=True, check=False,
        )  # fmt: skip
    kit.require("Landlock: " not in done.stderr, "needs Landlock: Linux 5.13 or newer with `landlock` in `lsm=`")
    assert done.stdout == "held\n", done.stderr


@pytest.mark.parametrize(("machine", "system", "word"), [("riscv64", "linux", "riscv64"), ("arm64", "darwin", "Linux")])
def test_other_machines_are_refused_by_name(
    machine: str, system: str, word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends.platform, "machine", lambda: machine)
    monkeypatch.setattr(backends.sys, "platform", system)
    with pytest.raises(SandboxUnavailable, match=word):
        backends.check_platform("landlock")


async def test_unsafe_local_waits_for_no_orphan() -> None:
    """A process that left the group and holds the pipes open does not delay the answer."""
    box = Sandbox(SandboxLimits(timeout_s=60), backend="unsafe_local")
    code = "import os, time\nif os.fork() == 0:\n    os.setsid(); time.sleep(25); os._exit(0)\nprint('done')"
    result = await box.run(code)
    assert (result.status, result.stdout) == ("ok", "done\n")
    assert result.seconds < 20


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(1, 40))
def test_head_and_tail_of_what_came(chunks: list[bytes], keep: int) -> None:
    capture, everything = OutputCapture(keep), b"".join(chunks)
    for chunk in chunks:
        capture.add(chunk)
    head, tail = bytes(capture._head), bytes(capture._tail)
    assert capture.total == len(everything)
    assert everything.startswith(head)
    assert everything.endswith(tail)
    assert len(head) + len(tail) == min(keep, len(everything))


def test_text_is_fit_for_a_terminal() -> None:
    capture = OutputCapture(100)
    capture.add(b"a\r\nb\tc\x1b[2J\xff\x07")
    assert capture.text() == "a\nb\tc\ufffd[2J\ufffd\ufffd"
