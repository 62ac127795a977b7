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

from core.engine import weights
from core.hub import CheckpointError


@pytest.fixture
def folder(qwen2: Path, tmp_path: Path) -> Path:
    """A copy of the model that a test may break."""
    return Path(shutil.copytree(qwen2, tmp_path / "broken"))


def shard(folder: Path) -> list[str]:
    """Cut the weights of `folder` into two files with an index; returns their names."""
    tensors = load_file(folder / "model.safetensors")
    names = sorted(tensors)
    halves = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
    for file, part in halves.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    index = {"metadata": {}, "weight_map": {name: file for file, part in halves.items() for name in part}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "model.safetensors").unlink()
    return list(halves)


def test_the_round_trip_keeps_every_bit(any_model, tmp_path):
    model = weights.load(any_model)
    weights.save(model, tmp_path / "out", like=any_model)
    before, after = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (any_model, tmp_path / "out"))
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    again = weights.load(tmp_path / "out")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def test_tied_heads_stay_one_tensor(any_model, tmp_path):
    model = weights.load(any_model)
    tied = json.loads((any_model / "config.json").read_text())["tie_word_embeddings"]
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    weights.save(model, tmp_path / "out", like=any_model)
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


def damage(folder: Path, how: str) -> str:
    """Break `folder` in one way; returns the name that the error must hold."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    match how:
        case "absent":
            file.unlink()
        case "empty":
            file.write_bytes(b"")
        case "truncated":
            file.write_bytes(file.read_bytes()[:-100])
        case "garbage":
            file.write_bytes(b"\xff" * 1000)
        case "tensor missing":
            del tensors["model.norm.weight"]
            save_file(tensors, file)
            return "model.norm.weight"
        case "shape":
            tensors["model.norm.weight"] = torch.zeros(7)
            save_file(tensors, file)
            return r"model.norm.weight has shape \(7,\), config.json says \(32,\)"
        case "shard missing":
            names = shard(folder)
            (folder / names[1]).unlink()
            return names[1]
        case "shard truncated":
            names = shard(folder)
            (folder / names[1]).write_bytes(b"\x00" * 50)
            return names[1]
        case "index":
            (folder / "model.safetensors.index.json").write_text("{broken")
            return "model.safetensors.index.json"
        case "index without map":
            (folder / "model.safetensors.index.json").write_text("{}")
            return "model.safetensors.index.json"
    return "model.safetensors"


DAMAGES = [
    "absent", "empty", "truncated", "garbage", "tensor missing", "shape", "shard missing", "shard truncated", "index",
    "index without map",
]  # fmt: skip


@pytest.mark.parametrize("how", DAMAGES)
def test_a_broken_checkpoint_is_named_and_changes_nothing(folder, other_qwen2, how):
    named = damage(folder, how)
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
        ('{"model_type": "gpt2"}', "not supported; supported: qwen2"),
        ('{"model_type": "qwen2", "hidden_size": "wide"}', "hidden_size"),
        ('{"model_type": "qwen2", "use_sliding_window": true}', "use_sliding_window"),
        ('{"model_type": "llama", "hidden_act": "gelu"}', "hidden_act 'gelu' is not supported"),
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
