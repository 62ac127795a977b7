"""Compare training in turn with training while later batches are sampled (`rollout.ahead`), with tools that are slow.

    tokentrue speed ahead --steps 40 --seeds 3

A rollout calls the policy four times and waits for a tool before each call: lognormal, with a median of 50 ms, and 3 s
for one call in a hundred. The runs alternate, and all train on the same tasks with the same delays. With `--at-once`
they all run at the same time, each in a process; long runs mostly wait, and only their times are then not comparable.
With `--frozen` the learning rate is 0: all runs sample from one policy, so a difference in the lengths of completions
would come from the order of the work.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from pydantic import PositiveInt

from benchmarks.speed.measure import align_columns
from benchmarks.speed.workload import SIZES, draw_prompt, grade, make_checkpoint
from core.config import Recipe
from core.options import argparse_type
from core.policy.base import Roles
from core.rollout.method import Method, method_spec
from core.runs.run_folder import RunFolder
from core.train import GRPOLoop
from core.types import Sampling, Task, Trajectory, Turn

CALLS, PROMPT, LONGEST = 4, 64, 48
MEDIAN_S, SIGMA = 0.05, 1.76
"""Describe the delay of a tool: its median, and the standard deviation of its logarithm."""
ENDS = tuple(range(2, 66))
"""Lists the ids that end a completion: one in twenty, so that lengths differ."""


class SlowTools(Method):
    """Asks the policy after each of CALLS slow tool calls, and rewards even ids.

    It keeps for each rollout its seed, the seconds that it waited, and the tokens that it got.
    """

    def __init__(self) -> None:
        self.seeds: list[int | None] = []
        self.delays: list[float] = []
        self.lengths: list[int] = []

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        rng = random.Random(sampling.seed)
        delays = [rng.lognormvariate(math.log(MEDIAN_S), SIGMA) for _ in range(CALLS)]
        turns = []
        for delay in delays:
            await asyncio.sleep(delay)
            prompt = draw_prompt(rng, SIZES["tiny"]["vocab_size"], PROMPT)
            asked = replace(sampling, max_new_tokens=LONGEST, stop_token_ids=ENDS)
            turns.append(Turn("only", prompt, await roles["policy"].generate(prompt, asked), True))
        ids = [token for turn in turns for token in turn.completion.token_ids]
        self.seeds.append(sampling.seed)
        self.delays.append(sum(delays))
        self.lengths.append(len(ids))
        return Trajectory(task.task_id, tuple(turns), reward=grade(ids))


@dataclass(frozen=True)
class Run:
    """Holds what one run took, in seconds, of which training waited some, and what it trained on.

    `delays` and `lengths` have the seconds that each rollout waited for tools, and its sampled tokens. `tasks` are
    those of the trained groups, in order. `ages` has for each step the mean and the largest age of its tokens' weights,
    in steps. `reward` is the mean of the last tenth of the steps.
    """

    seconds: float
    waiting: float
    delays: Sequence[float]
    lengths: Sequence[int]
    tasks: Sequence[str]
    ages: Sequence[tuple[float, float]]
    reward: float


async def train(folder: Path, model: Path, ahead: int, seed: int, steps: int, frozen: bool) -> Run:
    """Train a random model for some steps and measure the whole."""
    overrides = [
        f"model.path={model}",
        "model.max_model_len=128",
        "rollout.tasks_per_step=4",
        "rollout.group_size=4",
        f"rollout.ahead={ahead}",
        "rollout.deadline_s=3600",  # one tool in some hundred thousand takes more than two minutes
        "algorithm.tis=[0, 2]",
        f"run.steps={steps}",
        *(["optimizer.lr=0"] if frozen else []),
        "run.eval_every=0",
        "run.record_every=0",
    ]
    recipe: Recipe = method_spec("memagent").load("tiny", overrides)
    tasks = [Task(f"t{i}", "?", ("x",)) for i in range(64)]
    method = SlowTools()
    tokenizer: Any = None  # its policy never speaks
    loop = GRPOLoop(recipe, method, tokenizer, tasks, [], RunFolder.create(folder, recipe.dump()), seed, model)
    began = time.perf_counter()
    await loop.run()
    seconds = time.perf_counter() - began
    records = [record for record in loop.metrics.records() if record["stage"] == "train"]
    rollouts = recipe.rollout.tasks_per_step * recipe.rollout.group_size * steps
    if not len(set(method.seeds)) == len(method.seeds) == rollouts:
        raise RuntimeError(f"ahead {ahead}, seed {seed}: not every one of {rollouts} rollouts was sampled once")
    return Run(
        seconds,
        sum(record["rollout_seconds"] for record in records),
        method.delays,
        method.lengths,
        [task for record in records for task in record["tasks"]],
        [(record.get("staleness_mean", 0.0), record.get("staleness_max", 0.0)) for record in records],
        fmean(record["reward"] for record in records[-max(1, steps // 10) :]),
    )


def compare_samples(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the p-value of the two-sample Kolmogorov-Smirnov test, in its limit for many values."""
    values = np.sort(np.concatenate([first, second]))
    places = [np.searchsorted(np.sort(sample), values, side="right") / len(sample) for sample in (first, second)]
    distance = np.abs(places[0] - places[1]).max()
    scaled = distance * math.sqrt(len(first) * len(second) / (len(first) + len(second)))
    if scaled < 0.2:
        return 1.0  # the series below converges slowly there; the value is above 1 - 1e-12
    return float(min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * scaled) ** 2) for k in range(1, 101))))


