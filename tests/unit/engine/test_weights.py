"""Hugging Face folders: bits survive the way in and out, and a broken file is named before anything is changed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from core.engine import Engine, weights
from core.hub import CheckpointError


@pytest.fixture
def folder(qwen2: Path, tmp_path: Path) -> Path:
    """A copy of the model that a test may break."""
    return Path(shutil.copytree(qwen2, tmp_path / "broken"))


SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def shard(folder: Path) -> None:
    """Cut the weights of `folder` into two files with an index."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {SHARDS[0]: names[::2], SHARDS[1]: names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()


def test_the_round_trip_keeps_every_bit_and_tied_heads_one_tensor(any_model, tmp_path):
    model = weights.load(any_model)
    tied = json.loads((any_model / "config.json").read_text())["tie_word_embeddings"]
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    weights.save(model, tmp_path / "out", like=any_model)
    before, after = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (any_model, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = weights.load(tmp_path / "out")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    assert ("lm_head.weight" in load_file(tmp_path / "out" / "model.safetensors")) == (not tied)


def test_shards_are_read_through_their_index_and_saved_as_one_file(qwen2, folder, tmp_path):
    shard(folder)
    weights.save(weights.load(folder), tmp_path / "out", like=folder)
    assert not list((tmp_path / "out").glob("*.index.json"))
    whole = list(weights.load(qwen2).parameters())
    for copy in (folder, tmp_path / "out"):
        assert all(torch.equal(a, b) for a, b in zip(whole, weights.load(copy).parameters(), strict=True))


class _Allocations(TorchDispatchMode):
    """Collects the number formats of the tensors on the CPU that operators return."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.device.type == "cpu" and result.ndim > 1:
            self.dtypes.add(result.dtype)
        return result


def test_a_bfloat16_model_never_takes_the_size_of_a_float32_one(qwen2, monkeypatch):
    monkeypatch.setattr(weights, "load_into", lambda model, folder: None)  # the file itself is in float32
    with _Allocations() as allocations:
        weights.load(qwen2, "bfloat16", "cpu")
    assert allocations.dtypes == {torch.bfloat16}


WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
NORM = "model.norm.weight"
FP8 = '{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}'
DAMAGES: dict[str, tuple[dict[str, bytes | dict[str, torch.Tensor | None] | None], str]] = {
    "absent": ({WEIGHTS: None}, WEIGHTS),
    "empty": ({WEIGHTS: b""}, WEIGHTS),
    "truncated": ({WEIGHTS: b"\x00" * 50}, WEIGHTS),
    "garbage": ({WEIGHTS: b"\xff" * 1000}, WEIGHTS),
    "tensor missing": ({WEIGHTS: {NORM: None}}, NORM),
    "shape": ({WEIGHTS: {NORM: torch.zeros(7)}}, rf"{NORM} has shape \(7,\), config.json says \(32,\)"),
    "tensor left over": (
        {WEIGHTS: {"model.layers.9.mlp.scale": torch.zeros(2)}},
        "1 tensors have no place in the model of config.json: model.layers.9.mlp.scale",
    ),
    "int8": ({WEIGHTS: {NORM: torch.zeros(32, dtype=torch.int8)}}, f"{NORM} is torch.int8"),
    "float8": ({WEIGHTS: {NORM: torch.zeros(32, dtype=torch.float8_e4m3fn)}}, f"{NORM} is torch.float8_e4m3fn"),
    "fp8 config": ({"config.json": FP8.encode()}, "quantized .*quant_method fp8"),
    "gptq file": ({"quantize_config.json": b"{}"}, "quantized .quantize_config.json"),
    "index": ({INDEX: b"{broken"}, INDEX),
    "index without map": ({INDEX: b"{}"}, INDEX),
    "twice": ({SHARDS[0]: {}}, SHARDS[1]),
    "whole beside shards": ({SHARDS[0]: {}, WEIGHTS: {}}, f"{WEIGHTS} is none of the files of {INDEX}"),
    "shard missing": ({SHARDS[1]: None}, SHARDS[1]),
    "shard truncated": ({SHARDS[1]: b"\x00" * 50}, SHARDS[1]),
}
"""For each damage: what its files become (bytes, all tensors but for these, none), and what the error must hold."""


@pytest.mark.parametrize("how", DAMAGES)
def test_a_broken_checkpoint_is_named_and_changes_nothing(folder, other_qwen2, how):
    files, named = DAMAGES[how]
    tensors = load_file(folder / WEIGHTS)
    if files.keys() & set(SHARDS):
        shard(folder)
    for name, content in files.items():
        if content is None:
            (folder / name).unlink()
        elif isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            save_file({k: v for k, v in {**tensors, **content}.items() if v is not None}, folder / name)
    model = weights.load(other_qwen2)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(CheckpointError, match=named) as caught:
        weights.load_into(model, folder)
    assert str(folder) in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize(
    ("content", "named"),
    [
        (None, "missing"),
        ("{broken", "config.json"),
        ("[]", "config.json"),
        ("{}", "model_type"),
        ('{"model_type": "mamba2"}', "is not supported: "),
        ('{"model_type": "qwen2", "hidden_size": "wide"}', "hidden_size"),
        ('{"model_type": "llama", "rope_parameters": {"rope_theta": 1, "partial_rotary_factor": 0.5}}', "whole heads"),
        (
            '{"model_type": "qwen2", "use_sliding_window": true, "rope_parameters": {"rope_type": "default", '
            '"rope_theta": 1, "partial_rotary_factor": 0.5}}',
            "whole heads",
        ),
    ],
)
def test_a_broken_config_is_named(folder, content, named):
    path = folder / "config.json"
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(CheckpointError, match=named) as caught:
        weights.load(folder)
    assert str(path) in str(caught.value)


def test_the_ids_that_end_a_completion(folder):
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "config.json").write_text('{"eos_token_id": 7}')
    assert weights.eos_token_ids(folder) == (7,)
    (folder / "generation_config.json").write_text('{"eos_token_id": [3, 4]}')
    assert weights.eos_token_ids(folder) == (3, 4)
    (folder / "generation_config.json").write_text("{}")
    assert weights.eos_token_ids(folder) == (7,)
    (folder / "config.json").write_text('{"eos_token_id": null, "text_config": {"eos_token_id": 0}}')
    assert weights.eos_token_ids(folder) == (0,)
    (folder / "generation_config.json").write_text("{broken")
    with pytest.raises(CheckpointError, match=r"generation_config\.json"):
        weights.eos_token_ids(folder)


@pytest.mark.parametrize(("count", "device"), [(0, "cuda"), (0, "cuda:0"), (2, "cuda:2")])
def test_a_device_that_is_not_here_is_named_with_those_that_are(
    count: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    here = ", ".join(["cpu", "cuda:0", "cuda:1"][: 1 + count])
    with pytest.raises(CheckpointError, match=f"model.device {device}: PyTorch sees no such device here.* {here}$"):
        weights.find_device(device)
    assert weights.find_device("cpu").type == "cpu"


@pytest.mark.parametrize("name", ["../model/model.safetensors", "/etc/passwd", 7])
def test_an_index_that_leads_out_of_its_folder_is_refused(name: object, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(CheckpointError, match="no file of this folder"):
        weights.weight_files(tmp_path)


def set_config(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **keys}))


def test_a_head_beside_a_tied_embedding_is_never_lost(folder: Path, tmp_path: Path) -> None:
    """The folder's head is another matrix than its embedding. Its twin is no loss; untied, it survives."""
    set_config(folder, tie_word_embeddings=True)
    with pytest.raises(CheckpointError, match=r"lm_head\.weight is another matrix than model.embed_tokens.weight"):
        weights.load(folder)
    set_config(folder, tie_word_embeddings=False)
    weights.save(weights.load(folder), tmp_path / "out", like=folder)
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(load_file(tmp_path / "out" / "model.safetensors")["lm_head.weight"], tensors["lm_head.weight"])
    set_config(folder, tie_word_embeddings=True)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, folder / "model.safetensors")
    model = weights.load(folder)
    assert model.lm_head.weight is model.model.embed_tokens.weight


