"""Lists the system calls that sandboxed code may make, and compiles them into a classic BPF program for seccomp.

A call that is not listed fails with EPERM. Left out on purpose: every way to make a process or a thread
(so the memory limit of the one process is the limit of all, and nothing can outlive it), execve, sockets, kill, ptrace,
mount, namespaces, bpf, io_uring, keyrings, memfd, pipes. The list holds everything that Python, numpy and sympy need.
Record locks, which SQLite takes, and syncs would be felt outside, and a lone process on a file system in memory needs
neither: they do nothing and succeed. Another architecture's calling convention (int 0x80, x32) kills the process.

A second list adds what a shell, git and test runners need (core/sandbox/workspace): processes, threads and pipes, but
no new namespace, no sockets but pairs, and still no ptrace, mount or bpf. A third one lets programs be clients over
IPv4, for a workspace whose network holds one port of the host and nothing else: no other family of sockets, and no
servers.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterable
from functools import cache
from itertools import chain

# name:x86_64:aarch64, from the kernel's unistd headers; `-` where the architecture has no such call.
_ALLOWED = """
read:0:63 write:1:64 readv:19:65 writev:20:66 pread64:17:67 pwrite64:18:68 lseek:8:62 close:3:57 close_range:436:436
open:2:- openat:257:56 creat:85:- stat:4:- fstat:5:80 lstat:6:- newfstatat:262:79 statx:332:291 access:21:-
faccessat:269:48 faccessat2:439:439 readlink:89:- readlinkat:267:78 getdents:78:- getdents64:217:61 getcwd:79:17
chdir:80:49 fchdir:81:50 dup:32:23 dup2:33:- dup3:292:24 mkdir:83:- mkdirat:258:34 rmdir:84:-
unlink:87:- unlinkat:263:35 rename:82:- renameat:264:38 renameat2:316:276 truncate:76:45 ftruncate:77:46
fallocate:285:47 symlink:88:- symlinkat:266:36 link:86:- linkat:265:37
chmod:90:- fchmod:91:52 fchmodat:268:53 utimensat:280:88 utime:132:- utimes:235:- statfs:137:43 fstatfs:138:44
umask:95:166 listxattr:194:11 llistxattr:195:12 copy_file_range:326:285 sendfile:40:71 poll:7:-
ppoll:271:73 select:23:- pselect6:270:72 epoll_create:213:- epoll_create1:291:20 epoll_ctl:233:21 epoll_wait:232:-
epoll_pwait:281:22 eventfd2:290:19 munmap:11:215 mprotect:10:226 mremap:25:216 madvise:28:233 brk:12:214
rt_sigaction:13:134 rt_sigprocmask:14:135 rt_sigreturn:15:139 rt_sigpending:127:136 rt_sigsuspend:130:133
sigaltstack:131:132 pause:34:- alarm:37:- setitimer:38:103 getitimer:36:102 tgkill:234:131 getpid:39:172
getppid:110:173 gettid:186:178 getuid:102:174 geteuid:107:175 getgid:104:176 getegid:108:177 getgroups:115:158
getresuid:118:148 getresgid:120:150 getpgid:121:155 getpgrp:111:- getsid:124:156 getpriority:140:141
sched_getaffinity:204:123 sched_yield:24:124 getcpu:309:168 getrusage:98:165 times:100:153 sysinfo:99:179 uname:63:160
getrlimit:97:163 setrlimit:160:164 prlimit64:302:261 clock_gettime:228:113 clock_getres:229:114
clock_nanosleep:230:115 nanosleep:35:101 gettimeofday:96:169 time:201:- getrandom:318:278 futex:202:98
set_robust_list:273:99 set_tid_address:218:96 rseq:334:293 restart_syscall:219:128 exit:60:93 exit_group:231:94
"""
# What programs need beside it that start other programs. All of them live in one PID namespace.
_PROCESSES = """
fork:57:- vfork:58:- execve:59:221 wait4:61:260 waitid:247:95 kill:62:129 pidfd_open:434:434 setpgid:109:154
setsid:112:157 arch_prctl:158:- pipe:22:- pipe2:293:59 socketpair:53:199 getxattr:191:8 lgetxattr:192:9 fgetxattr:193:10
msync:26:227 mincore:27:232 rt_sigtimedwait:128:137
"""
# What clients need beside it, and the runtimes that they are written in.
_CLIENTS = """
connect:42:203 getsockname:51:204 getpeername:52:205 sendto:44:206 recvfrom:45:207 setsockopt:54:208 getsockopt:55:209
shutdown:48:210 sendmsg:46:211 recvmsg:47:212 timerfd_create:283:85 timerfd_settime:286:86 timerfd_gettime:287:87
"""
# Allowed with some values of their first argument: IPv4, and PR_SET_PDEATHSIG and PR_SET_NAME (of the caller).
_CLIENTS_CHECKED = {"socket:41:198": (2,), "prctl:157:167": (1, 15)}
_CLIENTS_SKIPPED = "flock:73:32"  # as fcntl's locks
_CLONES = "clone:56:220 clone3:435:435"
_NEW_NAMESPACES = 0x7E020000
_MACHINES = {"x86_64": (1, 0xC000003E), "aarch64": (2, 0xC00000B7)}  # column above, AUDIT_ARCH
# Calls that do nothing and succeed: a sync is for the host's disks, which then write for everybody.
_SKIPPED = "fsync:74:82 fdatasync:75:83"
# Calls that are allowed with some values of their second argument, and skipped with others: (number by column above,
# the values, the skipped values).
_CHECKED = {
    # TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX
    "ioctl": ("16:29", (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451), ()),
    # F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_GETLK, F_DUPFD_CLOEXEC, F_GETPIPE_SZ; skipped: F_SETLK, F_SETLKW.
    # Not leases, signals and the size of pipes: those are shared with the host, by file or by user.
    "fcntl": ("72:25", (0, 1, 2, 3, 4, 5, 1030, 1032), (6, 7)),
}
_MMAP, _HUGE_PAGES = "9:222", 0x40000  # MAP_HUGETLB takes pages of the host's pool
_X32_BIT = 0x40000000
MACHINES = tuple(_MACHINES)

_LOAD, _JUMP_EQUAL, _JUMP_GREATER, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x45, 0x06
_KILL, _ALLOW, _SKIP, _REFUSE = 0x80000000, 0x7FFF0000, 0x00050000, 0x00050000 | errno.EPERM
_MISSING = 0x00050000 | errno.ENOSYS
_NUMBER, _ARCH, _FIRST_ARGUMENT, _SECOND_ARGUMENT, _FOURTH_ARGUMENT = 0, 4, 16, 24, 40  # offsets in struct seccomp_data


def allowed_calls(machine: str, processes: bool = False, clients: bool = False) -> dict[str, int]:
    """Return name -> number of every call that is allowed with any arguments.

    `processes` adds the second list, and `clients` the third.
    """
    return _read_table(_ALLOWED + _PROCESSES * processes + _CLIENTS * clients, machine)


def other_calls(machine: str) -> dict[str, int]:
    """Return name -> number of every call that all filters skip, or allow with some arguments."""
    checked = " ".join(f"{name}:{numbers}" for name, (numbers, *_) in _CHECKED.items())
    return _read_table(f"{_SKIPPED} {checked} mmap:{_MMAP}", machine)


def _read_table(table: str, machine: str) -> dict[str, int]:
    column, _ = _MACHINES[machine]
    rows = (entry.split(":") for entry in table.split())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


@cache
def compile_filter(machine: str, processes: bool = False, clients: bool = False) -> bytes:
    """Compile the filter for `machine` into an array of `struct sock_filter`.

    `processes` allows starting programs, and `clients` connecting to servers.

    Raises:
        KeyError: there is no table for this machine; MACHINES lists the known ones.
    """
    _, arch = _MACHINES[machine]
    # Jumps count instructions: (code, operand, skip if true, skip if false).
    program = [
        _encode(_LOAD, _ARCH),
        _encode(_JUMP_EQUAL, arch, 1, 0),
        _encode(_RETURN, _KILL),
        _encode(_LOAD, _NUMBER),
        _encode(_JUMP_AT_LEAST, _X32_BIT, 0, 1),
        _encode(_RETURN, _KILL),
    ]
    others = other_calls(machine)
    for name, (_, allowed, skipped) in _CHECKED.items():
        program += _check_argument(others[name], _SECOND_ARGUMENT, allowed, skipped)
    for name in _read_table(_SKIPPED, machine):
        program += _answer(others[name], _SKIP)
    program += [
        _encode(_JUMP_EQUAL, others["mmap"], 0, 4),
        _encode(_LOAD, _FOURTH_ARGUMENT),
        _encode(_JUMP_ANY_BIT, _HUGE_PAGES, 0, 1),
        _encode(_RETURN, _REFUSE),
        _encode(_RETURN, _ALLOW),
    ]
    if processes:
        # The flags of clone3 lie in memory, where no filter sees them; without it, libc calls clone.
        clones = _read_table(_CLONES, machine)
        program += _answer(clones["clone3"], _MISSING)
        program += [_encode(_JUMP_EQUAL, clones["clone"], 0, 4), _encode(_LOAD, _FIRST_ARGUMENT)]
        program += [_encode(_JUMP_ANY_BIT, _NEW_NAMESPACES, 0, 1), _encode(_RETURN, _REFUSE), _encode(_RETURN, _ALLOW)]
    if clients:
        for call, values in _CLIENTS_CHECKED.items():
            (number,) = _read_table(call, machine).values()
            program += _check_argument(number, _FIRST_ARGUMENT, values)
        for number in _read_table(_CLIENTS_SKIPPED, machine).values():
            program += _answer(number, _SKIP)
    for first, last in _merge_intervals(allowed_calls(machine, processes, clients).values()):
        program += [_encode(_JUMP_AT_LEAST, first, 0, 2), _encode(_JUMP_GREATER, last, 1, 0), _encode(_RETURN, _ALLOW)]
    program.append(_encode(_RETURN, _REFUSE))
    return b"".join(program)


def _answer(value: int, verdict: int) -> list[bytes]:
    """Return with `verdict` if what was loaded is `value`."""
    return [_encode(_JUMP_EQUAL, value, 0, 1), _encode(_RETURN, verdict)]


def _check_argument(number: int, argument: int, allowed: Iterable[int], skipped: Iterable[int] = ()) -> list[bytes]:
    """Decide over the call `number` by the value of its argument, which lies at the offset `argument`."""
    answers = [*(_answer(value, _ALLOW) for value in allowed), *(_answer(value, _SKIP) for value in skipped)]
    check = [_encode(_LOAD, argument), *chain.from_iterable(answers), _encode(_RETURN, _REFUSE)]
    return [_encode(_JUMP_EQUAL, number, 0, len(check)), *check]


def _encode(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _merge_intervals(numbers: Iterable[int]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if merged and number == merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], number)
        else:
            merged.append((number, number))
    return merged
