"""Measure what it costs to record every token: CPU seconds and bytes for a million tokens of a run's rollouts.

    tokentrue speed record RUN [RUN ...] [--out runs/speed/record.json]

The training rollouts of each run are recorded again, step by step, into a temporary file, as the trainer does it.
Tokens are prompts and completions of all turns. The share is of the time that the run's own steps took.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from core.rollout.method import method_spec
from core.rollout.rows import rows_from_groups
from core.runs.files import Record, write_json
from core.runs.record import RecordedRollout, RolloutLog, TrainedRow, read_rollouts, record_rollout
from core.runs.run_folder import RunFolder
from core.text.tokenizer import load_tokenizer, token_bytes
from core.train import match_rows
from core.types import Row, Task, Trajectory


def measure_record(folder: RunFolder) -> Record:
    """Record the rollouts of all seeds again; return tokens, seconds and bytes. Raises ValueError without a record."""
    tokens = size = 0
    seconds = 0.0
    step_seconds: dict[tuple[int, int], float] = {}
    recipe = method_spec(folder.config["method"]).load(str(folder.path / "config.yaml"))
    for seed in folder.seeds:
        trained = folder.find_trained(seed)
        if trained is None:
            continue
        lengths = {r["step"]: r["seconds"] for r in folder.read_metrics(seed) if r["stage"] == "train"}
        rollouts = (r for r in read_rollouts(folder.rollouts_path(seed)) if r.stage == "train")
        with tempfile.TemporaryDirectory() as temporary:
            path = Path(temporary) / "rollouts.jsonl.gz"
            log = RolloutLog(path, partial(token_bytes, load_tokenizer(trained)))
            for step, of_step in groupby(rollouts, key=lambda rollout: rollout.step):
                parts = _make_parts(list(of_step), recipe)
                began = time.process_time()
                log.append([record_rollout("train", step, *part) for part in parts])
                seconds += time.process_time() - began
                tokens += sum(trajectory.token_count for _, _, trajectory, _ in parts)
                step_seconds[seed, step] = lengths[step]
            size += path.stat().st_size if path.exists() else 0
    if not tokens:
        raise ValueError(f"{folder.path}: no recorded training step, or no checkpoint")
    return {
        "run": folder.path.name,
        "steps": len(step_seconds),
        "tokens": tokens,
        "cpu_seconds_per_million_tokens": 1e6 * seconds / tokens,
        "bytes_per_million_tokens": 1e6 * size / tokens,
        "share_of_step_time": seconds / sum(step_seconds.values()),
    }


def _make_parts(
    rollouts: Sequence[RecordedRollout], recipe: Any
) -> list[tuple[int, Task, Trajectory, list[TrainedRow]]]:
    """Return what the trainer hands to the record: group, task, rollout, and rows with their own log-probs."""
    groups = [[r.trajectory() for r in group] for _, group in groupby(rollouts, key=lambda rollout: rollout.group)]
    rows: defaultdict[int, list[Row]] = defaultdict(list)
    for row in rows_from_groups(groups, **recipe.algorithm.row_options()):
        rows[row.rollout_id].append(row)
    parts = []
    for number, (rollout, trajectory) in enumerate(zip(rollouts, (t for g in groups for t in g), strict=True)):
        trained = match_rows(trajectory, rows[number], recipe, {id(row): (row.logprobs, 1.0) for row in rows[number]})
        task = Task(rollout.task_id, rollout.question, tuple(rollout.answers))
        parts.append((rollout.group, task, trajectory, trained))
    return parts


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        rows = [measure_record(RunFolder(run)) for run in options.runs]
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    for row in rows:
        print(json.dumps(row))
    write_json(options.out, rows)
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed record", description=__doc__.partition("\n")[0])
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a folder that a run has left")
    parser.add_argument("--out", type=Path, default=Path("runs/speed/record.json"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