@pytest.mark.parametrize(
    "said",
    [{"dtype": "bfloat16"}, {"torch_dtype": "bfloat16"}, {"dtype": None}, {"vision_config": {"dtype": "bfloat16"}}],
)
@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
def test_the_config_says_what_is_stored(folder: Path, tmp_path: Path, said: dict[str, str], stored: str) -> None:
    set_config(folder, **said)
    model = weights.load(folder, stored, "cpu")
    weights.save(model, tmp_path / "out", like=folder)
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto").state_dict()
    assert all(torch.equal(parameter, again[name]) for name, parameter in model.named_parameters())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    parts = (config, config.get("vision_config", {}))
    assert {part[name] for part in parts for name in ("dtype", "torch_dtype") if name in part} == {stored}


def test_weights_of_two_formats_are_named_by_the_wider_one(folder: Path, tmp_path: Path) -> None:
    model = weights.load(folder, "bfloat16", "cpu")
    mixed = {name: p.float() if "norm" in name else p for name, p in model.named_parameters()}
    weights.save(model, tmp_path / "out", like=folder, tensors=mixed)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "float32"
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert all(stored[name].dtype == tensor.dtype for name, tensor in mixed.items())


@pytest.mark.parametrize("said", [{"rms_norm_eps": 0.01}, {"rope_parameters": {"rope_type": "linear", "factor": 2.0}}])
def test_weights_of_a_model_that_computes_otherwise_are_refused(folder: Path, said: dict[str, object]) -> None:
    model = weights.load(folder)
    set_config(folder, dtype="bfloat16", max_position_embeddings=512, use_cache=False, pad_token_id=3)
    weights.load_into(model, folder)
    set_config(folder, **said)
    with pytest.raises(CheckpointError, match=f"config.json has another {next(iter(said))} than the model"):
        weights.load_into(model, folder)


def test_old_rotary_frequencies_are_no_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
    save_file(tensors, folder / "model.safetensors")
    weights.load(folder)


@pytest.mark.parametrize(
    ("rope", "positions"),
    [
        ({"rope_type": "default"}, 256),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}, 1024),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"rope_type": "linear", "factor": 2.0}, 512),
    ],
)
def test_the_context_is_what_the_config_allows(folder: Path, rope: dict[str, object], positions: int) -> None:
    set_config(folder, rope_parameters={**rope, "rope_theta": 1e4})
    config = weights.load_config(folder)
    assert config.context(None) == config.context(positions) == positions
    assert config.context(positions - 1) == positions - 1
    wanted = positions + 1
    with pytest.raises(ValueError, match=f"max_model_len {wanted} is above the {positions} positions"):
        config.context(wanted)
    with pytest.raises(ValueError, match=f"max_model_len {wanted} is above the {positions} positions"):
        Engine.from_pretrained(folder, device="cpu", max_model_len=wanted, kv_tokens=4096)
    assert Engine.from_pretrained(folder, device="cpu", kv_tokens=4096).max_model_len == positions
