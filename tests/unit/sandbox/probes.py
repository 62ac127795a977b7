"""What sandboxed code must not manage to do, as data: one short program for each way out.

A program that gets what it should not prints ESCAPED; `deny` adds that to what does not print it itself. `W` is the
bait of `honeypot.py`: files, servers, a process and a secret of the host, all within reach of an ordinary program of
the same user. With `control` the same program is run without isolation and must print ESCAPED there, or it proves
nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Probe:
    name: str
    code: str
    statuses: tuple[str, ...]
    """Lists how the run may end."""
    control: bool = False
    timeout_s: float = 30.0


MODULES = ("os", "socket", "fcntl", "ctypes", "signal", "threading", "time", "resource", "glob", "mmap")


def deny(name: str, code: str, control: bool = True) -> Probe:
    """Make a probe of code that must fail; the modules that it names are imported before it."""
    needed = [module for module in MODULES if re.search(rf"\b{module}\.", code) and f"import {module}" not in code]
    imports = f"import {', '.join(needed)}\n" if needed and not code.startswith("import ") else ""
    ending = "" if "ESCAPED" in code else "\nprint('ESCAPED')"
    return Probe(name, f"{imports}{code}{ending}", ("error", "blocked"), control)


def limit(name: str, code: str, *statuses: str, timeout_s: float = 30.0) -> Probe:
    return Probe(name, code, statuses, timeout_s=timeout_s)


def endless(name: str, code: str) -> Probe:
    return limit(name, code, "timeout", timeout_s=0.5)


def harmless(name: str, code: str, *statuses: str) -> Probe:
    return Probe(name, code, statuses)


def read(name: str, path: str, control: bool = True) -> Probe:
    """Read a file or list a folder whose path may hold fields of `W`."""
    return deny(
        f"read_{name}",
        f"import os\npath = f{path!r}\n"
        "print('ESCAPED', os.listdir(path) if os.path.isdir(path) else open(path, 'rb').read(99))",
        control,
    )


def raw(name: str, x86_64: int, aarch64: int, *arguments: object, control: bool = False) -> Probe:
    """Make a system call through ctypes; -1 means refused."""
    words = ", ".join(str(argument) for argument in arguments)
    call = f"libc.syscall({{'x86_64': {x86_64}, 'aarch64': {aarch64}}}[os.uname().machine], {words})"
    code = f"import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nr = {call}\n"
    verdict = "if r == -1: raise OSError(ctypes.get_errno(), 'refused')\nprint('ESCAPED')"
    return deny(f"raw_{name}", code + verdict, control)


FILES = [
    deny("read_file", "open(W['file']).read()"),
    deny("read_home", "open(W['home'] + '/.ssh/id').read()"),
    deny("list_folder", "os.listdir(W['folder'])"),
    deny("stat_file", "os.stat(W['file'])"),
    deny("read_passwd", "open('/etc/passwd').read()"),
    deny("read_repository", "open(W['repository'] + '/core/types.py').read()"),
    deny("write_file", "open(W['folder'] + '/new', 'w').write('x')"),
    deny("append_file", "open(W['file'], 'a').write('x')"),
    deny("chmod_file", "os.chmod(W['file'], 0o600)"),
    deny("touch_file", "os.utime(W['file'], (1, 1))"),
    deny("truncate_file", "os.truncate(W['file'], 3)"),
    deny("rename_file", "os.rename(W['file'], W['file'] + '2'); os.rename(W['file'] + '2', W['file'])"),
    deny("delete_file", "os.remove(W['folder'] + '/spare')"),
    deny("chdir_outside", "os.chdir(W['folder'])"),
    deny("symlink", "os.symlink(W['file'], 'link'); print('ESCAPED', open('link').read())"),
    deny("hardlink", "os.link(W['file'], 'link'); print('ESCAPED', open('link').read())"),
    deny("dot_dot", "open('../' * 20 + W['file'][1:]).read()"),
    deny(
        "path_descriptor",
        "root = os.open('/', os.O_PATH)\n"
        "print('ESCAPED', os.read(os.open(W['file'][1:], os.O_RDONLY, dir_fd=root), 9))",
    ),
    deny("chroot", "os.mkdir('d'); os.chroot('d')", False),
    deny("chmod_dev_null", "os.chmod('/dev/null', 0o600)", False),
    deny("replace_dev_null", "os.remove('/dev/null')", False),
    deny("write_packages", "import numpy, os; open(os.path.dirname(numpy.__file__) + '/evil.py', 'w')", False),
    deny("chmod_library", "os.chmod(os.__file__, 0o777)", False),
    deny("write_library", "open(os.__file__, 'a')", False),
    deny("write_root", "open('/new', 'w')", False),
    deny("make_device", "os.mknod('mem', 0o20666, os.makedev(1, 1)); open('mem', 'rb')", False),
    deny("read_memory_device", "open('/dev/mem', 'rb')", False),
    deny("read_kernel_log", "open('/dev/kmsg')", False),
    deny("shared_memory_file", "open(W['shared_memory'], 'r+').write('x')"),
    deny("list_sys", "os.listdir('/sys')"),
    deny("list_proc", "os.listdir('/proc')"),
    deny("own_proc", "open('/proc/self/mountinfo').read()"),
    deny("sysctl", "open('/proc/sys/kernel/ostype').read()"),
    deny("parent_descriptors", "os.listdir(f'/proc/{os.getppid()}/fd')"),
]

SECRETS = [
    deny("parent_environment", "text = open(f'/proc/{os.getppid()}/environ').read()\nassert W['secret'] in text"),
    deny(
        "any_environment",
        "for path in glob.glob('/proc/[0-9]*/environ'):\n    try:\n"
        "        if W['secret'] in open(path).read(): print('ESCAPED'); break\n    except OSError: pass\n"
        "else: raise SystemExit(1)",
    ),
    deny("own_environment", "assert W['secret'] in str(os.environ)", False),
    deny(
        "inherited_descriptors",
        "for fd in range(4, 1024):\n    try: os.fstat(fd)\n    except OSError: continue\n    print('ESCAPED', fd)\n"
        "raise SystemExit(1)",
        False,
    ),
    deny("name_of_host", "assert os.uname().nodename == W['host']", False),
]

NETWORK = [
    deny("tcp", "socket.create_connection(('127.0.0.1', W['tcp']), 2)"),
    deny("udp", "socket.socket(2, 2).sendto(b'x', ('127.0.0.1', W['udp']))"),
    deny("unix_socket", "socket.socket(1).connect(W['unix'])"),
    deny("abstract_socket", "socket.socket(1).connect('\\0' + W['abstract'])"),
    deny("listen", "socket.create_server(('127.0.0.1', 0))"),
    deny("netlink", "socket.socket(16, 3, 0)"),
    deny("raw_packets", "socket.socket(17, 3)", False),
    deny("socket_pair", "socket.socketpair()"),
    deny("name_lookup", "socket.getaddrinfo('example.com', 80)", False),
    deny("name_server", "socket.socket(2, 2).sendto(b'x', ('8.8.8.8', 53))", False),
    deny("metadata", "socket.create_connection(('169.254.169.254', 80), 1)", False),
    deny("url", "import urllib.request as u; u.urlopen(f\"http://127.0.0.1:{W['tcp']}/\", timeout=1)", False),
]

PROCESSES = [
    deny("fork", "if os.fork() == 0: os._exit(0)\nprint('ESCAPED')"),
    deny("thread", "threading.Thread(target=print).start()"),
    deny("subprocess", "import subprocess; subprocess.check_output(['/bin/echo'])"),
    deny("shell", "assert os.system('true') == 0"),
    deny("exec", "os.execv('/bin/echo', ['echo', 'ESCAPED'])"),
    deny("exec_loader", "os.execv(glob.glob('/lib*/ld-linux*')[0], ['ld', '/bin/echo', 'ESCAPED'])"),
    deny("spawn", "os.posix_spawn('/bin/true', ['true'], {})"),
    deny("pool", "import multiprocessing as m; m.get_context('fork').Pool(2).map(abs, [1])"),
    limit("fork_bomb", "import os\nwhile True: os.fork()", "blocked"),
    limit(
        "thread_bomb",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(99,)).start()",
        "error",
    ),
    deny(
        "orphan",
        "if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n        print('ESCAPED', flush=True)\n"
        "        time.sleep(2)\n    os._exit(0)\nos.wait()",
    ),
    deny("kill", "os.kill(W['victim'], 0)"),
    deny("kill_parent", "assert os.getppid() > 1; os.kill(os.getppid(), 0)"),
    deny("kill_group", "os.kill(0, 0)"),
    deny("kill_everything", "os.kill(-1, 9)", False),
    deny("pidfd", "os.pidfd_open(W['victim'])"),
    deny("thread_kill", "assert ctypes.CDLL(None).tgkill(W['victim'], W['victim'], 0) == 0"),
    deny("ptrace_attach", "assert ctypes.CDLL(None).ptrace(16, W['victim'], 0, 0) == 0", False),
    deny(
        "read_process_memory",
        "libc = ctypes.CDLL(None, use_errno=True); pair = (ctypes.c_size_t * 2)(8, 8)\n"
        "libc.process_vm_readv(W['victim'], pair, 1, pair, 1, 0); assert ctypes.get_errno() == 14",
    ),
    deny("priority", "os.setpriority(os.PRIO_PROCESS, W['victim'], 19)"),
]

LIMITS = [
    limit("bytearray", "bytearray(4 << 30)", "memory"),
    limit("list_growth", "x = []\nwhile True: x.append(bytearray(1 << 20))", "memory"),
    limit("mmap", "import mmap; mmap.mmap(-1, 4 << 30)", "memory"),
    limit("array", "import numpy; numpy.ones((1 << 16, 1 << 16))", "memory"),
    limit("text", "x = 'x' * 10\nwhile True: x += x", "memory"),
    endless(
        "memory_errors_ignored",
        "x = []\nwhile True:\n    try: x.append(bytearray(1 << 22))\n    except MemoryError: pass",
    ),
    limit("recursion", "def f(): f()\nf()", "error"),
    limit(
        "deep_recursion",
        "import sys; sys.setrecursionlimit(10 ** 9)\ndef f(): f()\nf()",
        "error",
        "memory",
        "timeout",
        timeout_s=0.5,
    ),
    limit(
        "nested_calls",
        "import sys; sys.setrecursionlimit(10 ** 9)\nclass A:\n  def __repr__(s): return repr(s)\nrepr(A())",
        "error",
        "memory",
    ),
    limit("power", "10 ** 10 ** 8", "timeout", "memory", timeout_s=0.5),
    limit("big_file", "open('f', 'w').truncate(1 << 40)", "error"),
    limit("full_folder", "n = 0\nwhile True: open(f'f{n}', 'wb').write(bytes(1 << 20)); n += 1", "error"),
    limit("many_files", "n = 0\nwhile True: open(f'f{n}', 'w').close(); n += 1", "error"),
    limit("many_descriptors", "x = []\nwhile True: x.append(open('main.py'))", "error"),
    limit("many_events", "import os\nwhile True: os.eventfd(0)", "error"),
    limit("many_pollers", "import select\nx = []\nwhile True: x.append(select.epoll())", "error"),
    limit("many_mappings", "import mmap\nx = []\nwhile True: x.append(mmap.mmap(-1, 1 << 14))", "memory", "error"),
    limit("deep_folders", "import os\nwhile True: os.mkdir('d'); os.chdir('d')", "error"),
    limit("many_links", "import os\nn = 0\nwhile True: os.link('main.py', f'l{n}'); n += 1", "error"),
    limit("long_links", "import os\nn = 0\nwhile True: os.symlink('x' * 4000, f'l{n}'); n += 1", "error"),
    limit("reserved_file", "import os; os.posix_fallocate(open('f', 'w').fileno(), 0, 1 << 30)", "error"),
    limit("raise_limit", "import resource as r; r.setrlimit(r.RLIMIT_AS, (1 << 40, 1 << 40))", "error"),
    endless("endless_loop", "while True: pass"),
    endless("sleep", "import time; time.sleep(1000)"),
    endless("pause", "import signal; signal.pause()"),
    endless(
        "signals_ignored",
        "import signal\nfor s in set(signal.valid_signals()) - {9, 19, 32, 33}:\n"
        "    signal.signal(s, signal.SIG_IGN)\nwhile True: pass",
    ),
    endless("never_back_in_python", "import re; re.match('(a+)+b', 'a' * 64)"),
    endless("output_closed", "import os, time; os.close(1); os.close(2); os.close(3); time.sleep(1000)"),
    limit("stdout_flood", "while True: print('x' * 1000)", "output_limit"),
    limit("stderr_flood", "import os\nwhile True: os.write(2, b'x' * 10000)", "output_limit"),
    limit("one_line_flood", "import sys\nwhile True: sys.stdout.write('x')", "output_limit"),
]

CALLS = [
    deny("memory_file", "os.memfd_create('x')"),
    deny(
        "exec_memory_file",
        "fd = os.memfd_create('x'); os.write(fd, open('/bin/echo', 'rb').read())\n"
        "os.execve(fd, ['echo', 'ESCAPED'], {})",
    ),
    deny("terminal_input", "fcntl.ioctl(0, 0x5412, b'x')", False),
    deny("unpickle", "import pickle; assert pickle.loads(b\"cos\\nsystem\\n(S'true'\\ntR.\") == 0"),
    raw("unshare_user", 272, 97, "0x10000000", control=True),
    raw("unshare_network", 272, 97, "0x40000000"),
    raw("clone_user", 56, 220, "0x10000011", 0, 0, 0, 0),
    raw("clone3", 435, 435, "ctypes.create_string_buffer(88)", 88),
    raw("setns", 308, 268, 0, 0),
    raw("mount", 165, 40, "b'none'", "b'/tmp'", "b'tmpfs'", 0, "b''"),
    raw("unmount", 166, 39, "b'/tmp'", 2),
    raw("pivot_root", 155, 41, "b'.'", "b'.'"),
    raw("open_tree", 428, 428, -100, "b'/'", 1),
    raw("io_uring", 425, 425, 4, "ctypes.create_string_buffer(120)", control=True),
    raw("userfaultfd", 323, 282, 1),
    raw("bpf", 321, 280, 0, "ctypes.create_string_buffer(128)", 128),
    raw("keyring", 250, 219, 0, -3, 1, control=True),
    raw("add_key", 248, 217, "b'user'", "b'x'", "b'y'", 1, -3, control=True),
    raw("perf_event", 298, 241, "ctypes.create_string_buffer(128)", 0, -1, -1, 0),
    raw("shared_memory", 29, 194, 0, 4096, 0o1600),
    raw("message_queue", 68, 186, 0, 0o1600),
    raw("open_by_handle", 304, 265, -100, "ctypes.create_string_buffer(128)", 0),
    raw("forget_parent_death", 157, 167, 1, 0, 0, 0, 0, control=True),
    raw("personality", 135, 92, 0x0040000, control=True),
    raw("notify", 294, 26, 0, control=True),
    raw("posix_timer", 222, 107, 0, 0, "ctypes.create_string_buffer(8)", control=True),
    raw("set_uid", 105, 146, 0),
    raw("kernel_log", 103, 116, 10, 0, 0),
    raw("kernel_module", 175, 105, 0, 0, "b''"),
    raw("kexec", 246, 104, 0, 0, 0, 0),
    raw("landlock_again", 444, 444, 0, 0, 1),
    Probe(
        "every_other_call",
        # 335 and 336 (uretprobe, uprobe on x86_64) are let past every filter and kill a caller that is no probe.
        "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\nfor n in {*range(1024)} - {335, 336}:\n"
        "    if n not in W['allowed_calls'] and (libc.syscall(n, 0, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 1):\n"
        "        print('ESCAPED', n)",
        ("ok",),
    ),
]

SHARED = [  # counted by user or held by file, so it would be felt outside
    deny("lock_file", "fcntl.flock(open(os.__file__), fcntl.LOCK_SH | fcntl.LOCK_NB)"),
    deny("lock_description", "fcntl.fcntl(open('main.py'), 37, bytes(32))"),
    deny("lease", "fcntl.fcntl(open('main.py'), 1024, fcntl.F_RDLCK)"),
    deny("watch_folder", "fcntl.fcntl(os.open('.', 0), 1026, 1)"),
    deny("size_of_pipe", "import fcntl, os; fcntl.fcntl(1, 1031, 1 << 17)"),
    deny("owner_of_signals", "fcntl.fcntl(1, fcntl.F_SETOWN, os.getpid())"),
    deny("signal_of_pipe", "fcntl.fcntl(1, 10, 40)"),
    deny("make_pipe", "os.pipe()"),
    deny("named_pipe", "os.mkfifo('p')"),
    raw("pages_into_pipe", 278, 75, 1, 0, 0, 0, control=True),
    deny("lease_of_library", "fcntl.fcntl(open(os.__file__), 1024, 0)", False),
    deny("seal_file", "fcntl.fcntl(open('main.py'), 1033, 1)", False),
    deny("hint_of_library", "fcntl.fcntl(open(os.__file__), 1036, bytes(8))", False),
    raw("watch_all_files", 300, 262, "0x200", 0, control=True),
    raw("pin_memory", 149, 228, "ctypes.create_string_buffer(9)", 9, control=True),
    deny("drop_cache", "os.posix_fadvise(os.open(os.__file__, 0), 0, 0, 4)"),
    deny(
        "huge_pages",
        "libc = ctypes.CDLL(None, use_errno=True)\nlibc.mmap(None, 2 << 20, 3, 0x40022, -1, 0)\n"
        "if ctypes.get_errno() == 1: raise PermissionError\nprint('ESCAPED')",
    ),
    deny(
        "queued_signals",
        "signal.pthread_sigmask(signal.SIG_BLOCK, [40])\n"
        "for _ in range(1000): signal.pthread_kill(threading.get_ident(), 40)\nprint('ESCAPED')",
    ),
    deny(
        "frames",
        "import sys\nframe, seen = sys._getframe(), {}\n"
        "while frame: seen.update(frame.f_locals); frame = frame.f_back\n"
        "assert seen['spec']; print('ESCAPED', seen['spec'])",
        control=False,
    ),
]

SIGNALS = [
    deny("queue_signal", "assert ctypes.CDLL(None).sigqueue(W['victim'], 0, 0) == 0"),
    deny(
        "queue_signal_of_thread",
        "import ctypes, os, struct\ninfo = struct.pack('iii116x', 0, 0, -1)\n"
        "number = {'x86_64': 297, 'aarch64': 240}[os.uname().machine]\n"
        "assert ctypes.CDLL(None).syscall(number, W['victim'], W['victim'], 0, info) == 0",
    ),
    raw("thread_kill_alone", 200, 130, "W['victim']", 0, control=True),
    deny("signal_by_descriptor", "signal.pidfd_send_signal(os.pidfd_open(W['victim']), 0)"),
    deny("signal_of_group", "os.killpg(os.getpgrp(), 0)"),
    deny("wait_for_anyone", "os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG)", False),
    raw("signal_file", 289, 74, -1, "ctypes.create_string_buffer(8)", 8, 0, control=True),
    raw("adopt_orphans", 157, 167, 36, 1, 0, 0, 0, control=True),
    raw("become_traceable", 157, 167, 4, 1, 0, 0, 0, control=True),
    raw("stop_being_killed_first", 157, 167, 28, 0, 0, 0, 0),
    harmless(
        "stop_itself", "import signal, threading; signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)", "ok"
    ),
    harmless(
        "kill_itself", "import signal, threading; signal.pthread_kill(threading.get_ident(), signal.SIGKILL)", "ok"
    ),
]

TIMERS = [
    raw("timer_file", 283, 85, 1, 0, control=True),
    raw("adjust_clock", 159, 171, "ctypes.create_string_buffer(256)", control=True),
    raw("adjust_one_clock", 305, 266, 0, "ctypes.create_string_buffer(256)", control=True),
    raw("set_clock", 227, 112, 0, "ctypes.create_string_buffer(b'\\xff' * 16)"),
    deny("clock_of_process", "time.clock_gettime((~W['victim'] << 3) | 2)"),
    deny("wake_the_machine", "assert ctypes.CDLL(None).clock_nanosleep(8, 0, bytes(16), None) == 0", False),
    deny("cores_of_process", "os.sched_setaffinity(W['victim'], os.sched_getaffinity(0))"),
    deny("own_cores", "os.sched_setaffinity(0, os.sched_getaffinity(0))"),
    deny("scheduler", "os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))"),
    raw("disk_priority", 251, 30, 1, "W['victim']", "3 << 13", control=True),
    deny("see_cores", "os.sched_getaffinity(W['victim'])"),
    deny("see_priority", "os.getpriority(os.PRIO_PROCESS, W['victim'])"),
    deny("see_group", "os.getpgid(W['victim'])"),
    deny("see_session", "os.getsid(W['victim'])"),
    deny("see_limits", "import resource as r; r.prlimit(W['victim'], r.RLIMIT_NOFILE)"),
    deny("set_limits", "import resource as r; r.prlimit(W['victim'], r.RLIMIT_CORE, (0, 0))"),
    raw("robust_futexes", 274, 100, "W['victim']", "ctypes.create_string_buffer(8)", "bytes(8)", control=True),
]

KEYRINGS = [
    raw("new_session_keyring", 250, 219, 1, 0, control=True),
    raw("users_keyring", 250, 219, 6, -4, 0, 0, control=True),
    raw("link_keyrings", 250, 219, 8, -4, -5),
    raw("request_key", 249, 218, "b'user'", "b'x'", 0, -3),
]

NAMESPACES = [
    raw("unshare_mounts", 272, 97, "0x10020000", control=True),
    raw("unshare_processes", 272, 97, "0x30000000", control=True),
    raw("unshare_ipc_and_name", 272, 97, "0x1C000000", control=True),
    raw("unshare_time", 272, 97, "0x10000080", control=True),
    raw("unshare_cgroup", 272, 97, "0x12000000", control=True),
    raw("unshare_files", 272, 97, "0x200", control=True),
    raw("clone3_user", 435, 435, "b'\\x00\\x00\\x00\\x10' + bytes(84)", 88),
    deny(
        "enter_victim",
        "fd = os.open(f'/proc/{W[\"victim\"]}/ns/mnt', 0)\nassert ctypes.CDLL(None).setns(fd, 0) == 0",
        False,
    ),
    raw("new_proc", 430, 430, "b'proc'", 0),
    raw("new_proc_the_old_way", 165, 40, "b'proc'", "b'/tmp'", "b'proc'", 0, 0),
    raw("move_mount", 429, 429, -100, "b'/tmp'", -100, "b'/dev'", 0),
    raw("writable_root", 442, 442, -100, "b'/'", 0, "(1).to_bytes(16, 'big') + bytes(16)", 32),
    raw("list_mounts", 458, 458, "b'\\x18' + bytes(7) + b'\\xff' * 8 + bytes(8)", "bytes(800)", 100, 0, control=True),
    deny("own_root", "assert ctypes.CDLL(None).chroot(b'/tmp') == 0", False),
    deny("set_groups", "os.setgroups([0])", False),
    deny("be_another", "os.setresuid(1, 1, 1)", False),
]

PROCFS = [
    *(
        read(f"proc_{name.replace('/', '_')}", f"/proc/{name}")
        for name in (
            "mounts loadavg locks net/tcp keys key-users sysvipc/shm self/status self/uid_map self/cgroup self/fd "
            "self/cmdline thread-self/comm sys/fs/pipe-user-pages-soft sys/kernel/core_pattern"
        ).split()
    ),
    *(read(f"victim_{name}", f"/proc/{{W['victim']}}/{name}") for name in ("cmdline", "maps", "fd", "task", "syscall")),
    read("root_of_victim", "/proc/{W['victim']}/root{W['file']}"),
    deny("comm_of_victim", "open(f'/proc/{W[\"victim\"]}/comm', 'w').write('sleep')"),
    deny("oom_score_of_victim", "open(f'/proc/{W[\"victim\"]}/oom_score_adj', 'w').write('0')"),
    deny("memory_of_victim", "open(f'/proc/{W[\"victim\"]}/mem', 'rb')"),
    deny("own_memory", "open('/proc/self/mem', 'rb+')"),
    deny("sysrq", "open('/proc/sysrq-trigger', 'w')", False),
    deny("reopen_output", "open('/dev/stdout', 'w').write('ESCAPED')"),
    *(read(f"folder_{name}", f"/{name}") for name in ("dev/shm", "sys/fs", "run", "var", "home")),
]

ORDINARY = [
    harmless("arithmetic", "print(sum(range(10)))", "ok"),
    harmless("libraries", "import numpy, sympy; print(sympy.factor('x**2-1'), numpy.linalg.det(numpy.eye(99)))", "ok"),
    harmless(
        "standard_library",
        "import asyncio, concurrent.futures, decimal, fractions, itertools, json, random, re, sqlite3, tempfile",
        "ok",
    ),
    harmless(
        "own_files",
        "import os, shutil; os.mkdir('d'); open('d/f', 'w').write('x'); shutil.copytree('d', 'e'); shutil.rmtree('d')",
        "ok",
    ),
    harmless(
        "database",
        "import sqlite3\nfor mode in ('delete', 'wal'):\n"
        "    with sqlite3.connect(f'{mode}.db') as base, sqlite3.connect(f'{mode}.db') as other:\n"
        "        base.execute(f'pragma journal_mode={mode}')\n"
        "        base.execute('create table t (a)'); base.execute('insert into t values (7)'); base.commit()\n"
        "        assert other.execute('select a from t').fetchall() == [(7,)]",
        "ok",
    ),
    harmless("temporary_file", "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x' * 999)", "ok"),
    harmless(
        "alarm",
        "import signal\ndef late(*_): raise TimeoutError\n"
        "signal.signal(14, late)\ntry:\n  signal.setitimer(0, .01)\n  while True: pass\nexcept TimeoutError: pass",
        "ok",
    ),
    harmless("dev_null", "open('/dev/null', 'w').write('x')", "ok"),
    harmless("exit", "exit()", "ok"),
    harmless("exit_code", "import sys; sys.exit(120)", "error"),
    harmless("os_exit", "import os; os._exit(7)", "error"),
    harmless("system_exit", "raise SystemExit('told so')", "error"),
    harmless("interrupt", "raise KeyboardInterrupt", "error"),
    harmless("abort", "import os; os.abort()", "error"),
    harmless("crash", "import ctypes; ctypes.string_at(0)", "error"),
    harmless("input", "input()", "error"),
    harmless("breakpoint", "breakpoint()", "error", "ok"),
    harmless("syntax_error", "def", "error"),
    harmless("null_byte", "x = '\0'", "error"),
    harmless("surrogate", "x = '\ud800'", "error"),
    harmless("print_surrogate", "print('\\ud800')", "ok"),
    harmless("binary_output", "import os; os.write(1, bytes(range(256)))", "ok"),
    harmless("terminal_codes", "print('\\x1b]0;title\\x07\\x1b[2J')", "ok"),
    harmless("forged_report", "import os\ntry: os.write(3, b'ready\\nmemory')\nexcept OSError: pass", "ok"),
    harmless(
        "full_report",
        "import os\nos.set_blocking(3, False)\ntry:\n  while True: os.write(3, b'x' * 4096)\nexcept OSError: pass",
        "ok",
    ),
    harmless("forged_verdict", "print('VERDICT: True')", "ok"),
    harmless("broken_hook", "import sys; sys.excepthook = None; sys.stderr = None; 1 / 0", "error"),
    harmless("broken_exit", "import atexit, os; atexit.register(os._exit, 0); 1 / 0", "ok"),
    harmless("broken_builtins", "import builtins; builtins.__dict__.clear(); 1 / 0", "error"),
    harmless("set_user_bit", "import os; os.chmod('main.py', 0o6755)", "ok"),
]

PROBES = [*FILES, *SECRETS, *NETWORK, *PROCESSES, *LIMITS, *CALLS, *SHARED]
PROBES += [*SIGNALS, *TIMERS, *KEYRINGS, *NAMESPACES, *PROCFS, *ORDINARY]

# What a workspace differs in from a sandbox (core/sandbox/workspace). Its commands start others and talk to them,
# inside.
_PROGRAMS = "a workspace starts programs and threads"
_SIGNALS = "a command may signal itself and what it started"
_STREAMS = "programs of a workspace are connected by pipes"
_REPORT = "a workspace has no pipe for reports"
ALLOWED_IN_A_WORKSPACE = {
    **dict.fromkeys(("fork", "thread", "thread_bomb", "subprocess", "shell", "exec", "exec_loader"), _PROGRAMS),
    **dict.fromkeys(("spawn", "pool", "orphan", "unpickle"), _PROGRAMS),
    **dict.fromkeys(("kill_group", "kill_everything", "signal_of_group", "stop_itself", "kill_itself"), _SIGNALS),
    **dict.fromkeys(("socket_pair", "make_pipe"), _STREAMS),
    **dict.fromkeys(("output_closed", "full_report"), _REPORT),
    "print_surrogate": "a workspace runs Python as it is, which refuses half a character",
}
"""Maps the name of a probe that makes no sense for a workspace to the reason."""
WORKSPACE_PROBES = [probe for probe in PROBES if probe.name not in ALLOWED_IN_A_WORKSPACE]
WORKSPACE_SAMPLE = (
    "read_home", "own_proc", "write_library", "any_environment", "tcp", "kill", "fork_bomb", "full_folder",
    "stdout_flood", "every_other_call", "queued_signals", "libraries",
)  # fmt: skip
"""Names what a default run takes of them."""
