"""The program that an isolated workspace runs: it locks itself up, and then runs the commands that it is told.

It is the first process of its PID namespace. The host sends it the functions of `core/sandbox/inside.py` first,
and both run in one set of names. It reads marshalled requests from stdin and answers each on stdout with HEADER and the
bytes of the two streams. It ends with its stdin, and every other process of the namespace ends with it.

A request is a command, or Python code. Code runs in a fork of this program, because starting Python takes much longer.
"""

from __future__ import annotations

import marshal
import os
import select
import struct
import sys
import time

TYPE_CHECKING = False  # importing typing takes longer than all of the isolation
if TYPE_CHECKING:
    from types import CodeType
    from typing import Any, NoReturn

    from core.sandbox.inside import (
        NOBODY,
        NODEV,
        NOSUID,
        PROC_FLAGS,
        SIGKILL,
        SetupError,
        apply_landlock,
        apply_seccomp,
        call,
        drop_privileges,
        leave_host,
        libc,
        limit_resources,
        make_read_only,
    )

HEADER = "=Bidii"  # reason, exit code, seconds, bytes of stdout, bytes of stderr
EXIT, TIMEOUT, OUTPUT_LIMIT, FAILED = range(4)
CHUNK = 65536
REMOUNT = 32
GET_FLAGS, SET_FLAGS, UP = 0x8913, 0x8914, 1  # ioctls of netdevice(7), and IFF_UP
BACKLOG = 128
INTERRUPT = None  # is one byte when marshalled


def enclose(spec: dict[str, Any]) -> None:
    """Build the sandbox and enter it for good."""
    monitor = leave_host(spec)
    if spec["proc"] and not spec["namespaces"]:
        call("a /proc of its own", libc.mount, b"proc", b"/proc", b"proc", REMOUNT | PROC_FLAGS, b"subset=pid")
    port = open_port(spec["channel"]) if spec["channel"] is not None else 0
    # Root becomes nobody in drop_privileges, and git refuses a repository that belongs to somebody else.
    owner = f",uid={NOBODY},gid={NOBODY}" if spec["namespaces"] and os.getuid() == 0 else ""
    options = (spec["folder_options"] + owner).encode()
    for folder in spec["folders"]:
        os.makedirs(folder, exist_ok=True)
        call(f"the folder {folder}", libc.mount, b"tmpfs", folder.encode(), b"tmpfs", NOSUID | NODEV, options)
    make_read_only("/", 0)
    make_read_only("/dev/null", 0)  # bubblewrap leaves it open to chmod
    call("the host name", libc.sethostname, b"workspace", 9)
    drop_privileges(monitor)
    os.dup2(os.open("/dev/null", os.O_WRONLY), 2)
    os.closerange(3, 1024)
    os.chdir(spec["workdir"])
    apply_landlock(True, tuple(spec["folders"]), execute=True, port=port)
    apply_seccomp(spec["seccomp"])


def open_port(channel: int) -> int:
    """Open a port of 127.0.0.1 and give its listening socket to the host, which serves it. Return the port's number.

    A socket stays in the network namespace that it was made in, whoever holds it. So the host answers from outside, and
    this namespace still has no way out.
    """
    import _socket
    import fcntl

    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    # struct ifreq: the name of an interface, then its flags. The loopback of a new namespace is down.
    asked = fcntl.ioctl(listener.fileno(), GET_FLAGS, struct.pack("=16sh22x", b"lo", 0))
    (flags,) = struct.unpack_from("=h", asked, 16)
    if not flags & UP:  # bubblewrap has done it
        fcntl.ioctl(listener.fileno(), SET_FLAGS, struct.pack("=16sh22x", b"lo", flags | UP))
    listener.bind(("127.0.0.1", 0))
    listener.listen(BACKLOG)
    port: int = listener.getsockname()[1]
    host = _socket.socket(fileno=channel)
    host.sendmsg([b"-"], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, struct.pack("=i", listener.fileno()))])
    host.close()
    listener.close()
    return port


