"""Measure workspaces that are used at once: the wall clock of start, exec and diff (`tokentrue speed workspace`).

    tokentrue speed workspace [--rollouts 50] [--repeats 3] [--backend landlock]

Each rollout does what one of agentic/coding does without its policy: it starts a repair task's repository in a
workspace, runs its tests, edits a file, takes the diff, and grades it in a clean copy.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import PositiveInt

from agentic.coding.grading import grade
from agentic.coding.records import read_task
from agentic.coding.repairs.generate import draw_record
from benchmarks.speed.measure import align_columns, describe_environment
from core.options import argparse_type
from core.sandbox.workspace import IsolatedWorkspace, choose_backend
from core.sandbox.workspace.isolated import SERVER
from core.types import Task

STEPS = ("start", "exec true", "exec pytest", "diff", "grade", "stop")
TIMEOUT_S = 600.0
"""Is so long that no step meets it."""


async def run_rollout(number: int, backend: Any, seconds: dict[str, list[float]]) -> None:
    """Repair task `number` and append the seconds of each step."""

    async def lap(step: str, work: Callable[[], Awaitable[Any]]) -> Any:
        began = time.perf_counter()
        result = await work()
        seconds[step].append(time.perf_counter() - began)
        return result

    record = draw_record("test", number, "package")
    task = read_task(Task("t", record["prompt"], (record["label"],), metadata=record["metadata"]))
    async with IsolatedWorkspace(workdir=task.workdir, backend=backend) as workspace:
        await lap("start", lambda: workspace.start(task.files))
        await lap("exec true", lambda: workspace.exec("true", timeout_s=TIMEOUT_S))
        await lap("exec pytest", lambda: workspace.exec("python3 -m pytest -q", timeout_s=TIMEOUT_S))
        await workspace.exec("git apply -", record["metadata"]["patch"].encode(), timeout_s=TIMEOUT_S)
        diff = await lap("diff", workspace.diff)
        await lap("stop", workspace.stop)

    async def grade_it() -> str:
        async with IsolatedWorkspace(workdir=task.workdir, backend=backend) as clean:
            await clean.start(task.files)
            return (await grade(clean, task, diff, TIMEOUT_S)).verdict

    verdict = await lap("grade", grade_it)
    if verdict != "solved":
        raise RuntimeError(f"task {number}: the right patch is graded {verdict}")


async def run_at_once(rollouts: int, backend: Any) -> dict[str, Any]:
    """Run so many rollouts at once; return seconds by step, and wall seconds of all."""
    seconds: dict[str, list[float]] = defaultdict(list)
    wall = time.perf_counter()
    await asyncio.gather(*(run_rollout(number, backend, seconds) for number in range(rollouts)))
    return {"seconds": dict(seconds), "wall_s": time.perf_counter() - wall}


def read_cpu() -> float:
    """Return the CPU seconds of this process and of all that it has started. It ends the fork server."""
    SERVER.close()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(rollouts: int, repeats: int, backend: Any) -> dict[str, Any]:
    """Measure one rollout alone, and then `rollouts` at once; both `repeats` times after a warm-up."""
    cells = {}
    for count, runs in ((1, 10 * repeats), (rollouts, repeats)):
        asyncio.run(run_at_once(1, backend))
        cpu = read_cpu()
        laps = [asyncio.run(run_at_once(count, backend)) for _ in range(runs)]
        cpu = read_cpu() - cpu
        cells[str(count)] = {
            **{step: [s for lap in laps for s in lap["seconds"][step]] for step in STEPS},
            "cpu_s": cpu / (count * runs),
            "rollouts_per_s": count * runs / sum(lap["wall_s"] for lap in laps),
        }
    return cells


def format_table(cells: dict[str, Any]) -> str:
    rows = []
    for count, cell in cells.items():
        quantiles = (np.percentile(cell[step], [50, 95]) * 1000 for step in STEPS)
        shown = [f"{p50:.0f} / {p95:.0f}" for p50, p95 in quantiles]
        rows.append([count, *shown, f"{cell['cpu_s']:.2f}", f"{cell['rollouts_per_s']:.2f}"])
    return align_columns(["rollouts at once", *STEPS, "CPU s / rollout", "rollouts / s"], rows)


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    backend = choose_backend() if options.backend == "auto" else options.backend
    cells = measure(options.rollouts, options.repeats, backend)
    print(f"p50 / p95 in ms, {backend}\n{format_table(cells)}")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    result = {"environment": describe_environment(1), "backend": backend, "cells": cells}
    options.output.write_text(json.dumps(result, indent=2) + "\n")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed workspace", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--rollouts", type=argparse_type(PositiveInt), default=50, help="rollouts at once (default: 50)"
    )
    parser.add_argument("--repeats", type=argparse_type(PositiveInt), default=3, help="repeats (default: 3)")
    parser.add_argument("--backend", choices=("auto", "bubblewrap", "landlock"), default="auto")
    parser.add_argument("--output", type=Path, default=Path("runs/speed/workspace.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
