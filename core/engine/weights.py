"""Reads Hugging Face folders into a CausalLM and writes them back; bits survive the round trip."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from core.engine.arithmetic import choose_dtype
from core.engine.model import CausalLM, ModelConfig
from core.hub import CheckpointError, read_json

logger = logging.getLogger(__name__)


def load_config(folder: Path) -> ModelConfig:
    """Read the model's sizes from `folder`/config.json."""
    from transformers import AutoConfig

    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{path}: missing. A checkpoint folder holds config.json and *.safetensors; is this one complete?"
        )
    try:
        return ModelConfig.from_hf(AutoConfig.from_pretrained(folder))
    except Exception as error:  # transformers raises whatever its parsing of a corrupt file trips over
        raise CheckpointError(f"{path}: {error}") from error


def find_device(device: str) -> torch.device:
    """Return the device that `device` names; auto is the GPU where there is one."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    here = ["cpu", *(f"cuda:{number}" for number in range(torch.cuda.device_count()))]
    if (f"{device}:0" if device == "cuda" else device) not in here:
        raise CheckpointError(f"model.device {device}: PyTorch sees no such device here; there are: {', '.join(here)}")
    return torch.device(device)


def load(folder: Path, dtype: str = "float32", device: str = "auto") -> CausalLM:
    """Build the model of `folder` and read its weights.

    `device` auto is the GPU where there is one; `dtype` auto is what this machine computes fastest in.
    """
    place = find_device(device)
    config = load_config(folder)
    if dtype == "auto":
        dtype, reason = choose_dtype(config, place)
        logger.info("%s: dtype auto is %s (%s)", folder, dtype, reason)
    with torch.device("meta"):  # tensors without data: they take their number format before they take memory
        model = CausalLM(config).to(getattr(torch, dtype))
    model.to_empty(device=place)
    model.inv_freq = torch.tensor(config.inv_freq)
    if config.tie_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    load_into(model, folder)
    return model


def load_into(model: CausalLM, folder: Path) -> None:
    """Copy the weights of `folder` into `model`. A broken folder raises CheckpointError before anything is changed."""
    assign(model, read(model, folder))


def read(model: CausalLM, folder: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of `folder` that `model` needs, by parameter name; `model` is not changed.

    Raises:
        CheckpointError: a tensor is missing, has another shape or cannot be read.
    """
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors.update(load_file(path))
        except (SafetensorError, OSError) as error:
            raise CheckpointError(
                f"{path}: cannot be read ({error}). Delete it and copy or download it again."
            ) from error
    wanted = dict(model.named_parameters())
    missing = sorted(wanted.keys() - tensors.keys())
    if missing:
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
    for name, parameter in wanted.items():
        if tensors[name].shape != parameter.shape:
            found, expected = tuple(tensors[name].shape), tuple(parameter.shape)
            raise CheckpointError(f"{folder}: {name} has shape {found}, config.json says {expected}")
    return {name: tensors[name] for name in wanted}


@torch.no_grad()
def assign(model: CausalLM, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy what `read` returned into `model` in place, so that everything that holds the model sees it."""
    for name, parameter in model.named_parameters():
        parameter.copy_(tensors[name])


def save(model: CausalLM, folder: Path, like: Path, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write `model` as safetensors into `folder`, with config, tokenizer and chat template copied from `like`.

    `tensors` replace the model's parameters, by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in like.iterdir() if like != folder else ():
        if (
            path.is_file()
            and path.suffix in (".json", ".txt", ".jinja", ".model")
            and not path.name.endswith(".index.json")
        ):
            shutil.copyfile(path, folder / path.name)
    saved = {name: p.detach().cpu().contiguous() for name, p in (tensors or dict(model.named_parameters())).items()}
    save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Read the ids that end a completion, from generation_config.json or else config.json."""
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        if path.is_file():
            eos = read_json(path).get("eos_token_id")
            if eos is not None:
                return tuple(eos) if isinstance(eos, list) else (eos,)
    return ()


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of `folder`; a missing one raises CheckpointError."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index}: has no weight_map; copy or download the file again.")
        if strays := [name for name in weight_map.values() if not isinstance(name, str) or Path(name).name != name]:
            raise CheckpointError(f"{index}: weight_map names {strays[0]!r}, which is no file of this folder.")
        files = sorted({folder / name for name in weight_map.values()})
        missing = [path for path in files if not path.is_file()]
        if missing:
            raise CheckpointError(f"{missing[0]}: missing, although {index.name} lists it. Is the download complete?")
        return files
    single = folder / "model.safetensors"
    if not single.is_file():
        raise CheckpointError(
            f"{single}: missing. Only safetensors checkpoints are read; convert .bin files with save_pretrained."
        )
    return [single]
