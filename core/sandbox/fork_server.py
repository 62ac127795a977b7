"""The program that starts others by forking: a Python that has loaded what they run, so that none has to start.

The host sends the programs first: `inside.py`, for a workspace also those of `core/sandbox/workspace`, and then this
one; all run in one set of names. Then each message on the control socket brings the descriptors of one child: a socket
that is open as long as it lives, and those that it has as 0, 1, 2 and so on. The child keeps these alone, forgets the
server, and goes on with `main`. This program never sees what a child is told, has one thread, and ends with the host.

It has no parent-death signal, which would come with the end of the thread that started it. It sees that its socket was
closed, and its children have the signal.
"""

from __future__ import annotations

import _socket
import errno
import gc
import os
import resource
import select
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from core.sandbox.inside import die_with_parent, main

NUMBER = "=i"
MESSAGE = "=Bi"
"""Lays out a message of a child's socket: one of these events, and its number."""
STARTED, ENDED, FAILED = range(3)
"""The child tells its process. This program tells its exit status (wait(2)) or else an errno, and closes the socket."""
MOST_SENT = 5
DESCRIPTORS = 1 << 16
"""Limits the descriptors of this program, which a fork closes."""


def serve(control: int) -> bool:
    """Fork for every message until the host ends. Return whether this process is a fork.

    A fork returns, so that its code finds no frame of the server, and nothing that one held.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))  # each child takes two descriptors
    host = _socket.socket(fileno=control)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}
    while True:
        for ready, _ in poll.poll():
            if ready != control:
                pid, life = running.pop(ready)
                poll.unregister(ready)
                os.close(ready)
                _, status = os.waitpid(pid, 0)
                tell(life, ENDED, status)
                os.close(life)
                continue
            message, sent, flags, _ = host.recvmsg(1, _socket.CMSG_SPACE(struct.calcsize(NUMBER) * MOST_SENT))
            if not message:
                return False
            ends = [end for _, _, data in sent for (end,) in struct.iter_unpack(NUMBER, data)]
            try:
                if flags & _socket.MSG_CTRUNC:
                    raise OSError(errno.EMFILE, "the kernel has dropped descriptors")
                pid, exited = fork(ends)
            except OSError as error:
                if ends:
                    tell(ends[0], FAILED, error.errno or errno.EAGAIN)
            else:
                if pid == 0:
                    host.detach()  # its number is another descriptor's now
                    return True
                poll.register(exited, select.POLLIN)
                running[exited] = pid, ends.pop(0)
            for end in ends:
                os.close(end)


def tell(life: int, event: int, number: int) -> None:
    try:  # noqa: SIM105 (importing contextlib takes longer than a fork)
        os.write(life, struct.pack(MESSAGE, event, number))
    except OSError:  # the host does not wait for it any more
        pass


def fork(ends: list[int]) -> tuple[int, int]:
    """Fork a child. Return its process and a descriptor that tells its end; in the child the process is 0."""
    server = os.getpid()
    pid = os.fork()
    if pid == 0:
        become_child(server, *ends)
        return 0, 0
    try:
        return pid, os.pidfd_open(pid)
    except OSError:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        raise


def become_child(server: int, life: int, *kept: int) -> None:
    """Leave the server: take the descriptors `kept` as 0, 1, 2 and so on, and no other one."""
    try:
        die_with_parent()
        if os.getppid() != server:
            os._exit(1)
        os.setsid()
        os.write(life, struct.pack(MESSAGE, STARTED, os.getpid()))
        for number, end in enumerate(kept):
            os.dup2(end, number, inheritable=number < 3)
        os.closerange(len(kept), DESCRIPTORS)
    except BaseException:  # such as a host that has given up
        os._exit(1)


if __name__ == "__main__":
    compile("", "", "exec")  # makes what Python needs for the first time
    gc.freeze()  # the end of a fork looks at no object of the server, or the kernel would copy their pages
    if serve(int(sys.argv[1])):
        sys.exit(main())
