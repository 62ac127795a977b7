"""MemAgent's preset `tiny` trained twice: by the embedded backend, and with one live server (SGLang, vLLM).

The server is killed in mid-run and started again. Both trainings begin with the same warm-started model: `--model`, or
the one that the preset's warm start makes.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from agentic.memagent.rollout import SPEC
from agentic.memagent.world import WORLD
from core.policy.server_process import (
    Backend,
    find_free_port,
    make_server_command,
    start_server,
    wait_until_healthy,
)
from core.report.stats import mean_ci
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder
from scripts.tokentrue import main
from tests.optional.server_checks import TOLERANCE, Result, show

HOST = "127.0.0.1"
LENGTH = 448
DATA = "runs/data/memagent-tiny"
"""Names the folder that the preset writes its data to."""
START_S, STEP_S = 1200.0, 1200.0


@dataclass(frozen=True)
class LiveServer:
    """How to start a server. `protocol` is the prefix that its URL has in recipes."""

    backend: Backend
    python: str
    args: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    protocol: str = ""

    @contextmanager
    def start(self, model: Path, port: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Yield the keeper of a server that answers at a port of this machine; end both afterwards."""
        command = make_server_command(
            self.backend, str(model), host=HOST, port=port, args=self.args, python=self.python
        )
        with start_server(command, log, self.environment) as keeper:
            wait_until_healthy(f"http://{HOST}:{port}", lambda: keeper.poll() is None, START_S, log)
            yield keeper


def add_training_options(parser: argparse.ArgumentParser) -> None:
    run = SPEC.load("tiny").run
    parser.add_argument("--train", action="store_true", help="train MemAgent's preset tiny with the server instead")
    parser.add_argument("--steps", type=int, default=run.steps, metavar="N", help=f"default: {run.steps}")
    parser.add_argument(
        "--seeds", type=int, nargs="+", default=run.seeds, metavar="N", help="the server trains the first alone"
    )
    parser.add_argument("--tasks", type=int, default=256, metavar="N", help="held-out tasks of a seed (default: 256)")
    parser.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="of both runs"
    )
    parser.add_argument("--out", type=Path, help="folder of both runs; the one without a server goes on there")


