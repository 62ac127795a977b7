"""A program that is forked runs as one that Python was started for, finds nothing of others, and leaves nothing."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from core.sandbox import Sandbox, SandboxLimits, SandboxUnavailable
from core.sandbox.sandbox import SERVER
from tests import kit


@pytest.fixture
def box(isolation: None) -> Sandbox:
    try:
        return Sandbox(SandboxLimits(timeout_s=60), "landlock", slots=8)
    except SandboxUnavailable as problem:
        pytest.skip(f"needs isolation for the sandbox: {problem}")


def list_programs() -> list[int]:
    return sorted(kit.list_descendants(SERVER.pid))


def count_descriptors() -> int:
    """Count those of this process when the server has no more than its own."""
    streams, control = 3, 1
    kit.wait_until(lambda: len(os.listdir(f"/proc/{SERVER.pid}/fd")) == streams + control)
    return len(os.listdir("/proc/self/fd"))


ENDS = {
    "functions": "import atexit, weakref\nclass A: pass\natexit.register(print, 'bye')\na = A()\n"
    "weakref.finalize(a, print, 'gone')\nprint('now')",
    "methods": "class A:\n    def __del__(self): print('deleted', self.name)\n"
    "a, b = A(), A(); a.name, b.name = 'a', 'b'; b.itself = b",
    "threads": "import threading; threading._register_atexit(print, 'threads end')",
    "error": "def f(): raise ValueError('so it ends')\nf()",
    "error at the end": "import atexit; atexit.register(int, 'none')",
    "hook": "import sys; sys.excepthook = lambda *error: print('hooked', error[1]); 1 / 0",
    "exit": "import sys; sys.stdout.write('kept'); sys.exit(3)",
    "exit with a text": "raise SystemExit('told')",
    "exit at the end": "import atexit, os; atexit.register(os._exit, 9); 1 / 0",
    "exit at once": "import os; print('lost', end=''); os._exit(7)",
    "interrupt": "raise KeyboardInterrupt",
    "no stdout": "import os; os.close(1); print('lost')",
    "no modules": "import sys; sys.modules.clear()",
}


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS.keys())
async def test_it_ends_as_an_interpreter_that_was_started(box: Sandbox, code: str) -> None:
    started, forked = [await b.run(code) for b in (Sandbox(SandboxLimits(timeout_s=60), "unsafe_local"), box)]
    assert (forked.status, forked.exit_code) == (started.status, started.exit_code)
    assert (forked.stdout, forked.stderr) == (started.stdout, started.stderr)


STATE = """
import gc, json, locale, os, signal, sys, __main__
def depth(n=0):
    try: return depth(n + 1)
    except RecursionError: return n
def look(stream):
    values = stream.encoding, stream.errors, stream.line_buffering, stream.write_through, stream.seekable()
    return [*map(str, values), stream.isatty(), repr(stream), repr(stream.buffer.raw), stream.buffer.raw._blksize]
print(json.dumps({
    "flags": [repr(sys.flags), sys.argv, sys.path[:3], repr(sys._xoptions), sys.getrecursionlimit(), depth()],
    "names": [sorted(vars(__main__)), __name__, __file__, __main__ is sys.modules["__main__"]],
    "streams": [look(stream) for stream in (sys.stdin, sys.stdout, sys.stderr)] + [sys.stdout is sys.__stdout__],
    "signals": [str(signal.getsignal(s)) for s in signal.valid_signals()] + [str(signal.pthread_sigmask(0, []))],
    "session": [os.getsid(0) == os.getpgid(0), locale.setlocale(locale.LC_ALL), gc.get_threshold(), os.umask(0)],
    "stdin": [sys.stdin.read(), os.fstat(0).st_rdev],
}))
"""


async def test_it_finds_what_an_interpreter_that_was_started_finds(box: Sandbox) -> None:
    SERVER.close()  # it may have begun when this process treated signals otherwise
    runs = [await b.run(STATE) for b in (Sandbox(SandboxLimits(timeout_s=60), "unsafe_local"), box)]
    started, forked = (json.loads(run.stdout) for run in runs)
    assert forked == started


SPOIL = """
import builtins, json, os, sys
secret = "".join(reversed("tfel-saw-taht"))
builtins.spoiled = os.spoiled = sys.spoiled = os.environ["SPOILED"] = secret
os.getcwd = json.dumps = None
open("spoiled", "w").write(secret)
"""
FIND = """
import builtins, gc, os, sys
secret, names, frame = "".join(reversed("tfel-saw-taht")), [], sys._getframe()
gc.unfreeze()
found = [text for thing in gc.get_objects() for text in gc.get_referents(thing)
         if isinstance(text, (str, bytes)) and text is not secret and secret in str(text)]
while frame := frame.f_back:
    names += [frame.f_code.co_name, *frame.f_locals]
def is_open(number):
    try: return bool(os.fstat(number))
    except OSError: return False
