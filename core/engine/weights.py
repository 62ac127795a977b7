"""Reads Hugging Face folders into a CausalLM and writes them back; bits survive the round trip."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from core.engine import any_decoder, four_bits
from core.engine.any_decoder import AnyDecoder
from core.engine.arithmetic import choose_dtype
from core.engine.heap import keep_freed_memory, map_large_tensors
from core.engine.lora import AdapterSizes
from core.engine.model import CausalLM, Linear, ModelConfig, has_own_file
from core.hub import SMALL_FILES, CheckpointError, check_unquantized, read_json
from core.text.tokenizer import find_tokenizer, find_turn_end

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

_UNSEEN = re.compile("rope|eps|window|scal|softcap")
"""Finds the entries of configs that change what is computed, and no tensor; others such as `use_cache` may differ."""

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
        hf = AutoConfig.from_pretrained(folder)
        return ModelConfig.from_hf(hf) if has_own_file(hf) else any_decoder.describe(hf)
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


def load(folder: Path, dtype: str = "float32", device: str = "auto", adapters: AdapterSizes | None = None) -> CausalLM:
    """Build the model of `folder` and read its weights.

    `device` auto is the GPU where there is one; `dtype` auto is what `choose_dtype` says. What `find_packable` lists is
    kept in 4 bits, if that is what the `adapters` to come want.

    Raises:
        CheckpointError: as `read`; or there is no such device; or 4 bits are wanted, and bitsandbytes is not installed
            or no weight can be packed.
    """
    place = find_device(device)
    if place.type == "cpu":
        keep_freed_memory()
    config = load_config(folder)
    if dtype == "auto":
        dtype, reason = choose_dtype(config, place)
        logger.info("%s: dtype auto is %s (%s)", folder, dtype, reason)
    if adapters is not None and adapters.load_in_4bit:
        four_bits.require_package()
        if place.type == "cpu":
            map_large_tensors()  # else glibc keeps what packing frees, as much again in bfloat16
        whole = load(folder, dtype, "cpu")  # the card may have no room for it
        if not (linears := find_packable(whole)):
            raise CheckpointError(f"{folder}: model.lora.load_in_4bit packs no weight of this model; set it to false")
        packed = sum(linear.weight.numel() for linear in linears)
        share = packed / sum(parameter.numel() for parameter in whole.parameters())
        logger.info("%s: %.0f %% of the weights are kept in 4 bits", folder, 100 * share)
        for linear in linears:
            linear.pack_in_4_bits(place)
        return whole.to(place)
    if config.other:
        return load_other(folder, dtype, place)
    # Without data, the tensors take their number format before they take memory.
    model = make_empty(config).to(getattr(torch, dtype)).to_empty(device=place)
    model.inv_freq = torch.tensor(config.inv_freq)
    if config.tie_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    load_into(model, folder)
    return model


def find_packable(model: CausalLM) -> list[Linear]:
    """Return the linear maps whose weights `load_in_4bit` packs: all but the head, if their shape allows it."""
    linears = [module for module in model.modules() if isinstance(module, Linear) and module is not model.lm_head]
    return [linear for linear in linears if four_bits.can_pack(linear.weight.shape)]


def load_other(folder: Path, dtype: str, device: torch.device) -> AnyDecoder:
    """Build the model of `folder` with the layers of transformers, also where there are layers of ours."""
    from transformers import AutoConfig

    config = any_decoder.describe(AutoConfig.from_pretrained(folder))
    check_unquantized(folder)
    _find_dtype(folder)
    model = any_decoder.load(config, folder, getattr(torch, dtype), device)
    any_decoder.check_forward(model, folder)
    if beside := find_beside(model, folder):
        logger.warning(
            "%s: %d tensors beside the text model stay as they are, the first is %s", folder, len(beside), min(beside)
        )
    return model


def make_empty(config: ModelConfig) -> CausalLM:
    """Make a model whose tensors have no data."""
    if config.other:
        return any_decoder.make_empty(config)
    with torch.device("meta"):
        model = CausalLM(config)
    if config.tie_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight
    return model


def check(folder: Path) -> torch.dtype:
    """Check that the files of weights are whole and hold what config.json says; return the widest number format.

    The tensors of a model that the engine does not run have no names to compare with.

    Raises:
        CheckpointError: as `read`.
    """
    tensors = [tensor for path in weight_files(folder) for tensor in _load_file(path).values()]
    check_unquantized(folder)
    try:
        config = load_config(folder)
    except CheckpointError:
        pass  # a model that the engine does not run
    else:
        read(make_empty(config), folder)
    return max((tensor.dtype for tensor in tensors), key=lambda dtype: dtype.itemsize)


def load_into(model: CausalLM, folder: Path) -> None:
    """Copy the weights of `folder` into `model`. A broken folder raises CheckpointError before anything is changed."""
    assign(model, read(model, folder))


def read(model: CausalLM, folder: Path) -> dict[str, torch.Tensor]:
    """Read the tensors of `folder` by parameter name; `model` is not changed.

    Raises:
        CheckpointError: a tensor is missing, left over, there twice, quantized, of another shape, or cannot be read, or
            config.json says to compute something else with them.
    """
    check_unquantized(folder)
    if isinstance(model, AnyDecoder):
        stored = any_decoder.load(model.config, folder, _find_dtype(folder), torch.device("cpu"))
        _check_config(folder, model.config)
        return any_decoder.name_tensors(stored)
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(folder):
        part = _load_file(path)
        if twice := sorted(tensors.keys() & part.keys()):
            raise CheckpointError(f"{path}: {twice[0]} is in another file of {folder} too. Delete one of them")
        tensors.update(part)
    wanted = dict(model.named_parameters())
    missing = sorted(wanted.keys() - tensors.keys())
    if missing:
        raise CheckpointError(f"{folder}: {len(missing)} tensors are missing, the first is {missing[0]}")
    for name, parameter in wanted.items():
        if not tensors[name].is_floating_point() or tensors[name].element_size() < 2:
            raise CheckpointError(f"{folder}: {name} is {tensors[name].dtype}: quantized; take the plain checkpoint")
        if tensors[name].shape != parameter.shape:
            found, expected = tuple(tensors[name].shape), tuple(parameter.shape)
            raise CheckpointError(f"{folder}: {name} has shape {found}, config.json says {expected}")
    _check_left_over(folder, wanted, tensors)
    _check_config(folder, model.config)
    return {name: tensors[name] for name in wanted}


def _find_dtype(folder: Path) -> torch.dtype:
    """Return the widest number format of the stored tensors, which are not read.

    Raises:
        CheckpointError: a tensor is quantized, or a file is broken.
    """
    floats = []
    for path in weight_files(folder):
        with _name_broken_file(path), safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118 (a file is no mapping)
                part = file.get_slice(name)
                dtype = (part[:0] if part.get_shape() else file.get_tensor(name)).dtype
                if dtype.itemsize < 2:
                    raise CheckpointError(f"{folder}: {name} is {dtype}: quantized; take the plain checkpoint")
                if dtype.is_floating_point:
                    floats.append(dtype)
    return max(floats, key=lambda dtype: dtype.itemsize)


def _load_file(path: Path) -> dict[str, torch.Tensor]:
    with _name_broken_file(path):
        return load_file(path)


@contextmanager
def _name_broken_file(path: Path) -> Iterator[None]:
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}). Delete it and copy or download it again.") from error


def _check_left_over(folder: Path, wanted: Container[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Raise CheckpointError for tensors that have no place in the model: the next checkpoint would be without them."""
    # Old checkpoints keep the rotary frequencies, which follow from config.json.
    left = [name for name in tensors if name not in wanted and not name.endswith("rotary_emb.inv_freq")]
    if HEAD in left and torch.equal(tensors[HEAD], tensors[EMBEDDING]):
        left.remove(HEAD)  # a tied head that is stored twice
    elif HEAD in left:
        raise CheckpointError(
            f"{folder}: config.json says tie_word_embeddings: true, and {HEAD} is another matrix than {EMBEDDING}. Set "
            f"it to false, which keeps the head, or delete {HEAD} if it is a leftover"
        )
    if left:
        names = ", ".join(sorted(left)[:8]) + (" ..." if len(left) > 8 else "")
        raise CheckpointError(
            f"{folder}: {len(left)} tensors have no place in the model of config.json: {names}. Correct config.json, "
            "or delete what this model does not need"
        )


