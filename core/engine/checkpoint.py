"""Writes and reads checkpoints: a Hugging Face folder plus trainer.pt (optimizer, steps, data cursor).

A checkpoint is written under a partial name and then renamed, so a process killed at any moment leaves the previous
ones usable. Only the latest two keep `trainer.pt`; all keep their weights.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from core.engine import weights
from core.engine.model import CausalLM
from core.hub import CheckpointError

STATE = "trainer.pt"


def save(checkpoints: Path, step: int, model: CausalLM, like: Path, state: dict[str, Any]) -> Path:
    """Write checkpoint `step`, with config and tokenizer copied from the folder `like`."""
    target = checkpoints / f"step-{step:06d}"
    partial = checkpoints / f".{target.name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    weights.save(model, partial, like)
    torch.save({**state, "step": step}, partial / STATE)
    for path in partial.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    for old in steps(checkpoints)[:-2]:
        (old / STATE).unlink(missing_ok=True)
    return target


def steps(checkpoints: Path) -> list[Path]:
    """List all complete checkpoints, oldest first."""
    return sorted(checkpoints.glob("step-*"))


def latest(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint that training can resume from."""
    return next((path for path in reversed(steps(checkpoints)) if (path / STATE).is_file()), None)


def load(checkpoint: Path, model: CausalLM) -> dict[str, Any]:
    """Read the weights into `model` and return the state saved with them.

    Raises:
        CheckpointError: a file is corrupt; the message names it.
    """
    path = checkpoint / STATE
    try:
        state: dict[str, Any] = torch.load(path, map_location=model.device, weights_only=True)
    except Exception as error:  # torch raises whatever its parsing of a corrupt file trips over
        raise CheckpointError(
            f"{path}: cannot be read ({error}). Delete {checkpoint}; the run resumes from the one before."
        ) from error
    weights.load_into(model, checkpoint)
    return state
