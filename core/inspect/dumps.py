"""This module opens any file of rollouts: our record, and those of slime, TRL, verl, OpenEnv and Harbor."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from core.inspect.batch_dump import is_batch, read_batch
from core.inspect.slime_dump import read_samples
from core.runs.record import RecordedRollout, read_rollouts


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
