"""A model server as a child process: started on a free port, awaited, and stopped whatever becomes of its starter.

    with serve("sglang", "Qwen/Qwen2.5-7B-Instruct", log=Path("server.log"), args=["--tp", "2"]) as url: ...

Between the two stands a keeper, which is this file run as a script. It gives the server a process group and ends all of
it when its own standard input closes: that happens when `serve` is left, and also when the starter is killed.
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Literal

Backend = Literal["sglang", "embedded"]

STOP_S = 15.0
"""What a server has to end by itself before it is killed."""
TAIL_LINES = 20


class ServerError(RuntimeError):
    """A server that does not answer; the message says where and what to do."""


@contextmanager
def serve(
    backend: Backend,
    model: str,
    *,
    log: Path,
    args: Sequence[str] = (),
    python: str = sys.executable,
    host: str = "127.0.0.1",
    start_s: float = 1800.0,
) -> Iterator[str]:
    """The URL of a server that holds `model` (folder or hub id) and answers `/health`; it is gone afterwards.

    `args` go to the server as they are; `python` is the interpreter that has it; `log` gets what it prints. Entering
    blocks until the server is ready, for at most `start_s` seconds (a hub id is downloaded first).

    Raises:
        ServerError: the server ended, or was not ready in time; the message ends with the last lines of its log.
    """
    port = free_port(host)
    command = server_command(backend, model, host=host, port=port, args=args, python=python)
    with run_server(command, f"http://{host}:{port}", log=log, start_s=start_s) as url:
        yield url


@contextmanager
def run_server(command: Sequence[str], url: str, *, log: Path, start_s: float) -> Iterator[str]:
    """`url` while `command` serves it; as `serve`, for a server of any kind that answers `/health`.

    Raises:
        ServerError: as `serve`.
    """
    with server_process(command, log) as keeper:
        wait_until_healthy(url, lambda: keeper.poll() is None, start_s, log)
        yield url


@contextmanager
def server_process(command: Sequence[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The keeper of a server that was started and need not answer yet; both are gone afterwards. `log` grows."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output, kept(command, output) as keeper:
        yield keeper


@contextmanager
def kept(command: Sequence[str], output: IO[bytes] | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """The keeper of a process that ends with us, however we end; its status is that of `command`."""
    keeper = subprocess.Popen(
        [sys.executable, "-P", __file__, *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
    )
    assert keeper.stdin is not None
    try:
        yield keeper
    finally:
        keeper.stdin.close()
        keeper.wait()


def server_command(
    backend: Backend, model: str, *, host: str, port: int, args: Sequence[str] = (), python: str = sys.executable
) -> list[str]:
    """The command line of a server; `args` come last, so that they overrule."""
    program = {
        "sglang": ["-m", "sglang.launch_server", "--model-path", model],
        "embedded": ["-m", "core.engine.server", "--model", model],
    }[backend]
    return [python, *program, "--host", host, "--port", str(port), *args]


def free_port(host: str) -> int:
    with socket.create_server((host, 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_until_healthy(url: str, alive: Callable[[], bool], start_s: float, log: Path) -> None:
    """Raises ServerError: the server is not `alive` any more, or does not answer `/health` within `start_s` seconds."""
    deadline = time.monotonic() + start_s
    while not _healthy(url):
        if not alive():
            raise ServerError(f"the server ended before it was ready. {_tail(log)}")
        if time.monotonic() > deadline:
            raise ServerError(f"the server was not ready after {start_s:g} s. {_tail(log)}")
        time.sleep(0.2)


def _healthy(url: str) -> bool:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy would look on its own machine
    try:
        with direct.open(f"{url}/health", timeout=10.0) as response:
            return bool(response.status == 200)
    except (OSError, http.client.HTTPException):
        return False


def _tail(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL_LINES:]
    hint = ""
    if any("No module named" in line and "sglang" in line for line in lines):
        hint = "\nThis Python has no SGLang: name one that has with --serve-python PYTHON, or give --serve embedded."
    return "\n  ".join([f"The last lines of {log}:", *lines]) + hint


def keep(command: Sequence[str]) -> int:
    """Run `command` in a process group; when it ends, or standard input closes, end all of the group. Its status."""
    try:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
    except OSError as error:
        sys.exit(f"{command[0]}: {error}")
    signal.signal(signal.SIGTERM, lambda *_: _signal_group(process.pid, signal.SIGTERM))
    threading.Thread(target=_stop_at_end_of_input, args=(process.pid,), daemon=True).start()
    status = process.wait()
    if status:
        print(f"{command[0]} ended with status {status}", file=sys.stderr, flush=True)
    _signal_group(process.pid, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _stop_at_end_of_input(group: int) -> None:
    while os.read(0, 1):  # a lock of sys.stdin held here would break our own exit
        pass
    _signal_group(group, signal.SIGTERM)
    time.sleep(STOP_S)
    _signal_group(group, signal.SIGKILL)


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


if __name__ == "__main__":
    sys.exit(keep(sys.argv[1:]))
