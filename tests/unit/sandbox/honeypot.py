"""A honeypot for the sandbox: sets out what the probes reach for, runs all probes as one user, prints JSON.

    python -m tests.unit.sandbox.honeypot me|nobody bubblewrap|landlock|unsafe_local probes|controls|hoard|RUNS
    python -m tests.unit.sandbox.honeypot me|nobody bubblewrap|landlock workspace|workspace-sample|verifier

It is a process of its own, so it can belong to another user, and nothing but the sandbox changes what it looks at: its
children, descriptors, memory, temporary folders, and the files, servers and processes within the probes' reach.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import gc
import json
import os
import platform
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentic.coding.grading import VERIFIER_FOLDERS
from core.sandbox import Sandbox, SandboxLimits
from core.sandbox.seccomp import allowed_calls, other_calls
from core.sandbox.workspace import IsolatedWorkspace, WorkspaceLimits
from tests import kit
from tests.unit.sandbox.probes import PROBES, WORKSPACE_PROBES, WORKSPACE_SAMPLE, Probe

RUN_VERIFIER = (
    "printf '#!/bin/sh\nexec python3 /tests/main.py\n' > /tests/test.sh; chmod +x /tests/test.sh; /tests/test.sh"
)
"""Runs a probe as test.sh of a Harbor task, which is somebody else's, runs it."""
REPOSITORY = Path(__file__).resolve().parents[3]
SECRET = "OPEN-SESAME-7261"


@contextmanager
def open_servers(path: Path, abstract: str) -> Iterator[tuple[socket.socket, ...]]:
    """Set out servers of the host: TCP, UDP, a socket at `path` and an abstract one."""
    tcp, udp = socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM)
    unix, hidden = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    with tcp, udp, unix, hidden:
        udp.bind(("127.0.0.1", 0))
        for server, address in ((unix, str(path)), (hidden, f"\0{abstract}")):
            server.bind(address)
            server.listen()
        yield tcp, udp, unix, hidden


@contextmanager
def honeypot() -> Iterator[dict[str, Any]]:
    """Set out everything that a probe reaches for."""
    folder = Path(tempfile.mkdtemp(prefix="honeypot-"))
    (folder / "home" / ".ssh").mkdir(parents=True)
    (folder / "home" / ".ssh" / "id").write_text("key")
    (folder / "file").write_text("contents")
    (folder / "spare").write_text("")
    shared_memory = Path("/dev/shm") / folder.name
    shared_memory.write_text("contents")
    abstract = secrets.token_hex(8)
    descriptor = os.open(folder / "file", os.O_RDWR)
    os.set_inheritable(descriptor, True)
    victim = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.callback(shared_memory.unlink)
        stack.callback(os.close, descriptor)
        stack.callback(victim.wait)
        stack.callback(victim.kill)
        servers = stack.enter_context(open_servers(folder / "socket", abstract))
        yield {
            "folder": str(folder),
            "file": str(folder / "file"),
            "home": str(folder / "home"),
            "repository": str(REPOSITORY),
            "shared_memory": str(shared_memory),
            "secret": SECRET,
            "host": platform.node(),
            "tcp": servers[0].getsockname()[1],
            "udp": servers[1].getsockname()[1],
            "unix": str(folder / "socket"),
            "abstract": abstract,
            "victim": victim.pid,
            "servers": servers,
        }


def list_allowed_calls(processes: bool) -> list[int]:
    machine = platform.machine()
    clones = {"x86_64": (56, 435), "aarch64": (220, 435)}[machine] if processes else ()
    return [*allowed_calls(machine, processes).values(), *other_calls(machine).values(), *clones]


def read_honeypot(bait: dict[str, Any]) -> dict[str, object]:
    """Return the state that the probes would change if they got out."""
    folder = Path(bait["folder"])
    details = {str(p): (p.stat().st_mode, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.rglob("*"))}
    null = os.stat("/dev/null")
    return {
        "files": details,
        "shared_memory": Path(bait["shared_memory"]).read_text(),
        "victim": is_unharmed(bait["victim"]),
        "calls": [was_called(server) for server in bait["servers"]],
        "dev_null": (null.st_mode, null.st_uid, null.st_mtime_ns),
        "mounts": Path("/proc/self/mountinfo").read_text(),
        "shared": read_shared(),
    }


def read_shared() -> tuple[int, list[str]]:
    """Return the bytes that a new pipe of this user gets, and the locks that our processes hold on a library."""
    ends = os.pipe()
    size = fcntl.fcntl(ends[0], fcntl.F_GETPIPE_SZ)
    for end in ends:
        os.close(end)
    inode = str(os.stat(os.__file__).st_ino)
    locks = [line for line in Path("/proc/locks").read_text().splitlines() if f":{inode} " in line]
    ours = {str(pid) for pid in (os.getpid(), *kit.list_descendants(os.getpid()))}
    return size, [line for line in locks if ours & set(line.split())]


