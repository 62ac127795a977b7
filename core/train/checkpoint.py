"""Writes and reads checkpoints: a Hugging Face folder plus trainer.pt (optimizer, steps, data cursor).

A checkpoint is written under a partial name and then renamed, so a process killed at any moment leaves the previous
ones usable. Only the latest two keep `trainer.pt`; all keep their weights. The weights of a model with adapters are the
merged ones, and a folder within holds the adapters.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError

from core.engine import CausalLM, lora, weights
from core.hub import CheckpointError
from core.runs.files import make_folder, sync
from core.runs.run_folder import list_checkpoints

STATE = "trainer.pt"


def save(
    checkpoints: Path,
    step: int,
    model: CausalLM,
    like: Path,
    state: dict[str, Any],
    beside: Mapping[str, CausalLM] = MappingProxyType({}),
) -> Path:
    """Write checkpoint `step`, with config and tokenizer copied from the folder `like`.

    Each model of `beside` gets a folder of its name within.
    """
    target = checkpoints / f"step-{step:06d}"
    with write_atomically(target, checkpoints / f".{target.name}.partial") as partial:
        for folder, each in ((partial, model), *((partial / name, other) for name, other in beside.items())):
            weights.save(each, folder, like, lora.merge_weights(each))
            if lora.find_adapters(each):
                lora.save(each, folder / lora.FOLDER, base=like)
        torch.save({**state, "step": step}, partial / STATE)
    drop_old_states(checkpoints)
    return target


def drop_old_states(checkpoints: Path) -> None:
    """Keep the latest two `trainer.pt` and delete the others. A process that is killed in `save` leaves a third."""
    for old in [step for step in list_checkpoints(checkpoints) if (step / STATE).is_file()][:-2]:
        (old / STATE).unlink(missing_ok=True)


@contextmanager
def write_atomically(target: Path, partial: Path) -> Iterator[Path]:
    """Yield the folder `partial` to write into, then make it `target`, which is whole or absent even without power.

    Raises:
        CheckpointError: it cannot be written, such as for lack of space.
    """
    shutil.rmtree(partial, ignore_errors=True)
    try:
        make_folder(target.parent)
        yield partial
        for path in (*partial.rglob("*"), partial):
            sync(path)
        if target.exists():
            target.rename(partial / "replaced")  # a folder that is deleted file by file would look like a checkpoint
        partial.rename(target)
        sync(target.parent)
        shutil.rmtree(target / "replaced", ignore_errors=True)
    except (OSError, RuntimeError, SafetensorError) as error:  # torch and safetensors have errors of their own
        shutil.rmtree(partial, ignore_errors=True)
        raise CheckpointError(
            f"{target}: cannot be written ({error}). Free space and run again: the run goes on from the one before."
        ) from error


def latest(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint that training can resume from."""
    return next((path for path in reversed(list_checkpoints(checkpoints)) if (path / STATE).is_file()), None)


def find_newest(checkpoints: Path) -> Path | None:
    """Return the newest checkpoint, None without any; what was logged after an older one would be lost.

    Raises:
        CheckpointError: training cannot go on from it.
    """
    newest = next(reversed(list_checkpoints(checkpoints)), None)
    if newest is not None and not (newest / STATE).is_file():
        raise CheckpointError(
            f"{newest / STATE}: is missing, and training goes on from it. Put it back, or delete {newest} and go on "
            "from the checkpoint before it."
        )
    return newest


def load(checkpoint: Path, model: CausalLM, beside: Mapping[str, CausalLM] = MappingProxyType({})) -> dict[str, Any]:
    """Read the weights, or those of its adapters, into `model` and each of `beside`; return the state saved with them.

    Raises:
        CheckpointError: a file is corrupt; the message names it.
    """
    path = checkpoint / STATE
    try:
        # The trainer moves each tensor to its place. So a card need not hold it twice, and the machine, which then maps
        # the file, need not hold it at all.
        mapped = model.device.type == "cuda"
        state: dict[str, Any] = torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)
    except Exception as error:  # torch raises whatever its parsing of a corrupt file trips over
        raise CheckpointError(
            f"{path}: cannot be read ({error}). Delete {checkpoint}; the run resumes from the one before."
        ) from error
    try:
        for folder, each in ((checkpoint, model), *((checkpoint / name, other) for name, other in beside.items())):
            if lora.find_adapters(each):
                lora.load(each, folder / lora.FOLDER)
            else:
                weights.load_into(each, folder)
    except CheckpointError as error:
        raise CheckpointError(f"{error} Or delete {checkpoint}; the run resumes from the one before.") from error
    return state
