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
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType

import yaml
from pydantic import Field, PositiveFloat, TypeAdapter, ValidationError

from core.config import RecipeError, Section
from core.policy.serving import ServerError, free_port, run_server
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


def read_services(path: Path) -> dict[str, Service]:
    """Raises RecipeError naming file and key."""
    try:
        return TypeAdapter(dict[str, Service]).validate_python(yaml.safe_load(path.read_text()))
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

    def start(name: str, service: Service) -> tuple[str, str]:
        port = service.port or free_port(service.host)
        words = [
            word.format(python=sys.executable, host=service.host, port=port) for word in shlex.split(service.command)
        ]
        if service.gpus is not None:
            words = ["env", f"CUDA_VISIBLE_DEVICES={','.join(map(str, service.gpus))}", *words]
        url, log = f"http://{service.host}:{port}", logs / f"{name}.log"
        stack.enter_context(run_server(words, url, log=log, start_s=service.start_s))
        print(f"service {name} answers at {url} (log: {log})", flush=True)
        return name, url

    with ExitStack() as stack, ThreadPoolExecutor(len(services)) as pool:
        yield dict(pool.map(start, services, services.values()))


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
    except (RecipeError, ServerError) as error:
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
