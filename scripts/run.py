"""Run the experiment of a preset: make its data, start its services, train, evaluate, and report.

A preset says in its section `experiment` what is done around the training; `--dry-run` prints these commands. Any other
preset only trains. After an interruption the same command goes on.
"""

from __future__ import annotations

import argparse
import resource
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from scripts import train

if TYPE_CHECKING:  # these need the installed packages, and --help does not
    from core.config import ExperimentSection

TAIL_LINES = 20
STOP_S = 15.0
"""Limits the seconds that a command may take to end after Ctrl-C or SIGTERM before it is killed."""


def make_parser() -> argparse.ArgumentParser:
    parser = train.make_parser()
    parser.prog = "tokentrue run"
    parser.description = (__doc__ or "").partition("\n\n")[0]
    return parser


def main(arguments: list[str] | None = None) -> int:
    options, words = train.read_options(make_parser(), sys.argv[1:] if arguments is None else arguments)
    experiment = read_experiment(options)
    if experiment is None:
        return train.main(words)
    plan = make_plan(experiment, options, words)
    if not options.dry_run:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
        began, status = time.monotonic(), plan.run()
        if not status:
            print(describe_costs(time.monotonic() - began))
        return status
    print(plan.describe())
    return train.main(words)


def read_experiment(options: argparse.Namespace) -> ExperimentSection | None:
    """Return the experiment of the preset; None without one, on a cluster, and where the training names the mistake."""
    from core.config import RecipeError
    from core.rollout.method import method_spec

    if options.backend != "embedded":
        return None
    try:
        experiment: ExperimentSection | None = (
            method_spec(options.method).load(options.preset, options.overrides).experiment
        )
    except RecipeError:
        return None
    return experiment


@dataclass(frozen=True)
class Experiment:
    """Holds the commands of an experiment, as words."""

    out: Path
    data: dict[Path, list[str]]
    services: dict[Path, Path]
    train: list[str]
    evaluate: dict[Path, list[str]]
    """Maps each log to the command that writes it."""
    at_once: int
    report: list[list[str]]

    def describe(self) -> str:
        """Write the commands as lines for a shell."""
        lines = [f"[ -e {shlex.quote(str(file))} ] || {shlex.join(words)}" for file, words in self.data.items()]
        served = [shlex.join(self.train)]
        if self.evaluate:
            served += [f"# evaluations, {self.at_once} at a time"] * (self.at_once > 1 and len(self.evaluate) > 1)
            served += [f"{shlex.join(words)} >{shlex.quote(str(log))} 2>&1" for log, words in self.evaluate.items()]
        for file, logs in self.services.items():
            command = ["tokentrue", "serve", "services", str(file), "--logs", str(logs), "--", "bash", "-ec"]
            served = f"{shlex.join(command)} {shlex.quote(chr(10).join(['', *served, '']))}".splitlines()
        path = f"export PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
        return "\n".join([path, *lines, *served, *map(shlex.join, self.report), ""])

    def run(self) -> int:
        """Run the commands, and return the exit status of the first one that fails, or 0."""
        from core.config import RecipeError
        from core.policy.server_process import ServerError
        from scripts.services import serve_around

        try:
            if status := self.make_data():
                return status
            with ExitStack() as stack:
                for services, logs in self.services.items():
                    print(f"services: {services} (see their logs in {logs})", flush=True)
                    stack.enter_context(serve_around(services, logs))
                if status := run_command(self.train) or self.run_evaluations():
                    return status
            return next((status for words in self.report if (status := run_command(words))), 0)
        except (RecipeError, ServerError, OSError) as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130

    def make_data(self) -> int:
        """Make the files that are missing, and return the exit status of the first command that fails, or 0."""
        for file, words in self.data.items():
            if not file.exists():
                print(f"data: {file}", flush=True)
                if status := run_command(words):
                    return status
            elif world := find_newer_world(file, words):
                print(f"note: {file} is older than {world}; delete {file.parent} to make it anew", flush=True)
        return 0

    def run_evaluations(self) -> int:
        """Run the evaluations, some at once; if one fails, show the end of its log and start no more."""
        from core.policy.server_process import start_keeper
        from core.runs.progress import Progress

        waiting, finished, failed = list(self.evaluate.items()), 0, 0
        running: dict[Path, subprocess.Popen[bytes]] = {}
        if not waiting:
            return 0
        print(f"evaluation: see {self.out}/evaluate-*.log", flush=True)
        with Progress(len(waiting), "evaluation") as progress, ExitStack() as stack:
            while waiting or running:
                while waiting and len(running) < self.at_once:
                    log, words = waiting.pop(0)
                    output = stack.enter_context(log.open("wb"))
                    running[log] = stack.enter_context(start_keeper(with_our_python(words), output))
                progress.tell(", ".join(log.stem.removeprefix("evaluate-") for log in running))
                while not (ended := [log for log, process in running.items() if process.poll() is not None]):
                    time.sleep(0.1)
                for log in ended:
                    if status := running.pop(log).returncode:
                        tail = log.read_text(errors="replace").splitlines()[-TAIL_LINES:]
                        print("\n".join([f"error: an evaluation failed; the end of {log}:", *tail]), file=sys.stderr)
                        waiting, failed = [], status
                    else:
                        finished += 1
                        progress.update(finished)
        return failed