print([found, hasattr(builtins, "spoiled"), hasattr(os, "spoiled"), "SPOILED" in os.environ, os.getcwd()])
print(sorted(os.listdir("/tmp")), list(filter(is_open, range(1024))), "main" in names, "host" in names)
"""


async def test_it_finds_nothing_of_the_server_or_of_other_programs(box: Sandbox) -> None:
    neighbours = [asyncio.create_task(box.run(f"{SPOIL}\nimport time; time.sleep(60)")) for _ in range(3)]
    await box.run(SPOIL)
    while len(list_programs()) != 2 * len(neighbours) or sum(map(is_locked_up, list_programs())) < len(neighbours):
        await asyncio.sleep(0.01)  # until the first program has left, and the neighbours run
    for process in list_programs():
        ends = [os.readlink(path) for path in Path(f"/proc/{process}/fd").iterdir()]
        assert not [end for end in ends if end.startswith(("socket:", "anon_inode:"))], "of the host or the server"
    seen = (await box.run(FIND)).stdout.splitlines()
    assert seen[0] == "[[], False, False, False, '/tmp']"
    assert seen[1] == "['main.py'] [0, 1, 2, 3] True False"
    for neighbour in neighbours:
        neighbour.cancel()
    await asyncio.gather(*neighbours, return_exceptions=True)
    kit.wait_until(lambda: not list_programs())


async def test_chance_is_not_shared(box: Sandbox) -> None:
    code = "import random, tempfile, uuid; print(random.random(), next(tempfile._get_candidate_names()), uuid.uuid4())"
    results = [(await box.run(code)).stdout.split() for _ in range(2)]
    assert not set(results[0]) & set(results[1])


@pytest.mark.parametrize("which", [0, 1], ids=["monitor", "program"])
async def test_a_program_that_the_kernel_kills_had_too_little_memory(box: Sandbox, which: int) -> None:
    run = asyncio.create_task(box.run("import time; time.sleep(60)"))
    while len(processes := list_programs()) < 2 or not is_locked_up(processes[1]):
        await asyncio.sleep(0.01)
    os.kill(processes[which], signal.SIGKILL)
    result = await run
    assert (result.status, result.exit_code, result.stderr) == ("memory", 137, "")
    kit.wait_until(lambda: not list_programs())


def is_locked_up(pid: int) -> bool:
    try:
        return "Seccomp:\t2" in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it has ended since it was listed
        return False


async def test_a_start_that_is_cancelled_leaves_nothing(box: Sandbox) -> None:
    await asyncio.gather(*(box.run("") for _ in range(8)))
    before = count_descriptors()
    for number in range(60):
        runs = [asyncio.create_task(box.run("while True: pass")) for _ in range(2)]
        await asyncio.sleep(number / 2000)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    kit.wait_until(lambda: not list_programs() and count_descriptors() == before)
    assert (await box.run("print(1)")).stdout == "1\n"


async def test_a_server_that_was_killed_is_started_again(box: Sandbox) -> None:
    lost = asyncio.create_task(box.run("import time; time.sleep(60)"))
    await kit.until(lambda: len(list_programs()) >= 2)
    server, processes = SERVER.pid, list_programs()
    os.kill(server, signal.SIGKILL)
    with pytest.raises(SandboxUnavailable, match="server has ended"):
        await lost
    kit.wait_until(lambda: not any(map(kit.is_running, processes)))
    assert (await box.run("print(1)")).stdout == "1\n"
    assert SERVER.pid != server


async def test_a_fork_that_cannot_be_made_is_told(box: Sandbox) -> None:
    limits = resource.prlimit(SERVER.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(SERVER.pid, resource.RLIMIT_NOFILE, (5, limits[1]))
    with pytest.raises(SandboxUnavailable, match="Too many open files"):
        await box.run("")
    resource.prlimit(SERVER.pid, resource.RLIMIT_NOFILE, limits)
    assert (await box.run("print(1)")).stdout == "1\n"


async def test_what_the_server_said_at_its_end_is_told(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    SERVER.close()
    monkeypatch.setattr(SERVER, "_load_programs", lambda: b"none")
    with pytest.raises(SandboxUnavailable, match="server has ended: ValueError: bad marshal data"):
        await box.run("")
    monkeypatch.undo()
    SERVER.close()
    assert (await box.run("print(1)")).stdout == "1\n"


HOST = """
import asyncio, os, signal, sys
from core.sandbox import Sandbox
from core.sandbox.sandbox import SERVER

def run():
    return asyncio.run(Sandbox(backend="landlock").run("print(1)")).stdout == "1\\n"

assert run()
first = SERVER.pid
fork = os.fork()
if fork == 0:
    assert SERVER.pid == 0 and run() and SERVER.pid not in (0, first)
    sys.exit()
assert os.waitpid(fork, 0)[1] == 0
assert run() and SERVER.pid == first
fork = os.fork()
if fork == 0:
    signal.pause()
print(first, fork, flush=True)
signal.pause()
"""


def test_a_fork_of_the_host_has_its_own_server(box: Sandbox) -> None:
    """Nor does it keep its parent's server alive."""
    command, root = [sys.executable, "-c", HOST], Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as host:
        assert host.stdout is not None
        server, fork = map(int, host.stdout.readline().split())
        assert kit.is_running(server)
        host.kill()
        try:
            kit.wait_until(lambda: not kit.is_running(server))
            assert kit.is_running(fork)
        finally:
            os.kill(fork, signal.SIGKILL)