def show_server(
    name: str, run: Callable[[str, Path, Path, Path], list[bool]], make: Callable[[str], LiveServer]
) -> None:
    """Be the command of `python -m tests.optional.NAME_cpu`: `run` looks at a server, `make` has one that trains."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.optional.{name}_cpu")
    parser.add_argument(f"--{name}-python", dest="python", required=True, help="that of the environment of setup.sh")
    parser.add_argument("--model", type=Path, help="a checkpoint of MemAgent's tiny preset; default: its start model")
    parser.add_argument("--log", type=Path, help="folder for the servers' logs; default: a temporary one")
    add_training_options(parser)
    args = parser.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads of a server would take the cores of the other
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if args.train:
            shown = show(compare_trainings(make(args.python), args, folder))
        else:
            model = args.model or WORLD.build_model(folder / "model", seed=0)
            shown = run(args.python, model, folder, args.log or folder)
    sys.exit(0 if all(shown) else 1)


def make_data(folder: Path) -> list[str]:
    """Make the model and the data of the preset in a folder of its own; return the options that name the data."""
    experiment = SPEC.load("tiny").experiment
    assert experiment is not None
    for file, command in experiment.data.items():
        made = Path(file.replace(DATA, str(folder)))
        if not made.exists():
            tokentrue(command.format(file=made).replace(DATA, str(folder)).split()[1:])
    return [f"data.train={folder / 'train.jsonl'}", f"data.eval={folder / 'dev.jsonl'}"]


def compare_trainings(server: LiveServer, options: argparse.Namespace, temporary: Path) -> list[Result]:
    """Train with the embedded backend and with the server, and evaluate both on held-out tasks."""
    folder, seeds = options.out or temporary, options.seeds
    data, embedded, served = folder / "data", folder / "embedded", folder / "served"
    settings = [*make_data(data), f"run.steps={options.steps}", "run.parallel_seeds=1", *options.overrides]
    began = time.monotonic()
    if options.model:
        start = [f"model.path={options.model}", "warm_start=null"]
    else:
        start = [f"model.path={data / 'model'}", "warm_start.threads=1"]
    tokentrue(training_words(embedded, [*settings, *start, f"run.seeds={list(seeds)}"]))
    print(f"embedded backend: {time.monotonic() - began:.0f} s for {len(seeds)} seeds", flush=True)
    start = [f"model.path={options.model or embedded / 'warm_start'}", "warm_start=null", f"run.seeds=[{seeds[0]}]"]
    log = (options.log or temporary) / "training.log"
    train_and_kill(server, log, served, [*settings, *start], seeds[0], kill_after=options.steps // 2 + 1)
    for run in (embedded, served):
        evaluation = f"--lengths {LENGTH} --tasks {options.tasks} --variants trained --threads 1 --concurrency 128"
        tokentrue(["evaluate", "ruler", "--run", str(run), *evaluation.split()])
    return [*compare_scores(embedded, served), *look_at_updates(embedded, served, seeds[0])]


def train_and_kill(
    server: LiveServer, log: Path, out: Path, settings: Sequence[str], seed: int, kill_after: int
) -> None:
    """Train with a server that is killed in the step after `kill_after` steps, and started anew."""
    port, model = find_free_port(HOST), out.parent / "data" / "model"
    # Rollouts wait for the server to come back, which takes its time.
    settings = [
        *settings,
        f"inference.servers=[{server.protocol}http://{HOST}:{port}]",
        f"rollout.deadline_s={2 * START_S:g}",
    ]
    with server.start(model, port, log) as keeper:
        began = time.monotonic()
        command = [sys.executable, "-m", "scripts.tokentrue", *training_words(out, settings), "--fresh"]
        training = subprocess.Popen(command)
        try:
            wait_for_step(training, out, seed, kill_after)
            kill_server(keeper)
            killed = time.monotonic()
            with server.start(model, port, log):
                away = time.monotonic() - killed
                print(
                    f"the server was killed after step {kill_after} and answered again {away:.0f} s later", flush=True
                )
                if training.wait():
                    sys.exit("the training with the server failed")
        finally:
            training.kill()
            training.wait()
    print(f"server: {time.monotonic() - began:.0f} s for one seed", flush=True)


def kill_server(keeper: subprocess.Popen[bytes]) -> None:
    """Kill the server's processes, which are the group of the keeper's child."""
    (child,) = Path(f"/proc/{keeper.pid}/task/{keeper.pid}/children").read_text().split()
    os.killpg(int(child), signal.SIGKILL)
    keeper.wait()


def wait_for_step(training: subprocess.Popen[bytes], out: Path, seed: int, step: int) -> None:
    seen, deadline = 0, time.monotonic() + STEP_S
    while seen < step:
        if training.poll() is not None or time.monotonic() > deadline:
            sys.exit(f"the training with the server stands at step {seen}; see above, and the server's log")
        time.sleep(0.2)
        newest = last_step(out, seed)
        if newest > seen:
            seen, deadline = newest, time.monotonic() + STEP_S


def last_step(out: Path, seed: int) -> int:
    if not (out / "config.yaml").is_file():
        return 0
    metrics = RunFolder(out).read_metrics(seed)
    return max((record["step"] for record in metrics if record["stage"] == "train"), default=0)


def compare_scores(embedded: Path, served: Path) -> list[Result]:
    """The held-out score of the policy that was trained with the server, against the interval of the embedded seeds."""
    ours, theirs = (
        {result.seed: result.scores["strict"] for result in RunFolder(run).evaluations()} for run in (embedded, served)
    )
    spread, (score,) = mean_ci(list(ours.values())), [sum(scores) / len(scores) for scores in theirs.values()]
    by_seed = ", ".join(f"{100 * sum(scores) / len(scores):.1f}" for scores in ours.values())
    seen = f"{100 * score:.1f}; embedded {by_seed}, interval {100 * spread.low:.1f} to {100 * spread.high:.1f}"
    return [Result("held-out score in % is that of embedded seeds", seen, spread.low <= score <= spread.high)]


def look_at_updates(embedded: Path, served: Path, seed: int) -> list[Result]:
    """What each step was trained on: which tasks, whose weights, and how far the log-probs were from the trainer's."""
    ours, theirs = (
        [record for record in RunFolder(run).read_metrics(seed) if record["stage"] == "train"]
        for run in (embedded, served)
    )
    gaps: dict[int, list[float]] = defaultdict(list)
    ages: dict[int, int] = defaultdict(int)
    for rollout in read_rollouts(RunFolder(served).rollouts_path(seed)):
        for turn in rollout.turns if rollout.stage == "train" else ():
            for version in turn.versions:
                ages[rollout.step - 1 - int(version)] += 1
            pairs = zip(turn.logprobs, turn.trainer_logprobs or (), strict=False)
            gaps[rollout.step] += [abs(a - b) for a, b in pairs if a is not None and b is not None]
    print("step  tokens  largest gap  mean gap  left out  seconds  reward (embedded)")
    for record, other in zip(theirs, ours, strict=True):
        step, found = record["step"], gaps[record["step"]]
        print(
            f"{step:4}  {len(found):6}  {max(found, default=0.0):11.1e}  {sum(found) / max(1, len(found)):8.1e}  "
            f"{record['servers_left_out']:8}  {record['seconds']:7.1f}  {record['reward']:.3f} ({other['reward']:.3f})"
        )
    # Where all rewards of each group are equal, nothing is trained, and there are no log-probs of the trainer.
    means = [sum(found) / len(found) for found in gaps.values() if found]
    large = sum(gap >= TOLERANCE for found in gaps.values() for gap in found)
    left_out = sum(record["servers_left_out"] for record in theirs)
    failures = sum(sum(record["failures"].values()) for record in theirs)
    same = [record["tasks"] for record in theirs] == [record["tasks"] for record in ours]
    tokens = sum(map(len, gaps.values()))
    return [
        Result(
            f"log-probs within {TOLERANCE:g} of the trainer's after each update, on the average",
            f"largest mean {max(means):.2g}; {large} of {tokens} tokens of {len(means)} steps are further away",
            max(means) < TOLERANCE,
        ),
        Result("every turn is from the present weights", f"updates behind: {dict(ages)} turns", set(ages) == {0}),
        Result(
            "the run goes on after SIGKILL",
            f"left out {left_out:g} times, {failures} failed rollouts",
            left_out > 0 and not failures,
        ),
        Result("each step has its tasks", f"{len(theirs)} steps", same),
    ]


def training_words(out: Path, settings: Sequence[str]) -> list[str]:
    changes = [part for setting in settings for part in ("--set", setting)]
    return ["train", "memagent", "--preset", "tiny", "--out", str(out), *changes]


def tokentrue(words: Sequence[str]) -> None:
    if status := main(words):
        sys.exit(status)
