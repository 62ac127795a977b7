"""Runs servers as child processes: starts one on a free port, waits for it, and stops it in every case.

    with serve("sglang", "Qwen/Qwen2.5-7B-Instruct", log=Path("server.log"), args=["--tp", "2"]) as url: ...

A keeper process stands between the server and its starter; the keeper is this file run as a script. It gives the server
a process group and ends the whole group when its own standard input closes. That happens when `serve` is left, and also
when the starter is killed. `keep_servers` keeps several running, and starts one that ends early again.
"""

from __future__ import annotations

import ctypes
import functools
import http.client
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal
from urllib.parse import urlsplit

Backend = Literal["sglang", "vllm", "embedded"]

VLLM_ARGS = ("--enable-scale-out", "--logprobs-mode", "processed_logprobs", "--enable-prompt-tokens-details")
"""Open the endpoint that core/policy/vllm.py calls, with the log-probs that it promises."""
STOP_S = 15.0
"""Limits the seconds that a server may take to end by itself before it is killed."""
TAIL_LINES = 20
POLL_S, RESTART_S = 0.5, 2.0
PR_SET_PDEATHSIG = 1


class ServerError(RuntimeError):
    """Reports a server that does not answer; the message says which one and what to do."""


@contextmanager
def serve(
    backend: Backend,
    model: str,
    *,
    log: Path,
    args: Sequence[str] = (),
    python: str = sys.executable,
    start_s: float = 1800.0,
    environment: Mapping[str, str] | None = None,
) -> Iterator[str]:
    """Yield the URL of a server that holds `model` (folder or hub id) and answers `/health`; end it afterwards.

    `args` go to the server unchanged; `python` is the interpreter that has the server installed; `log` gets its output;
    `environment` is added to ours, such as CUDA_VISIBLE_DEVICES.
    Entering blocks until the server is ready, for at most `start_s` seconds (a hub id is downloaded first).

    Raises:
        ServerError: the server ended, or was not ready in time; the message ends with the last lines of its log.
    """
    host = "127.0.0.1"
    port = find_free_port(host)
    command = make_server_command(backend, model, host=host, port=port, args=args, python=python)
    with run_server(command, f"http://{host}:{port}", log=log, start_s=start_s, environment=environment) as url:
        yield url