def run_command(request: dict[str, Any]) -> tuple[int, int, bytes, bytes]:
    """Run one command until it ends or a limit ends it. Return (reason, exit code, stdout, stderr)."""
    pipes = [os.pipe() for _ in range(3)]
    child = os.fork()
    if child == 0:
        become(request, pipes)
    ends = [pipes[0][1], pipes[1][0], pipes[2][0]]
    for end in (pipes[0][0], pipes[1][1], pipes[2][1]):
        os.close(end)
    left, kept = memoryview(request["stdin"]), {ends[1]: bytearray(), ends[2]: bytearray()}
    exited = os.pidfd_open(child)
    poll = select.poll()
    poll.register(exited, select.POLLIN)
    for end in kept:
        poll.register(end, select.POLLIN)
    os.set_blocking(ends[0], False)
    poll.register(ends[0], select.POLLOUT)
    poll.register(0, select.POLLIN)
    writing, deadline, reason = True, time.monotonic() + request["timeout_s"], -1
    while reason < 0:
        wait = deadline - time.monotonic()
        if wait <= 0:
            reason = TIMEOUT
            break
        for end, _ in poll.poll(1000 * wait):
            if end == exited:
                reason = EXIT
            elif end == 0:  # INTERRUPT, or the end of the host
                os.read(0, 1)
                reason = TIMEOUT
            elif end in kept:
                data = os.read(end, CHUNK)
                kept[end] += data
                if not data:
                    poll.unregister(end)
            else:
                try:
                    left = left[os.write(end, left) :] if left else left
                except BrokenPipeError:
                    left = left[:0]
                if not left:
                    poll.unregister(end)
                    os.close(end)
                    writing = False
        if sum(map(len, kept.values())) > request["output_bytes"]:
            reason = OUTPUT_LIMIT
    status = end_all(child)
    for end, stream in kept.items():  # all writers are dead, so this ends
        while len(stream) <= request["output_bytes"] and (data := os.read(end, CHUNK)):
            stream += data
    if sum(map(len, kept.values())) > request["output_bytes"]:
        reason = OUTPUT_LIMIT if reason == EXIT else reason
    for end in (exited, ends[1], ends[2], *([ends[0]] if writing else [])):
        os.close(end)
    code = os.waitstatus_to_exitcode(status)
    stdout, stderr = (bytes(stream[: request["output_bytes"]]) for stream in kept.values())
    return reason, code if code >= 0 else 128 - code, stdout, stderr


def become(request: dict[str, Any], pipes: list[tuple[int, int]]) -> NoReturn:
    """Turn this child into the command, or run its code."""
    try:
        os.setsid()
        for number, end in enumerate((pipes[0][0], pipes[1][1], pipes[2][1])):
            os.dup2(end, number)
        os.closerange(3, 64)
        limit_resources(request["rlimits"])
        if "code" in request:
            run_code(request.pop("code"), request.pop("environment"))
        os.execve(request["argv"][0], request["argv"], request["environment"])
    except BaseException as error:
        os.write(2, f"{error}\n".encode())
    os._exit(127)


def run_code(code: CodeType, environment: dict[str, str]) -> NoReturn:
    """Run code as the program of this process. `sys.exit` counts as an error, and threads end with it."""
    os.environ.clear()
    os.environ.update(environment)
    del sys.argv[1:]
    sys.stdin = open(0, errors="surrogateescape")  # noqa: SIM115 (it is open until the end)
    sys.stdout = open(1, "w", errors="surrogateescape")  # noqa: SIM115
    main = sys.modules["__main__"] = type(sys)("__main__")
    exec(code, main.__dict__)
    sys.stdout.flush()
    os._exit(0)


def end_all(child: int) -> int:
    """Kill and reap every other process of the namespace. Return the exit status of `child`."""
    found = 0
    try:  # noqa: SIM105 (importing contextlib takes longer than all of this)
        os.kill(-1, SIGKILL)
    except ProcessLookupError:
        pass
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            return found
        if pid == child:
            found = status


def answer(reason: int, code: int, seconds: float, stdout: bytes, stderr: bytes) -> None:
    sys.stdout.buffer.write(struct.pack(HEADER, reason, code, seconds, len(stdout), len(stderr)) + stdout + stderr)
    sys.stdout.buffer.flush()


def main() -> NoReturn:
    spec = marshal.load(sys.stdin.buffer)
    try:
        enclose(spec)
    except (SetupError, OSError) as error:
        answer(FAILED, 1, 0.0, b"", str(error).encode())
        os._exit(1)
    spec.clear()
    answer(EXIT, 0, 0.0, b"", b"")
    while True:
        try:
            request = marshal.load(sys.stdin.buffer)
        except EOFError:
            os._exit(0)  # without Python's own end, which takes longer than a command
        if request is INTERRUPT:  # it came after the end of its command
            continue
        start = time.monotonic()
        try:
            reason, code, stdout, stderr = run_command(request)
        except OSError as error:  # such as no room for another process
            reason, code, stdout, stderr = FAILED, 1, b"", str(error).encode()
        answer(reason, code, time.monotonic() - start, stdout, stderr)


if __name__ == "__main__":
    main()
