"""Start the services that a run asks, run a command once each of them answers, and stop what was started.

    python -m scripts.services FILE.yaml --logs DIR -- COMMAND ...

FILE.yaml says, by name, how each service is started; `{port}`, `{host}` and `{python}` stand for what is meant:

    retrieval:
      command: "{python} -m core.tools.retrieval --corpus corpus.jsonl --host {host} --port {port}"
      port: 8000            # left out: a free one
      gpus: [4]             # left out: as this process sees them

They start together. Every address is written to DIR/addresses.yaml (name -> URL) before COMMAND runs, whose exit status
is ours. A service that ends meanwhile is started again at its address. Services and COMMAND end with this process, even
if it is killed; nothing else is ever stopped.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import socket
import string
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import yaml
from pydantic import Field, PositiveFloat, TypeAdapter, ValidationError, field_validator

from core.config import RecipeError, Section
from core.config.load import as_recipe_error, read_yaml
from core.policy.serving import ServerError, free_port, kept, server_process, wait_until_healthy
from core.runs.files import write_text

ADDRESSES = "addresses.yaml"
PLACES = ("python", "host", "port")
"""What `{}` in a command may stand for."""
POLL_S, RESTART_S = 0.5, 2.0


class Service(Section):
    command: str
    """Words as a shell reads them; no shell runs them."""
    host: str = "127.0.0.1"
    port: int | None = Field(None, ge=1, le=65535)
    gpus: tuple[int, ...] | None = None
    start_s: PositiveFloat = 1800.0
    """What it may take until `/health` answers."""

    @field_validator("command")
    @classmethod
    def _can_be_run(cls, command: str) -> str:
        if not shlex.split(command):
            raise ValueError("names no program")
        for _, name, _, _ in string.Formatter().parse(command):
            if name is not None and name not in PLACES:
                known = ", ".join(f"{{{place}}}" for place in PLACES)
                raise ValueError(f"unknown {{{name}}}; there are {known}; write {{{{ for a brace itself")
        return command


Services = Annotated[dict[str, Service], Field(min_length=1)]


def read_services(path: Path) -> dict[str, Service]:
    """Raises RecipeError naming file and key."""
    try:
        return TypeAdapter(Services).validate_python(read_yaml(path))
    except ValidationError as error:
        raise as_recipe_error(error, Service, path) from error


@contextmanager
def running(services: dict[str, Service], logs: Path) -> Iterator[dict[str, str]]:
    """Name -> URL of services that answer, and are kept up; they are gone afterwards. Raises ServerError."""
    addresses: dict[str, str] = {}
    first: dict[Future[None], str] = {}
    leaving = threading.Event()
    with ThreadPoolExecutor(len(services)) as pool:
        try:
            for name, service in services.items():
                if service.port and _answers(service.host, service.port):
                    raise ServerError(
                        f"{name}: somebody listens at port {service.port} already: end it, or set another"
                    )
                port = service.port or free_port(service.host)
                if (address := f"http://{service.host}:{port}") in addresses.values():
                    raise ServerError(f"{name}: another service of the file has port {port}; set another")
                addresses[name] = address
                answered: Future[None] = Future()
                first[answered] = name
                words, log = _words(service, port), logs / f"{name}.log"
                pool.submit(_keep_up, name, words, addresses[name], service.start_s, log, answered, leaving)
            for done in as_completed(first):
                done.result()
                print(f"service {first[done]} answers at {addresses[first[done]]}", flush=True)
            yield addresses
        finally:
            leaving.set()


def _keep_up(
    name: str, words: list[str], url: str, start_s: float, log: Path, answered: Future[None], leaving: threading.Event
) -> None:
    """One service, from its start until `leaving`; `answered` is settled by the first start, whose failure is final."""
    while True:
        try:
            with server_process(words, log) as keeper:
                wait_until_healthy(url, lambda: keeper.poll() is None and not leaving.is_set(), start_s, log)
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


def _answers(host: str, port: int) -> bool:
    """Another server at our port would be taken for ours."""
    try:
        with socket.create_connection((host, port), timeout=5.0):
            return True
    except OSError:
        return False


def _words(service: Service, port: int) -> list[str]:
    words = [word.format(python=sys.executable, host=service.host, port=port) for word in shlex.split(service.command)]
    if service.gpus is None:
        return words
    return ["env", f"CUDA_VISIBLE_DEVICES={','.join(map(str, service.gpus))}", *words]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.services", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE.yaml")
    parser.add_argument("--logs", type=Path, required=True, metavar="DIR", help="of the services, and their addresses")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    options = parser.parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _leave)
    try:
        with running(read_services(options.file), options.logs) as addresses:
            write_text(options.logs / ADDRESSES, yaml.safe_dump(addresses))
            with kept(options.command) as keeper:
                return keeper.wait()
    except (RecipeError, ServerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