def is_unharmed(pid: int) -> tuple[bool, int]:
    """Return (neither stopped, traced nor dead, priority). It may sleep, run or wait for a disk (proc(5))."""
    state, *others = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return state in "RSDI", int(others[15])


def was_called(server: socket.socket) -> bool:
    server.setblocking(False)
    try:
        server.recv(9, socket.MSG_PEEK) if server.type == socket.SOCK_DGRAM else server.accept()
    except BlockingIOError:
        return False
    return True


def read_own_state() -> dict[str, Any]:
    """Return the processes below us (orphans come to us, too), our descriptors and temporary folders."""
    return {
        "processes": sorted(kit.list_descendants(os.getpid())),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "folders": sorted(os.listdir(tempfile.gettempdir())),
    }


def resident_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


async def probe_sandbox(backend: Any, probes: list[Probe]) -> dict[str, dict[str, Any]]:
    sandbox = Sandbox(SandboxLimits(timeout_s=60, memory_mb=256), backend, slots=4)

    async def execute(code: str, timeout_s: float) -> dict[str, Any]:
        return asdict(await sandbox.run(code, timeout_s))

    return await run_probes(execute, probes, processes=False)


async def probe_workspace(
    backend: Any, probes: list[Probe], command: str = "exec python3 main.py", folders: tuple[str, ...] = ()
) -> dict[str, dict[str, Any]]:
    """Run each probe as a command of a workspace of its own, in its folder or the first of `folders`."""
    slots, limits = asyncio.Semaphore(4), WorkspaceLimits(memory_mb=512, files=1024)

    async def execute(code: str, timeout_s: float) -> dict[str, Any]:
        async with slots, IsolatedWorkspace(limits, backend=backend, folders=folders) as workspace:
            await workspace.open()
            await workspace.put("/".join([*folders[:1], "main.py"]), code.encode("utf-8", "surrogatepass"))
            result = await workspace.exec(command, timeout_s=timeout_s)
        texts = {"stdout": result.stdout.decode(errors="replace"), "stderr": result.stderr.decode(errors="replace")}
        return {"status": "ok" if result.ok else result.reason.replace("exit", "error"), **texts}

    return await run_probes(execute, probes, processes=True)


async def run_probes(
    execute: Callable[[str, float], Awaitable[dict[str, Any]]], probes: list[Probe], processes: bool
) -> dict[str, dict[str, Any]]:
    """Return the result of each probe by name, and `traces`: what they left on the honeypot and on this process.

    `execute` runs a program in so many seconds. `processes` says that it may start others.
    """
    await execute("", 60.0)
    with honeypot() as bait:
        visible = {key: value for key, value in bait.items() if key != "servers"}
        visible["allowed_calls"] = list_allowed_calls(processes)
        before = {**read_honeypot(bait), **read_own_state()}
        memory = resident_mb()

        async def run(probe: Probe) -> dict[str, Any]:
            return await execute(f"W = {visible!r}\n{probe.code}", probe.timeout_s)

        results = await asyncio.gather(*(run(probe) for probe in probes))
        grown = resident_mb() - memory
        after = {**read_honeypot(bait), **read_own_state()}
    traces = {"before": before, "after": after, "grown_mb": grown}
    return {"traces": traces} | {probe.name: result for probe, result in zip(probes, results, strict=True)}


HOARD = """
import fcntl, os, select, signal, threading, time
library, held = open(os.__file__), []
signal.pthread_sigmask(signal.SIG_BLOCK, [40])
for take in (
    lambda: fcntl.lockf(library, fcntl.LOCK_SH | fcntl.LOCK_NB),
    lambda: fcntl.flock(library, fcntl.LOCK_SH | fcntl.LOCK_NB),
    lambda: signal.pthread_kill(threading.get_ident(), 40),
    lambda: held.append(os.pipe()),
    lambda: held.append(select.epoll()),
):
    try:
        for _ in range(100): take()
    except OSError: pass
time.sleep(4)
"""


async def hoard(backend: Any, runs: int) -> dict[str, Any]:
    """Let `runs` programs at once hold whatever they can take; return what this process still got, at its worst."""
    sandbox = Sandbox(SandboxLimits(timeout_s=60), backend, slots=runs)
    before = read_shared()
    work = asyncio.gather(*(sandbox.run(HOARD) for _ in range(runs)))
    seen = []
    while not work.done():
        seen.append(read_shared())
        await asyncio.sleep(0.1)
    statuses = sorted({result.status for result in await work})
    return {"statuses": statuses, "before": before, "worst": (min(s[0] for s in seen), max(s[1] for s in seen))}