@contextmanager
def run_server(
    command: Sequence[str], url: str, *, log: Path, start_s: float, environment: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yield `url` while `command` serves it. Like `serve`, but the server may be any that answers `/health`.

    Raises:
        ServerError: the server ended, or was not ready in time.
    """
    if find_health_problem(url) is None:
        raise ServerError(f"another server answers at {url} already: end it, or choose another port")
    with start_server(command, log, environment) as keeper:
        wait_until_healthy(url, lambda: keeper.poll() is None, start_s, log)
        yield url


@contextmanager
def start_server(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the keeper of a started server, which need not answer yet; end both afterwards. `log` grows."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output, start_keeper(command, output, environment) as keeper:
        yield keeper


@contextmanager
def start_keeper(
    command: Sequence[str], output: IO[bytes] | None = None, environment: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Yield the keeper of a process that ends when we end or are killed. It exits with the status of `command`."""
    keeper = subprocess.Popen(
        [sys.executable, "-P", __file__, *command],
        stdin=subprocess.PIPE,
        stdout=output,
        stderr=None if output is None else subprocess.STDOUT,
        start_new_session=True,
        env={**os.environ, **environment} if environment else None,
    )
    assert keeper.stdin is not None
    try:
        yield keeper
    finally:
        keeper.stdin.close()
        keeper.wait()


def make_server_command(
    backend: Backend, model: str, *, host: str, port: int, args: Sequence[str] = (), python: str = sys.executable
) -> list[str]:
    """Return the command line of a server; `args` come last, so that they overrule."""
    program = {
        "sglang": ["-m", "sglang.launch_server", "--model-path", model],
        "vllm": ["-m", "vllm.entrypoints.openai.api_server", "--model", model, *VLLM_ARGS],
        "embedded": ["-m", "core.engine.server", "--model", model],
    }[backend]
    return [python, *program, "--host", host, "--port", str(port), *args]


def find_free_port(host: str) -> int:
    """Return a port that nobody has, below those that the kernel gives to others before the server has it."""
    for _ in range(100):
        with suppress(OSError), socket.create_server((host, port := 20_000 + secrets.randbelow(12_000))):
            return port
    raise ServerError(f"no free port at {host}: tried 100 from 20000 to 31999")


def wait_until_healthy(url: str, alive: Callable[[], bool], start_s: float, log: Path) -> None:
    """Raise ServerError if the server is not `alive` any more or does not answer `/health` within `start_s` seconds."""
    deadline = time.monotonic() + start_s
    while find_health_problem(url) or not alive():  # alive last: if ours has ended, it was another server that answered
        if not alive():
            raise ServerError(f"the server ended before it was ready. {_show_tail(log)}")
        if time.monotonic() > deadline:
            raise ServerError(f"the server was not ready after {start_s:g} s. {_show_tail(log)}")
        time.sleep(0.2)


def open_url(url: str, limit_s: float, headers: Mapping[str, str] | None = None) -> Any:
    """Send a GET request to a server, past any proxy: that would look on its own machine."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    return direct.open(urllib.request.Request(url, headers=dict(headers or {})), timeout=limit_s)


def find_health_problem(url: str, limit_s: float = 10.0) -> str | None:
    """Return what is wrong with the server at `url`, as `find_url_problem` of its /health."""
    return find_url_problem(f"{url}/health", limit_s)


def find_url_problem(url: str, limit_s: float = 10.0) -> str | None:
    """Return what is wrong with the server of `url`; None if it answers a GET within `limit_s` seconds."""
    try:
        with open_url(url, limit_s):  # an HTTP status of 400 or more raises
            return None
    except urllib.error.HTTPError as error:
        return f"GET {urlsplit(url).path} gave HTTP {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"no answer ({type(error).__name__}: {error})"


@dataclass(frozen=True, slots=True)
class ServerCommand:
    """Says how a server is started and where it answers `/health`, `start_s` seconds later at most."""

    words: Sequence[str]
    url: str
    start_s: float
    environment: Mapping[str, str]


@contextmanager
def keep_servers(commands: Mapping[str, ServerCommand], logs: Path) -> Iterator[None]:
    """Run a block while the servers run; it begins once all answer. They write to `logs`/NAME.log.

    A server that ends early is started again with the same command. All end with the block, or with this process.

    Raises:
        ServerError: a server does not start.
    """
    starts: dict[Future[None], str] = {}
    leaving = threading.Event()
    with ThreadPoolExecutor(len(commands)) as pool:
        try:
            for name, command in commands.items():
                answered: Future[None] = Future()
                starts[answered] = name
                pool.submit(_keep_up, name, command, logs / f"{name}.log", answered, leaving)
            for done in as_completed(starts):
                done.result()
                print(f"service {starts[done]} answers at {commands[starts[done]].url}", flush=True)
            yield
        finally:
            leaving.set()


def _keep_up(name: str, command: ServerCommand, log: Path, answered: Future[None], leaving: threading.Event) -> None:
    """Keep one server running until `leaving`. The first start settles `answered`; if it fails, there is no other."""
    while True:
        try:
            with start_server(command.words, log, command.environment) as keeper:
                wait_until_healthy(
                    command.url, lambda: keeper.poll() is None and not leaving.is_set(), command.start_s, log
                )
                if answered.done():
                    print(f"service {name} answers again", file=sys.stderr, flush=True)
                else:
                    answered.set_result(None)
                while keeper.poll() is None and not leaving.wait(POLL_S):
                    pass
        except (ServerError, OSError) as error:
            if not answered.done():
                answered.set_exception(error)
                return
        if leaving.wait(RESTART_S):
            return
        print(f"service {name} has ended and is started again (see {log})", file=sys.stderr, flush=True)


def _show_tail(log: Path) -> str:
    with log.open(encoding="utf-8", errors="replace") as file:
        lines = [line.rstrip("\n") for line in deque(file, TAIL_LINES)]
    hint = ""
    for module, name in {"sglang": "SGLang", "vllm": "vLLM"}.items():
        if any("No module named" in line and module in line for line in lines):
            fix = "name one that has with --serve-python PYTHON, or give --serve embedded"
            hint = f"\nThis Python has no {name}: {fix} (in a recipe inference.replica_python, inference.engine)."
    return "\n  ".join([f"The last lines of {log}:", *lines]) + hint


def run_keeper(command: Sequence[str]) -> int:
    """Run `command` in a process group and return its status. End the group when it ends or standard input closes."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=functools.partial(_die_with, os.getpid())
        )
    except OSError as error:
        sys.exit(f"{command[0]}: {error}")
    signal.signal(signal.SIGTERM, lambda *_: _signal_group(process.pid, signal.SIGTERM))
    threading.Thread(target=_stop_at_end_of_input, args=(process.pid,), daemon=True).start()
    status = process.wait()
    if status:
        print(f"{command[0]} ended with status {status}", file=sys.stderr, flush=True)
    _signal_group(process.pid, signal.SIGKILL)
    return status if status >= 0 else 128 - status


def _die_with(keeper: int) -> None:
    """Let the kernel end this process when its keeper is killed, which can then end nobody itself."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)


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
    sys.exit(run_keeper(sys.argv[1:]))
