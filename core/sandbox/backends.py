"""Describes the kinds of isolation: what each starts, and what the sandboxed code sees of the host.

bubblewrap: `bwrap` makes the namespaces. landlock: `inside.py` makes them itself, nothing needs to be installed, and
Python is not started for each program but forked. In both, `inside.py` then adds Landlock (a program in bubblewrap runs
without where the kernel has none), seccomp and resource limits. unsafe_local: resource limits alone.
"""

from __future__ import annotations

import importlib.util
import marshal
import math
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path

from core.sandbox import inside
from core.sandbox.forked import compile_programs, list_python
from core.sandbox.result import Backend, SandboxLimits, SandboxUnavailable
from core.sandbox.seccomp import MACHINES, compile_filter

ISOLATED: tuple[Backend, ...] = ("bubblewrap", "landlock")

ENVIRONMENT = {
    "HOME": "/tmp",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "PYTHONHASHSEED": "0",  # what a program prints of a set is the same in every process
    **dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
}
LIBRARIES = ("numpy", "sympy", "mpmath")
_SYSTEM = (f"{sys.base_prefix}/lib", "/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/dev/null")
CLONE_NUMBERS = {"x86_64": 56, "aarch64": 220}

# What a failed step of inside.py or of bwrap needs, by how its message begins.
_FIXES = {
    "user namespaces": "sysctl user.max_user_namespaces must not be 0; on Ubuntu set "
    "kernel.apparmor_restrict_unprivileged_userns=0; in Docker use --security-opt seccomp=unconfined",
    "bwrap": "bubblewrap needs user namespaces: see sysctl user.max_user_namespaces",
    "Landlock": "needs Linux 5.13 or newer with `landlock` in the kernel's `lsm=` list",
    "seccomp": "the kernel needs CONFIG_SECCOMP_FILTER",
    "a /proc": "needs Linux 5.8 and a /proc here that nothing covers; in Docker use --security-opt "
    "systempaths=unconfined",
    "read-only": "needs mount_setattr: Linux 5.12 or newer",
    "": "the system must allow mounts inside user namespaces: on Ubuntu set "
    "kernel.apparmor_restrict_unprivileged_userns=0; in Docker use --security-opt apparmor=unconfined "
    "--security-opt seccomp=unconfined",
}


def explain(problem: str) -> str:
    """Return the problem with its fix."""
    return f"{problem} ({next(fix for start, fix in _FIXES.items() if problem.startswith(start))})"


def check_platform(backend: Backend) -> None:
    """Check what can be known without running anything.

    Raises:
        SandboxUnavailable: this is not Linux, no system call table fits this machine, or bwrap is not installed.
    """
    machine = platform.machine()
    if sys.platform != "linux":
        raise SandboxUnavailable(f"this is {sys.platform}; isolation needs Linux: use a virtual machine or a container")
    if backend != "unsafe_local" and machine not in MACHINES:
        known = ", ".join(MACHINES)
        raise SandboxUnavailable(f"no system call table for {machine}; add a column to sandbox/seccomp.py ({known})")
    if backend == "bubblewrap" and shutil.which("bwrap") is None:
        raise SandboxUnavailable("bwrap is not installed: apt-get install bubblewrap")


@cache
def find_packages(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the folders that hold these libraries."""
    specs = [importlib.util.find_spec(name) for name in names]
    return tuple(dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in specs if spec and spec.origin))


@cache
def list_mounts(paths: tuple[str, ...], libraries: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """List (path on the host, path inside) of those `paths` that are there, and of the folders of `libraries`."""
    mounts = [(os.path.realpath(path), path) for path in dict.fromkeys(paths) if os.path.exists(path)]
    packages = enumerate(map(os.path.realpath, find_packages(libraries)))
    return (*mounts, *((folder, f"/packages{number}") for number, folder in packages))


def wrap_in_bubblewrap(mounts: Iterable[tuple[str, str]], folders: Sequence[str]) -> list[str]:
    """Return the command that starts Python under bubblewrap, with these mounts and empty folders."""
    bwrap, python = shutil.which("bwrap") or "bwrap", list_python()  # it is started without our PATH
    words = [word for source, target in mounts for word in _bind(source, target)]
    words += [word for folder in folders for word in ("--dir", folder)]
    return [
        bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--as-pid-1", "--cap-add", "CAP_SYS_ADMIN",
        *words, "--ro-bind", python[0], python[0], "--chdir", "/tmp", *python,
    ]  # fmt: skip


def _bind(source: str, target: str) -> tuple[str, ...]:
    if source == "/proc":  # bubblewrap's own, of the new PID namespace
        return "--proc", target
    return ("--dev-bind" if target.startswith("/dev/") else "--ro-bind", source, target)


def make_command(backend: Backend) -> list[str]:
    """Return what starts a program that is not forked."""
    if backend == "bubblewrap":
        return wrap_in_bubblewrap(list_mounts(_SYSTEM, LIBRARIES), ["/tmp"])
    return list_python()


def make_instructions(backend: Backend, code: str, limits: SandboxLimits, report: int) -> bytes:
    """Return what the interpreter reads from stdin: inside.py, which a fork has already, then what to do."""
    isolated, forked, machine = backend in ISOLATED, backend == "landlock", platform.machine()
    packages = find_packages(LIBRARIES)
    cpu_s = math.ceil(limits.timeout_s) + 1  # after the wall clock, so that it only matters if nobody watches
    return (b"" if forked else compile_programs(inside)) + marshal.dumps(
        {
            "namespaces": forked,
            "isolated": isolated,
            "landlock_required": forked,
            "clone": CLONE_NUMBERS.get(machine),
            "mounts": list(list_mounts(_SYSTEM, LIBRARIES)),
            "private_folder": f"size={limits.folder_mb}m,nr_inodes={limits.files + 2},mode=1777",
            "seccomp": compile_filter(machine) if isolated else b"",
            "rlimits": {
                "RLIMIT_AS": limits.memory_mb << 20,
                "RLIMIT_CPU": cpu_s,
                "RLIMIT_FSIZE": limits.folder_mb << 20,
                "RLIMIT_NOFILE": limits.open_files,
                "RLIMIT_CORE": 0,
                # The kernel counts queued signals by user: the code must not use up those of the host's programs.
                **({"RLIMIT_NPROC": 1, "RLIMIT_SIGPENDING": 64} if isolated else {}),
            },
            "packages": [f"/packages{i}" for i in range(len(packages))] if isolated else list(packages),
            "report": 3 if forked else report,
            "parent": os.getpid() if backend == "unsafe_local" else None,
            "code": code.encode("utf-8", "surrogatepass"),
        }
    )
