"""The program that a sandbox runs: it locks itself up, step by step, and then becomes the code it was given.

It is the whole program of its interpreter, or of a fork (fork_server.py), and imports nothing of this project. It reads
a marshalled dictionary from stdin, made by `backends.py`, which says what to do. It writes to the report pipe: the step
that failed, or `ready` and then, if the code dies of it, `memory` or `blocked`.

If `namespaces` is set, the process forks into new user, mount, PID, network, IPC and UTS namespaces. The outer half
stays behind as a monitor; the inner half is PID 1 in there and dies when the monitor does. If it is not set, bubblewrap
has made the namespaces, or there are none (unsafe_local).
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import marshal
import os
import resource
import struct
import sys
from types import ModuleType

TYPE_CHECKING = False  # importing typing takes longer than all of the isolation, and signal half of that
if TYPE_CHECKING:
    from typing import Any, NoReturn

NEW_USER, NEW_MOUNTS, NEW_PIDS, NEW_NETWORK, NEW_IPC, NEW_UTS = 1 << 28, 1 << 17, 1 << 29, 1 << 30, 1 << 27, 1 << 26
NEW_NAMESPACES = NEW_USER | NEW_MOUNTS | NEW_PIDS | NEW_NETWORK | NEW_IPC | NEW_UTS
NOBODY = 65534
SIGKILL, SIGCHLD = 9, 17
READ_ONLY, NOSUID, NODEV, NOEXEC = 1, 2, 4, 8
PROC_FLAGS = READ_ONLY | NOSUID | NODEV | NOEXEC
BIND, RECURSIVE, PRIVATE = 4096, 16384, 1 << 18
DETACH = 2
PDEATHSIG, DUMPABLE, SECCOMP, NO_NEW_PRIVS = 1, 4, 22, 38
MOUNT_SETATTR, CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 442, 444, 445, 446  # the same number on every architecture
AT_RECURSIVE = 0x8000
AT_FDCWD = -100

libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the lock: nothing else runs in here


class SetupError(Exception):
    """Reports a step of the isolation that the kernel refused."""


def call(step: str, function: Any, *arguments: Any) -> int:
    """Call a C function, which returns -1 on failure.

    Raises:
        SetupError: it failed; the message is `step: reason`.
    """
    result = int(function(*(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments)))
    if result == -1:
        raise SetupError(f"{step}: {os.strerror(ctypes.get_errno())}")
    return result


def enter_namespaces(clone_number: int) -> int:
    """Fork into the new namespaces; only the inner half returns. It gets a pipe that closes when the monitor dies."""
    uid, gid, root = os.getuid(), os.getgid(), os.geteuid() == 0
    map_read, map_write = os.pipe()
    child = call("user namespaces", libc.syscall, clone_number, NEW_NAMESPACES | SIGCHLD, 0, 0, 0, 0)
    if child == 0:
        os.close(map_write)
        if not os.read(map_read, 1):
            os._exit(1)
        os.setsid()
        return map_read
    try:
        # Root's code becomes nobody: in any namespace uid 0 is exempt from RLIMIT_NPROC and owns the host's files.
        also = f"\n{NOBODY} {NOBODY} 1" if root else ""
        if not root:
            write(f"/proc/{child}/setgroups", "deny")
        write(f"/proc/{child}/uid_map", f"{uid} {uid} 1{also}")
        write(f"/proc/{child}/gid_map", f"{gid} {gid} 1{also}")
    except OSError as error:
        raise SetupError(f"user namespaces: {error}") from error
    os.write(map_write, b"1")
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def build_root(mounts: list[tuple[str, str]]) -> None:
    """Replace the file system by an empty one that holds only `mounts` (source, target), read-only.

    The source /proc is not the host's: it shows the processes of this PID namespace, and nothing of the machine.
    """
    call("mount propagation", libc.mount, None, b"/", None, RECURSIVE | PRIVATE, None)
    call("a new root", libc.mount, b"tmpfs", b"/tmp", b"tmpfs", NOSUID | NODEV, b"size=1m,mode=0755")
    os.chdir("/tmp")
    os.mkdir("host")
    call("a new root", libc.pivot_root, b".", b"host")
    os.chdir("/")
    os.mkdir("/tmp")
    for source, target in mounts:
        if source == "/proc":
            os.mkdir(target)
            call("a /proc of its own", libc.mount, b"proc", target.encode(), b"proc", PROC_FLAGS, b"subset=pid")
            continue
        source = "/host" + source
        if os.path.isdir(source):
            os.makedirs(target, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.close(os.open(target, os.O_CREAT | os.O_CLOEXEC))
        call(f"mount of {target}", libc.mount, source.encode(), target.encode(), None, BIND | RECURSIVE, None)
        make_read_only(target, AT_RECURSIVE, 0 if target.startswith("/dev/") else NODEV)
    call("leaving the old root", libc.umount2, b"/host", DETACH)
    os.rmdir("/host")


def make_read_only(target: str, recursive: int, flags: int = 0) -> None:
    attributes = struct.pack("=4Q", READ_ONLY | NOSUID | flags, 0, 0, 0)
    size = len(attributes)
    call(f"read-only {target}", libc.syscall, MOUNT_SETATTR, AT_FDCWD, target.encode(), recursive, attributes, size)


def mount_private_folder(options: str) -> None:
    """Mount a bounded file system in memory for the code's own files; it is gone when the process ends."""
    call("the private folder", libc.mount, b"tmpfs", b"/tmp", b"tmpfs", NOSUID | NODEV | NOEXEC, options.encode())
    make_read_only("/", 0)
    make_read_only("/dev/null", 0)  # bubblewrap leaves it open to chmod
    call("the host name", libc.sethostname, b"sandbox", 7)
    os.chdir("/tmp")


