"""Keeps several servers running: starts them together, waits for all, and starts one that ends early again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from core.policy.server_process import ServerError, start_server, wait_until_healthy

POLL_S, RESTART_S = 0.5, 2.0


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
