"""The options that evaluations share: for a model behind a server that runs, or is started for the time being."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from benchmarks.cells import EvaluationError
from core.policy.server_process import Backend, serve


def add_server_options(parser: Any) -> None:
    """`parser` is an ArgumentParser or a group of one that has --model."""
    parser.add_argument("--policy-url", metavar="URL", help="a server that holds --model (SGLang, or our own)")
    parser.add_argument("--serve", choices=get_args(Backend), help="start a server for --model, and stop it at the end")
    parser.add_argument(
        "--serve-args", default="", metavar="ARGS", help='for that server, such as --serve-args="--tp 2"'
    )
    parser.add_argument(
        "--serve-python", default=sys.executable, metavar="PYTHON", help="of the environment that has SGLang"
    )


def check_server_options(options: argparse.Namespace) -> None:
    """Raises EvaluationError for options that exclude each other."""
    if options.serve is not None and options.policy_url is not None:
        raise EvaluationError("give either --serve, which starts a server, or --policy-url of one that runs")


@contextmanager
def server(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, str]]:
    """Model -> URL of the server that runs meanwhile, its log in `folder`; nothing without --serve."""
    if options.serve is None:
        yield {}
        return
    log = folder / "evaluate-server.log"
    print(f"starting a server for {options.model} (see {log})")
    args, python = shlex.split(options.serve_args), options.serve_python
    with serve(options.serve, options.model, log=log, args=args, python=python) as url:
        yield {options.model: url}