def drop_privileges(monitor: int | None) -> None:
    if monitor is not None and os.getuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    header, nothing = struct.pack("=Ii", 0x20080522, 0), bytes(24)
    call("dropping capabilities", libc.capset, header, nothing)
    call("no core dumps", libc.prctl, DUMPABLE, 0, 0, 0, 0)
    call("no_new_privs", libc.prctl, NO_NEW_PRIVS, 1, 0, 0, 0)
    if monitor is not None:
        die_with_parent()
        os.set_blocking(monitor, False)
        try:
            os.read(monitor, 1)
            os._exit(1)  # end of file: the monitor died before the signal was armed
        except BlockingIOError:
            pass


def die_with_parent() -> None:
    call("parent-death signal", libc.prctl, PDEATHSIG, SIGKILL, 0, 0, 0)


def apply_landlock(required: bool, writable: tuple[str, ...] = ("/tmp",), execute: bool = False, port: int = 0) -> None:
    """Allow reading anywhere and writing in `writable`, and no executing unless `execute`.

    Where the kernel's Landlock can, forbid TCP but to `port`, and abstract sockets and signals to the outside.
    """
    abi = libc.syscall(CREATE_RULESET, None, ctypes.c_long(0), 1)
    if abi < 1:
        if required:
            raise SetupError(f"Landlock: {os.strerror(ctypes.get_errno())}")
        return
    files = (1 << (13 + (abi >= 2) + (abi >= 3) + (abi >= 5))) - 1
    ruleset = struct.pack("=3Q", files, 3 * (abi >= 4), 3 * (abi >= 6))
    rules = call("Landlock", libc.syscall, CREATE_RULESET, ruleset, len(ruleset), 0)
    own = [(path, files if execute else files & ~1) for path in writable]
    for path, allowed in (("/", 0b1100 | execute), *own, ("/dev/null", 0b0110 | (files & (1 << 14)))):
        folder = os.open(path, os.O_PATH | os.O_CLOEXEC)
        call("Landlock", libc.syscall, ADD_RULE, rules, 1, struct.pack("=Qi", allowed, folder), 0)
        os.close(folder)
    if port and abi >= 4:
        call("Landlock", libc.syscall, ADD_RULE, rules, 2, struct.pack("=2Q", 2, port), 0)
    call("Landlock", libc.syscall, RESTRICT_SELF, rules, 0)
    os.close(rules)