async def stress(backend: Any, runs: int) -> dict[str, Any]:
    """Run `runs` short programs of all kinds, 16 at once."""
    kinds = {
        "ok": "print('x' * 100000)",
        "error": "1 / 0",
        "memory": "bytearray(4 << 30)",
        "timeout": "import time; time.sleep(60)",
        "output_limit": "while True: print('x' * 10000)",
        "blocked": "import os; os.fork()",
    }
    sandbox = Sandbox(SandboxLimits(timeout_s=60), backend, slots=16)
    await asyncio.gather(*(sandbox.run("") for _ in range(16)))
    before, memory, start = read_own_state(), resident_mb(), time.monotonic()
    expected = [status for _ in range(runs) for status in kinds][:runs]
    results = await asyncio.gather(*(sandbox.run(kinds[s], 0.5 if s == "timeout" else None) for s in expected))
    wrong = [asdict(r) for r, status in zip(results, expected, strict=True) if r.status != status]
    slowest = max(r.seconds for r in results)
    results.clear()
    return {
        "wrong": wrong,
        "before": before,
        "after": read_own_state(),
        "grown_mb": resident_mb() - memory,
        "seconds": time.monotonic() - start,
        "slowest": slowest,
    }


def become_nobody() -> None:
    """Change from root to nobody.

    The interpreter may lie in a folder that is closed to others, such as /root. In our own mount namespace another
    folder covers it, which holds only the path to the interpreter.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def check(result: int) -> None:
        if result == -1:
            raise OSError(ctypes.get_errno(), "becoming nobody")

    check(libc.unshare(0x20000))
    check(libc.mount(None, b"/", None, 16384 | (1 << 18), None))
    covered: dict[Path, list[Path]] = {}
    for needed in {Path(sys.base_prefix), Path(sys.prefix), REPOSITORY}:
        closed = next((p for p in reversed(needed.parents) if not p.stat().st_mode & 0o001), None)
        # What lies inside of the repository comes with it.
        if closed is not None and (needed == REPOSITORY or not needed.is_relative_to(REPOSITORY)):
            covered.setdefault(closed, []).append(needed)
    for closed, kept in covered.items():
        with contextlib.ExitStack() as folders:
            aside = {needed: folders.enter_context(tempfile.TemporaryDirectory()) for needed in kept}
            for needed, folder in aside.items():
                check(libc.mount(str(needed).encode(), folder.encode(), None, 4096 | 16384, None))
            check(libc.mount(b"tmpfs", str(closed).encode(), b"tmpfs", 0, b"mode=755"))
            for needed, folder in aside.items():
                needed.mkdir(parents=True, exist_ok=True)
                check(libc.mount(folder.encode(), str(needed).encode(), None, 8192, None))
    os.setgroups([])
    os.setresgid(65534, 65534, 65534)
    os.setresuid(65534, 65534, 65534)


def start(user: str, *arguments: str) -> Any:
    """Run this module as `user` (`me` or `nobody`) and return what it prints."""
    environment = {"PATH": os.environ["PATH"], "PASSWORD": SECRET, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-B", "-m", "tests.unit.sandbox.honeypot", user, *arguments]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def main(user: str, backend: str, task: str) -> None:
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER: orphans come to us, where they are counted
    sample = [probe for probe in PROBES if probe.name in WORKSPACE_SAMPLE]
    works = {
        "probes": lambda: probe_sandbox(backend, PROBES),
        "controls": lambda: probe_sandbox(backend, [probe for probe in PROBES if probe.control]),
        "workspace": lambda: probe_workspace(backend, WORKSPACE_PROBES),
        "workspace-sample": lambda: probe_workspace(backend, sample),
        "verifier": lambda: probe_workspace(backend, sample, RUN_VERIFIER, VERIFIER_FOLDERS),
        # 36 programs with 30 pipes each would be over the pages of pipes that a user has (pipe(7)).
        "hoard": lambda: hoard(backend, 36),
    }
    work = works[task]() if task in works else stress(backend, int(task))
    with tempfile.TemporaryDirectory() as tempfile.tempdir:
        print(json.dumps(asyncio.run(work)))


if __name__ == "__main__":
    if sys.argv[1] == "nobody" and os.getuid() == 0:
        become_nobody()
        os.execv(sys.executable, [sys.executable, "-B", *sys.orig_argv[sys.orig_argv.index("-m") :]])
    main(*sys.argv[1:])
