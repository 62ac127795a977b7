"""Compare training in turn with training while later batches are sampled (`rollout.ahead`), with tools that are slow.

    tokentrue speed ahead --steps 40 --seeds 3

A rollout calls the policy four times and waits for a tool before each call: lognormal, with a median of 50 ms, and 3 s
for one call in a hundred. The runs alternate, and all train on the same tasks with the same delays.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

import torch
from pydantic import PositiveInt

from benchmarks.speed.measure import align_columns
from benchmarks.speed.workload import SIZES, draw_prompt, grade, make_checkpoint
from core.config import Recipe
from core.engine.loop import GRPOLoop
from core.options import argparse_type
from core.policy.base import Roles
from core.rollout.method import Method, method_spec
from core.runs.run_folder import RunFolder
from core.types import Sampling, Task, Trajectory, Turn

CALLS, PROMPT, LONGEST = 4, 64, 48
MEDIAN_S, SIGMA = 0.05, 1.76
"""Describe the delay of a tool: its median, and the standard deviation of its logarithm."""
ENDS = tuple(range(2, 66))
"""Lists the ids that end a completion: one in twenty, so that lengths differ."""


class SlowTools(Method):
    """Asks the policy after each of CALLS slow tool calls, and rewards even ids. It counts the tokens it got."""

    def __init__(self) -> None:
        self.tokens = 0

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        rng = random.Random(sampling.seed)
        turns = []
        for _ in range(CALLS):
            await asyncio.sleep(rng.lognormvariate(math.log(MEDIAN_S), SIGMA))
            prompt = draw_prompt(rng, SIZES["tiny"]["vocab_size"], PROMPT)
            asked = replace(sampling, max_new_tokens=LONGEST, stop_token_ids=ENDS)
            turns.append(Turn("only", prompt, await roles["policy"].generate(prompt, asked), True))
        ids = [token for turn in turns for token in turn.completion.token_ids]
        self.tokens += len(ids)
        return Trajectory(task.task_id, tuple(turns), reward=grade(ids))


@dataclass(frozen=True)
class Run:
    """Holds what one run took, in seconds, of which training waited some; and how old the weights of its tokens were.

    An age is counted in steps: the mean of the tokens of all steps, and the largest.
    """

    seconds: float
    waiting: float
    tokens: int
    mean_age: float
    largest_age: float


async def train(folder: Path, model: Path, ahead: int, seed: int, steps: int) -> Run:
    """Train a random model for some steps and measure the whole."""
    overrides = [
        f"model.path={model}",
        "model.max_model_len=128",
        "rollout.tasks_per_step=4",
        "rollout.group_size=4",
        f"rollout.ahead={ahead}",
        "algorithm.tis=[0, 2]",
        f"run.steps={steps}",
        "run.eval_every=0",
        "run.record_every=0",
    ]
    recipe: Recipe = method_spec("memagent").load("tiny", overrides)
    tasks = [Task(f"t{i}", "?", ("x",)) for i in range(64)]
    method = SlowTools()
    loop = GRPOLoop(recipe, method, None, tasks, [], RunFolder.create(folder, recipe.dump()), seed, model)
    began = time.perf_counter()
    await loop.run()
    seconds = time.perf_counter() - began
    records = [record for record in loop.metrics.records() if record["stage"] == "train"]
    return Run(
        seconds,
        sum(record["rollout_seconds"] for record in records),
        method.tokens,
        fmean(record.get("staleness_mean", 0.0) for record in records),
        max(record.get("staleness_max", 0.0) for record in records),
    )


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    torch.set_num_threads(1)
    runs: dict[int, list[Run]] = {ahead: [] for ahead in options.ahead}
    with tempfile.TemporaryDirectory() as scratch:
        model = make_checkpoint("tiny", Path(scratch) / "model")
        for seed in range(options.seeds):
            for ahead in options.ahead:
                folder = Path(scratch) / f"{ahead}-{seed}"
                runs[ahead].append(asyncio.run(train(folder, model, ahead, seed, options.steps)))
    first, rows = runs[options.ahead[0]], []
    for ahead, measured in runs.items():
        seconds = sum(run.seconds for run in measured)
        rows.append(
            [
                str(ahead),
                f"{seconds / options.seeds / options.steps:.2f}",
                " ".join(f"{other.seconds / run.seconds:.2f}" for other, run in zip(first, measured, strict=True)),
                f"{sum(run.tokens for run in measured) / seconds:.0f}",
                f"{sum(run.waiting for run in measured) / seconds:.0%}",
                f"{fmean(run.mean_age for run in measured):.2f}",
                f"{max(run.largest_age for run in measured):.0f}",
            ]
        )
    header = ["ahead", "s per step", f"times faster than {options.ahead[0]}", "sampled tokens/s", "waiting"]
    print(align_columns([*header, "mean age", "largest age"], rows))
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed ahead", description=__doc__.partition("\n")[0])
    count = argparse_type(PositiveInt)
    parser.add_argument("--steps", type=count, default=40, metavar="N", help="training steps of a run (default: 40)")
    parser.add_argument("--seeds", type=count, default=3, metavar="N", help="runs of each kind (default: 3)")
    parser.add_argument(
        "--ahead", type=int, nargs="+", default=[0, 1, 2], metavar="N", help="the first one is compared with (0 1 2)"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
