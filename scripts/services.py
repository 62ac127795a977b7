"""Start the services that a run asks, run a command once each of them answers, and stop what was started.

    python -m scripts.services FILE.yaml --logs DIR -- COMMAND ...

FILE.yaml says, by name, how each service is started; `{port}`, `{host}` and `{python}` stand for what is meant:

    retrieval:
      command: "{python} -m core.tools.retrieval --corpus corpus.jsonl --host {host} --port {port}"
      port: 8000            # left out: a free one
      gpus: [4]             # left out: as this process sees them

They start together. Every address is written to DIR/addresses.yaml (name -> URL) before COMMAND runs, whose exit status
is ours. Services end with this process, even if it is killed; nothing else is ever stopped.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import yaml
from pydantic import Field, PositiveFloat, TypeAdapter, ValidationError

from core.config import RecipeError, Section
from core.policy.serving import ServerError, free_port, server_process, wait_until_healthy
from core.report.files import write_text

ADDRESSES = "addresses.yaml"


class Service(Section):
    command: str
    """Words as a shell reads them; no shell runs them."""
    host: str = "127.0.0.1"
    port: int | None = Field(None, ge=1, le=65535)
    gpus: tuple[int, ...] | None = None
    start_s: PositiveFloat = 1800.0
    """What it may take until `/health` answers."""


Services = Annotated[dict[str, Service], Field(min_length=1)]


def read_services(path: Path) -> dict[str, Service]:
    """Raises RecipeError naming file and key."""
    try:
        return TypeAdapter(Services).validate_python(yaml.safe_load(path.read_text()))
    except (OSError, yaml.YAMLError) as error:
        raise RecipeError(f"{path}: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        known = ", ".join(Service.model_fields)
        raise RecipeError(
            f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}; a service has: {known}"
        ) from error


@contextmanager
def running(services: dict[str, Service], logs: Path) -> Iterator[dict[str, str]]:
    """Name -> URL of services that answer; they are gone afterwards. Raises ServerError."""
    addresses: dict[str, str] = {}
    waiting: dict[Future[None], str] = {}
    # The processes end first, so that the first failure, or our own end, also ends the waiting for the others.
    with ThreadPoolExecutor(len(services)) as pool, ExitStack() as stack:
        for name, service in services.items():
            if service.port and _answers(service.host, service.port):
                raise ServerError(f"{name}: somebody listens at port {service.port} already; end it, or set another")
            port = service.port or free_port(service.host)
            url, log = f"http://{service.host}:{port}", logs / f"{name}.log"
            keeper = stack.enter_context(server_process(_words(service, port), log))
            waiting[pool.submit(wait_until_healthy, url, keeper, service.start_s, log)] = name
            addresses[name] = url
        for done in as_completed(waiting):
            done.result()
            print(f"service {waiting[done]} answers at {addresses[waiting[done]]}", flush=True)
        yield addresses


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
    signal.signal(signal.SIGTERM, _leave)
    try:
        with running(read_services(options.file), options.logs) as addresses:
            write_text(options.logs / ADDRESSES, yaml.safe_dump(addresses))
            return _run(options.command)
    except (RecipeError, ServerError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def _run(command: Sequence[str]) -> int:
    """Its exit status; whatever it started ends with us."""
    with subprocess.Popen(command, process_group=0) as process:
        try:
            return process.wait()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)


def _leave(number: int, frame: FrameType | None) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
