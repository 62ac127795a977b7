"""This module opens any file of rollouts: our record, and those of slime, TRL, verl, OpenEnv and Harbor."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from core.inspect.batch_dump import is_batch, read_batch
from core.inspect.slime_dump import read_samples
from core.runs.record import RecordedRollout, read_rollouts
from core.runs.run_folder import RunFolder


def list_records(path: Path) -> list[tuple[int, Path]]:
    """Return seed and file of each record that `path` stands for: itself, that of a gateway's, or a run's training.

    Raises ValueError if nothing is there.
    """
    for file in (path, path / "rollouts.jsonl.gz"):
        if file.is_file():
            return [(_read_seed(file), file)]
    if not path.exists():
        raise ValueError(f"{path}: there is no record, and no folder of a run or a gateway")
    folder = RunFolder(path)
    return [(seed, file) for seed in folder.seeds if (file := folder.rollouts_path(seed)).exists()]


def list_samples(folder: RunFolder) -> list[tuple[int, Path]]:
    """Return seed and file of each record of an evaluation."""
    return [(_read_seed(file), file) for file in sorted(folder.evaluation_path.glob("*.jsonl.gz"))]


def _read_seed(path: Path) -> int:
    """Return the seed that the name of an evaluation's record ends with; 0 for any other file."""
    found = re.search(r"__seed-(\d+)\.", path.name)
    return int(found[1]) if found else 0


def is_dump(path: Path) -> bool:
    """Say whether a file was written by `torch.save`, and so by another framework."""
    return path.suffix == ".pt"


def read_dump(path: Path) -> Iterator[RecordedRollout]:
    """Yield the rollouts of a file. Raises ValueError, which names the file, for a broken one."""
    if path.suffix == ".jsonl":
        from core.inspect.foreign import read_foreign  # here, because it needs the segments of the viewer

        yield from read_foreign(path)
        return
    if not is_dump(path):
        yield from read_rollouts(path)
        return
    import torch  # here, because reading our own record needs no torch

    try:
        dump = torch.load(path, map_location="cpu", weights_only=True)  # a dump from elsewhere must not run code
    except Exception as error:  # torch raises many types
        raise ValueError(f"{path} is no dump of slime, TRL or verl ({error})") from error
    yield from read_batch(dump, path) if is_batch(dump) else read_samples(dump, path)
