"""Start the services that a run needs, run a command once each of them answers, and stop what was started.

    tokentrue serve services FILE.yaml --logs DIR -- COMMAND ...

FILE.yaml says for each name how its service is started; `{port}`, `{host}` and `{python}` are filled in:

    retrieval:
      command: "{python} -m core.retrieval --corpus corpus.jsonl --host {host} --port {port}"
      port: 8000            # without it: a free port
      gpus: [4]             # without it: the GPUs that this process sees

All services start together. Their addresses are written to DIR/addresses.yaml (name -> URL) before COMMAND runs. The
exit status is that of COMMAND. A service that ends early is started again at its address. Services and COMMAND end with
this process, even if it is killed; nothing else is ever stopped.
"""

from __future__ import annotations

import argparse
import shlex
import signal
import socket
import string
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import Field, PositiveFloat, TypeAdapter, ValidationError, field_validator

from core.config import RecipeError, Section
from core.config.load import as_recipe_error, read_yaml
from core.options import show_errors
from core.policy.server_process import ServerCommand, ServerError, find_free_port, keep_servers, start_keeper
from core.runs.files import hold_lock, write_text

ADDRESSES = "addresses.yaml"
PLACEHOLDERS = ("python", "host", "port")
"""Lists the names that a command may have in braces."""


class Service(Section):
    command: str
    """Holds a command line, split like a shell would split it; no shell runs it."""
    host: str = "127.0.0.1"
    port: int | None = Field(None, ge=1, le=65535)
    gpus: tuple[int, ...] | None = None
    start_s: PositiveFloat = 1800.0
    """Limits the seconds until `/health` answers."""

    @field_validator("command")
    @classmethod
    def _check_command(cls, command: str) -> str:
        if not shlex.split(command):
            raise ValueError("names no program")
        for _, name, _, _ in string.Formatter().parse(command):
            if name is not None and name not in PLACEHOLDERS:
                known = ", ".join(f"{{{placeholder}}}" for placeholder in PLACEHOLDERS)
                raise ValueError(f"unknown {{{name}}}; there are {known}; write {{{{ for a brace itself")
        return command


Services = Annotated[dict[str, Service], Field(min_length=1)]


def read_services(path: Path) -> dict[str, Service]:
    """Read the services of a file. Raise RecipeError, which names file and key, if they are not valid."""
    try:
        return TypeAdapter(Services).validate_python(read_yaml(path))
    except ValidationError as error:
        raise as_recipe_error(error, Service, path) from error


@contextmanager
def run_services(services: dict[str, Service], logs: Path) -> Iterator[dict[str, str]]:
    """Start the services, keep them up, and yield their URLs by name once all answer; end them afterwards.

    Raises:
        ServerError: a service does not start, or its port is taken.
    """
    commands: dict[str, ServerCommand] = {}
    for name, service in services.items():
        if service.port and _is_answering(service.host, service.port):
            raise ServerError(f"{name}: somebody listens at port {service.port} already: end it, or set another")
        port = service.port or find_free_port(service.host)
        url = f"http://{service.host}:{port}"
        if any(url == other.url for other in commands.values()):
            raise ServerError(f"{name}: another service of the file has port {port}; set another")
        words = shlex.split(service.command)
        words = [word.format(python=sys.executable, host=service.host, port=port) for word in words]
        environment = {} if service.gpus is None else {"CUDA_VISIBLE_DEVICES": ",".join(map(str, service.gpus))}
        commands[name] = ServerCommand(words, url, service.start_s, environment)
    with keep_servers(commands, logs):
        yield {name: command.url for name, command in commands.items()}


@contextmanager
def serve_around(file: Path, logs: Path) -> Iterator[None]:
    """Run the services of a file, whose addresses are in `logs` from now on; end them afterwards.

    Raises:
        ServerError: as `run_services`, or another process writes its addresses there.
    """
    services = read_services(file)
    told = f"{logs}: another process keeps its services there: end it, or give other --logs"
    with hold_lock(logs / ".lock", 5.0, ServerError(told)), run_services(services, logs) as addresses:
        write_text(logs / ADDRESSES, yaml.safe_dump(addresses))
        yield


def _is_answering(host: str, port: int) -> bool:
    """Return whether another server listens at this port: it would be mistaken for ours."""
    try:
        with socket.create_connection((host, port), timeout=5.0):
            return True
    except OSError:
        return False


@show_errors(RecipeError, ServerError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    with serve_around(options.file, options.logs), start_keeper(options.command) as keeper:
        return keeper.wait()


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue serve services", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("file", type=Path, metavar="FILE.yaml")
    parser.add_argument("--logs", type=Path, required=True, metavar="DIR", help="of the services, and their addresses")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    return parser
