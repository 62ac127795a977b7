"""The program that starts workspaces by forking: a Python that has loaded what they run, so that none has to start.

The host sends its programs first: `core/tools/sandbox/inside.py`, `inside.py`, and this one; all run in one set of
names. Then each message on the control socket brings the descriptors of one workspace: its stdin and stdout, a socket
that is open as long as it lives, and maybe the channel of its listener. The child keeps those alone, and locks itself
up as `inside.py` says. This program never sees what a workspace is told, has one thread, and ends with the host.

It has no parent-death signal, which would come with the end of the thread that started it. It sees that its socket was
closed, and its children have the signal.
"""

from __future__ import annotations

import _socket
import importlib  # noqa: F401 (for code that runs in workspaces, as json)
import json  # noqa: F401
import os
import resource
import select
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

    from core.tools.workspace.inside import main

NUMBER = "=i"
MOST_SENT = 3
CHANNEL = 3
"""Is the descriptor of the listener's channel in a workspace."""
DESCRIPTORS = 1 << 16
"""Limits the descriptors of this program, which a fork closes."""


def serve(control: int) -> None:
    """Fork a workspace for every message until the host ends. The socket of one that has ended is closed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))  # each workspace takes two descriptors
    host = _socket.socket(fileno=control)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}
    while True:
        for ready, _ in poll.poll():
            if ready != control:
                pid, life = running.pop(ready)
                poll.unregister(ready)
                os.waitpid(pid, 0)
                os.close(ready)
                os.close(life)
                continue
            message, sent, _, _ = host.recvmsg(1, _socket.CMSG_SPACE(struct.calcsize(NUMBER) * MOST_SENT))
            if not message:
                return
            ends = [end for _, _, data in sent for (end,) in struct.iter_unpack(NUMBER, data)]
            try:
                pid, exited = fork_workspace(ends)
            except OSError as error:  # no room for another process; the host sees that its descriptors are closed
                os.write(2, f"no workspace could be forked: {error}\n".encode())
            else:
                poll.register(exited, select.POLLIN)
                running[exited] = pid, ends.pop(1)
            for end in ends:
                os.close(end)


def fork_workspace(ends: list[int]) -> tuple[int, int]:
    """Fork a workspace; return its process and a descriptor that tells its end."""
    if len(ends) < 2:
        raise OSError("the kernel has dropped descriptors: this process has as many as it may")
    pid = os.fork()
    if pid == 0:
        become_workspace(*ends)
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        raise


def become_workspace(stream: int, life: int, *channel: int) -> NoReturn:
    """Turn this child into the program of a workspace."""
    try:
        os.setsid()
        os.write(life, struct.pack(NUMBER, os.getpid()))
        kept = (stream, stream, os.open("/dev/null", os.O_WRONLY), *channel)
        for number, end in enumerate(kept):
            os.dup2(end, number)
        os.closerange(len(kept), DESCRIPTORS)
        main()
    finally:
        os._exit(1)


if __name__ == "__main__":
    serve(int(sys.argv[1]))