def find_newer_world(file: Path, words: Sequence[str]) -> Path | None:
    """Return the module of the world that `file` comes from if it was changed since; None for any other file."""
    if words[1:3] != ["data", "world"]:
        return None
    from core.rollout.method import find_package
    from core.worlds import command

    options = command.make_parser().parse_args(words[3:])
    package = import_module(find_package(options.method))
    world = Path(package.__path__[0], f"{options.world}.py")
    return world if world.is_file() and world.stat().st_mtime > file.stat().st_mtime else None


def make_plan(experiment: ExperimentSection, options: argparse.Namespace, words: Sequence[str]) -> Experiment:
    """Fill in the commands. `words` are the options, which the training gets as they are."""
    out, baseline = options.out, options.baseline is not None
    filled = partial(fill, method=options.method, out=out)
    return Experiment(
        out,
        {Path(file): filled(command, file=file) for file, command in experiment.data.items()},
        {Path(file): Path(logs) for file, logs in experiment.services.items()},
        ["tokentrue", "train", *(word for word in words if word != "--dry-run")],
        {} if baseline else {out / f"evaluate-{name}.log": filled(c) for name, c in experiment.evaluate.items()},
        experiment.at_once,
        [] if baseline else [filled(command) for command in experiment.report],
    )


def fill(command: str, **values: object) -> list[str]:
    """Split a command like a shell would, and put `values` in the places of their names in braces."""
    words = shlex.split(command)
    for name, value in values.items():
        words = [word.replace(f"{{{name}}}", str(value)) for word in words]
    return words


def run_command(words: Sequence[str]) -> int:
    """Run a command and return its exit status. What was killed says nothing itself, so say it here."""
    with subprocess.Popen(with_our_python(words)) as process:
        try:
            status = process.wait()
        except (KeyboardInterrupt, SystemExit) as end:
            # A terminal's Ctrl-C went to the command too, which closes what it has open; SIGTERM came to us alone.
            if isinstance(end, SystemExit):
                process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(STOP_S)
            process.kill()
            raise
    if status < 0:
        print(f"error: signal {-status} ended {shlex.join(words)}; run again to go on", file=sys.stderr)
        return 128 - status
    return status


def describe_costs(seconds: float) -> str:
    """Say what all processes cost that this one started and that have ended, `seconds` after it began."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    hours, gigabytes = (used.ru_utime + used.ru_stime) / 3600, used.ru_maxrss * 1024 / 1e9
    return f"this call took {seconds / 60:.1f} min, {hours:.2f} CPU hours, {gigabytes:.1f} GB in the largest process"


def with_our_python(words: Sequence[str]) -> list[str]:
    """Return the words of a command that begins with `tokentrue` or `python`, for this interpreter."""
    return [sys.executable, *(["-m", "scripts.tokentrue"] if words[0] == "tokentrue" else []), *words[1:]]