def run_all(
    pairs: Sequence[tuple[int, int]], model: Path, scratch: Path, steps: int, frozen: bool, at_once: bool
) -> list[Run]:
    """Train once for each pair of `ahead` and seed, one after the other or at once."""
    work = [(scratch / f"{ahead}-{seed}", model, ahead, seed, steps, frozen) for ahead, seed in pairs]
    if not at_once:
        return [run_one(*each) for each in work]
    with ProcessPoolExecutor(len(work), mp_context=get_context("spawn")) as pool:
        return list(pool.map(run_one, *zip(*work, strict=True)))


def run_one(folder: Path, model: Path, ahead: int, seed: int, steps: int, frozen: bool) -> Run:
    torch.set_num_threads(1)
    return asyncio.run(train(folder, model, ahead, seed, steps, frozen))


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    pairs = [(ahead, seed) for seed in range(options.seeds) for ahead in options.ahead]
    with tempfile.TemporaryDirectory() as scratch:
        model = make_checkpoint("tiny", Path(scratch) / "model")
        measured = run_all(pairs, model, Path(scratch), options.steps, options.frozen, options.at_once)
    runs = {ahead: measured[i :: len(options.ahead)] for i, ahead in enumerate(options.ahead)}
    first = runs[options.ahead[0]]
    for run, other in (pair for same in runs.values() for pair in zip(same, first, strict=True)):
        if run.tasks != other.tasks or sorted(run.delays) != sorted(other.delays):
            raise RuntimeError(
                "two runs of a seed did not train the same groups in the same order with the same delays"
            )
    rows, trained = [], []
    for ahead, same in runs.items():
        seconds = sum(run.seconds for run in same)
        rows.append(
            [
                str(ahead),
                f"{seconds / options.seeds / options.steps:.2f}",
                join_each("{:.2f}", [other.seconds / run.seconds for other, run in zip(first, same, strict=True)]),
                f"{sum(sum(run.lengths) for run in same) / seconds:.0f}",
                f"{sum(run.waiting for run in same) / seconds:.0%}",
                f"{fmean(mean for run in same for mean, _ in run.ages):.2f}",
                f"{max(largest for run in same for _, largest in run.ages):.0f}",
            ]
        )
        equal = [compare_samples(other.lengths, run.lengths) for other, run in zip(first, same, strict=True)]
        trained.append(
            [str(ahead), join_each("{:.3f}", [run.reward for run in same]), join_each("{:.2g}", equal)],
        )
    header = ["ahead", "s per step", f"times faster than {options.ahead[0]}", "sampled tokens/s", "waiting"]
    print(align_columns([*header, "mean age", "largest age"], rows), end="\n\n")
    print(align_columns(["ahead", "reward of the last tenth", "p of equal lengths"], trained))
    return 0


def join_each(form: str, values: Sequence[float]) -> str:
    return " ".join(form.format(value) for value in values)


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed ahead", description=__doc__.partition("\n")[0])
    count = argparse_type(PositiveInt)
    parser.add_argument("--steps", type=count, default=40, metavar="N", help="training steps of a run (default: 40)")
    parser.add_argument("--seeds", type=count, default=3, metavar="N", help="runs of each kind (default: 3)")
    parser.add_argument(
        "--ahead", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="the first one is compared with (0 1 2)"
    )
    parser.add_argument("--frozen", action="store_true", help="a learning rate of 0")
    parser.add_argument("--at-once", action="store_true", help="all runs at the same time")
    return parser


if __name__ == "__main__":
    sys.exit(main())