def apply_seccomp(program: bytes) -> None:
    buffer = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(struct.pack("@HP", len(program) // 8, ctypes.addressof(buffer)))
    call("seccomp", libc.prctl, SECCOMP, 2, header, 0, 0)


def leave_host(spec: dict[str, Any]) -> int | None:
    """Bind this process to its parent, and enter namespaces with a root of their own where `spec` says so.

    Return what `drop_privileges` needs.
    """
    if spec["parent"] is not None:
        die_with_parent()
        if os.getppid() != spec["parent"]:
            os._exit(1)
    if not spec["namespaces"]:
        return None
    monitor = enter_namespaces(spec["clone"])
    build_root(spec["mounts"])
    return monitor


def limit_resources(limits: dict[str, int]) -> None:
    """Lower the limits of this process: name -> value, or what it has if that is less."""
    for name, value in limits.items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))


def lock_up(spec: dict[str, Any]) -> None:
    """Apply everything in `spec`, in the only order that works. If `isolated`, nothing of the host is in reach then."""
    monitor = leave_host(spec)
    if spec["isolated"]:
        mount_private_folder(spec["private_folder"])
        drop_privileges(monitor)
    limit_resources(spec["rlimits"])
    report = os.dup2(spec["report"], 3, inheritable=False) if spec["report"] != 3 else 3
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.closerange(4, max(1024, spec["report"] + 1))
    if spec["isolated"]:
        apply_landlock(spec["landlock_required"])
    os.write(report, b"ready\n")
    if spec["isolated"]:
        apply_seccomp(spec["seccomp"])


def run(code: bytes, packages: list[str]) -> int:
    """Run the code as `__main__`, like `python main.py`."""
    with open("main.py", "wb") as file:
        file.write(code)
    main = ModuleType("__main__")
    main.__dict__.update(__file__="main.py", __builtins__=__builtins__)
    sys.modules["__main__"] = main
    sys.path += packages
    sys.argv = ["main.py"]
    vars(builtins).update(exit=sys.exit, quit=sys.exit)  # as the site module would
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]
    try:
        exec(compile(code, "main.py", "exec"), main.__dict__)
    except SystemExit:
        raise
    except BaseException as error:
        verdict = find_cause(error)
        error.__traceback__ = error.__traceback__.tb_next if error.__traceback__ else None
        if verdict == "memory":  # let go of what the code holds, or there is no room to say so
            error.__traceback__ = error.__cause__ = error.__context__ = None
            main.__dict__.clear()
        sys.excepthook(type(error), error, error.__traceback__)
        if verdict:
            os.write(3, verdict.encode())
        return 1
    return 0


def find_cause(error: BaseException | None) -> str | None:
    """Return `memory` or `blocked` if the error, or one that led to it, says that a limit was hit."""
    while error is not None:
        if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            return "memory"
        if isinstance(error, PermissionError):
            return "blocked"
        error = error.__cause__ or error.__context__
    return None


def refuse(report: int, reason: object) -> NoReturn:
    os.write(report, str(reason).encode())
    os._exit(1)


def main() -> int:
    spec = marshal.load(sys.stdin.buffer)
    try:
        lock_up(spec)
    except (SetupError, OSError) as error:
        refuse(spec["report"], error)
    code, packages = spec["code"], spec["packages"]
    spec.clear()  # the code can read the variables of this frame, and these tell of the host
    return run(code, packages)


if __name__ == "__main__":
    sys.exit(main())