def _check_config(folder: Path, config: ModelConfig) -> None:
    """Raise CheckpointError if config.json differs from `config` in what no shape of a tensor shows."""
    if not (folder / "config.json").is_file():
        return
    ours, theirs = _list_unseen(config), _list_unseen(load_config(folder))
    if other := sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)):
        raise CheckpointError(
            f"{folder}: config.json has another {', '.join(other)} than the model that is to take the weights"
        )


def _list_unseen(config: ModelConfig) -> dict[str, Any]:
    other = json.loads(config.other or "{}")
    return {
        "num_attention_heads": (config.num_heads, config.num_kv_heads, config.head_dim),
        "rms_norm_eps": config.rms_norm_eps,
        "rope_parameters": (config.inv_freq, config.rope_scale),
        **{name: value for name, value in other.items() if _UNSEEN.search(name)},
    }


@torch.no_grad()
def assign(model: CausalLM, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy what `read` returned into `model` in place, so that everything that holds the model sees it."""
    wanted = any_decoder.name_tensors(model) if isinstance(model, AnyDecoder) else dict(model.named_parameters())
    for name, tensor in wanted.items():
        tensor.copy_(tensors[name])


def save(model: CausalLM, folder: Path, like: Path, tensors: Mapping[str, torch.Tensor] | None = None) -> None:
    """Write `model` as safetensors into `folder`, with config, tokenizer and chat template copied from `like`.

    `tensors` replace the model's parameters, by name. The config says the number format of what is written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    saved = {name: p.detach().cpu().contiguous() for name, p in (tensors or dict(model.named_parameters())).items()}
    if isinstance(model, AnyDecoder):
        if like.resolve() == folder.resolve():
            raise ValueError(f"{folder}: what the model has beside its text would be lost; save it into another folder")
        any_decoder.save(model, folder, saved)
        _copy_beside(find_beside(model, like), folder)
    else:
        save_file(saved, folder / "model.safetensors", metadata={"format": "pt"})
    for pattern in SMALL_FILES if like != folder else ():
        for path in like.glob(pattern):
            if path.is_file() and not path.name.endswith(".index.json"):
                shutil.copyfile(path, folder / path.name)
    write_dtype(folder, max((t.dtype for t in saved.values()), key=lambda dtype: dtype.itemsize))


def find_beside(model: AnyDecoder, folder: Path) -> dict[str, Path]:
    """Return the tensors of `folder` that belong to other parts than the text model, and the file of each."""
    beside = {}
    for path in weight_files(folder):
        with _name_broken_file(path), safe_open(path, "pt") as file:
            beside.update(dict.fromkeys(filter(model.is_beside, file.keys()), path))
    return beside


def _copy_beside(beside: Mapping[str, Path], folder: Path) -> None:
    """Write tensors of other files into a second file of `folder`, and the index of both."""
    if not beside:
        return
    tensors = {}
    for name, path in beside.items():
        with _name_broken_file(path), safe_open(path, "pt") as file:
            tensors[name] = file.get_tensor(name)
    first, second = (folder / f"model-0000{part}-of-00002.safetensors" for part in (1, 2))
    (folder / "model.safetensors").replace(first)
    save_file(tensors, second, metadata={"format": "pt"})
    with safe_open(first, "pt") as file:
        weight_map = dict.fromkeys(file.keys(), first.name) | dict.fromkeys(tensors, second.name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def write_dtype(folder: Path, dtype: torch.dtype) -> None:
    """Write the number format of the weights into `folder`/config.json: transformers rounds to it what it loads."""
    path = folder / "config.json"
    config = read_json(path) if path.is_file() else {}
    if not config:
        return
    before = json.dumps(config)
    config.setdefault("dtype", None)
    for part in (config, *config.values()):  # the text model of one with images has a format of its own
        if isinstance(part, dict):
            names = part.keys() & {"dtype", "torch_dtype"}  # what transformers 5 and 4 call it
            part.update(dict.fromkeys(names, str(dtype).removeprefix("torch.")))
    if json.dumps(config) != before:
        path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def eos_token_ids(folder: Path) -> tuple[int, ...]:
    """Return the ids that end a completion: of generation_config.json, or else config.json, and of the chat template.

    A base model's config may know the end of a document alone, while its template ends turns with another token.
    """
    ends: tuple[int, ...] = ()
    for name in ("generation_config.json", "config.json"):
        config = read_json(folder / name) if (folder / name).is_file() else {}
        eos = config.get("eos_token_id")
        if eos is None:
            eos = (config.get("text_config") or {}).get("eos_token_id")
        if eos is not None:
            ends = tuple(eos) if isinstance(eos, list) else (eos,)
            break
    tokenizer = find_tokenizer(folder)
    turn_end = None if tokenizer is None else find_turn_end(tokenizer)
    if turn_end is None or turn_end in ends:
        return ends
    logger.warning("%s: the chat template ends turns with %d, the config with %s; both end one", folder, turn_end, ends)
    return (*ends, turn_end)


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of `folder`; a missing one raises CheckpointError."""
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise CheckpointError(f"{index}: has no weight_map; copy or download the file again.")
        if strays := [name for name in weight_map.values() if not isinstance(name, str) or Path(name).name != name]:
            raise CheckpointError(f"{index}: weight_map names {strays[0]!r}, which is no file of this folder.")
        files = sorted({folder / name for name in weight_map.values()})
        if single.is_file() and single not in files:
            raise CheckpointError(
                f"{folder}: {single.name} is none of the files of {index.name}. Delete one of the two"
            )
        missing = [path for path in files if not path.is_file()]
        if missing:
            raise CheckpointError(f"{missing[0]}: missing, although {index.name} lists it. Is the download complete?")
        return files
    if not single.is_file():
        raise CheckpointError(
            f"{single}: missing. Only safetensors checkpoints are read; convert .bin files with save_pretrained."
        )
    return [single]
