"""Write rollouts in a form that other projects read, or write such a file as our record again.

    tokentrue inspect export RUN --to training-trace --out traces.jsonl   # OpenEnv's TrainingTrace, schema 1
    tokentrue inspect export RUN --to atif --out trajectories.jsonl       # Harbor's ATIF 1.8
    tokentrue inspect export traces.jsonl --to record --out rollouts.jsonl.gz

RUN is a run folder, a record, a dump of slime, TRL or verl, or a file that this command wrote: one rollout a line. What
the other format has no field for stands under `tokentrue`, so that our record comes back equal. A TrainingTrace has no
place beside its turns, so a line holds it as `training_trace`. Lines that others wrote are read as well (`inspect view`
shows them): each call needs its token ids, and what our record has no field for is kept in `sample`.

Both formats want a log-prob of every sampled token. Where the engine's was not finite, the format gets 0 and, in a
TrainingTrace, the mask 0; the null comes back.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from itertools import groupby
from pathlib import Path
from typing import Any

from core.inspect.dumps import read_dump
from core.inspect.foreign import write_atif, write_training_trace
from core.options import make_command_parser, show_errors
from core.runs.files import append_batch, write_lines
from core.runs.record import RecordedRollout
from core.runs.run_folder import RunFolder

FORMATS = {"training-trace": write_training_trace, "atif": write_atif}


def write_foreign(rollouts: Iterable[RecordedRollout], form: str, out: Path) -> int:
    """Write rollouts to a file in a form of FORMATS, one a line, and return how many."""
    known: set[int] = set()
    lines = []
    for number, rollout in enumerate(rollouts):
        document = FORMATS[form](rollout, _take_pieces(rollout, known))
        if form == "atif":
            document["session_id"] += f"-{number}"  # those of a group are told apart
        lines.append(json.dumps(document) + "\n")
    write_lines(out, lines)
    return len(lines)


def write_record(rollouts: Iterable[RecordedRollout], out: Path) -> int:
    """Write rollouts as a new record, those of a step together, and return how many."""
    known: set[int] = set()
    count = 0
    for _, of_step in groupby(rollouts, key=lambda rollout: (rollout.stage, rollout.step)):
        records = []
        for rollout in of_step:
            record = rollout.model_dump(mode="json", exclude={"pieces"}, exclude_defaults=True)
            records.append({**record, "pieces": _take_pieces(rollout, known)})
        append_batch(out, records)
        count += len(records)
    return count


def _take_pieces(rollout: RecordedRollout, known: set[int]) -> dict[int, Any]:
    """Return the texts of the rollout's ids that are not `known`, and make them known."""
    used = {token for turn in rollout.turns for token in (*turn.prompt, *turn.sampled)}
    new = {token: rollout.pieces[token] for token in sorted(used - known) if token in rollout.pieces}
    known |= new.keys()
    return new


def find_record(path: Path, seed: int | None) -> Path:
    """Return the file of rollouts that a path means: itself, or the record of a run folder or a gateway's.

    Raises:
        ValueError: the run has several seeds, or not this one.
    """
    if path.is_file() or (path := path / "rollouts.jsonl.gz").is_file():
        return path
    folder = RunFolder(path.parent)
    return folder.rollouts_path(folder.choose_seed(seed))


@show_errors(OSError, ValueError, status=2)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.out.exists():
        raise ValueError(f"{options.out} is there already; choose another --out")
    rollouts = read_dump(find_record(options.run_dir, options.seed))
    if options.to == "record":
        count = write_record(rollouts, options.out)
    else:
        count = write_foreign(rollouts, options.to, options.out)
    print(f"{options.out}: {count} rollouts as {options.to}")
    return 0 if count else 1


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("inspect export", __doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="a folder that a run has left, or a file of rollouts")
    parser.add_argument("--to", choices=(*FORMATS, "record"), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--seed", type=int, help="which seed of a run, if there are several")
    return parser
