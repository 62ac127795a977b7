"""The commands of the servers that a run starts for itself, and the GPUs that they get."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from core.config import RecipeError
from core.config.load import replace_keys
from core.engine.weights import load_config
from core.rollout.method import method_spec
from core.train.replicas import describe_replicas, make_commands, share_gpus

VLLM_REPLICA = ["inference.replicas=1", "inference.engine=vllm"]


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Load MemAgent's tiny recipe with these keys of `inference`, as if the machine had so many GPUs."""

    def load(gpus: int, visible: str | None = None, **keys: Any) -> Any:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        overrides = [f"inference.{key}={value}" for key, value in keys.items()]
        return method_spec("memagent").load("tiny", ["run.parallel_seeds=1", "model.device=auto", *overrides])

    return load


@pytest.mark.parametrize(
    ("gpus", "visible", "device", "replicas", "expected"),
    [
        (0, None, "auto", 2, [[], []]),
        (4, None, "auto", 3, [["1"], ["2"], ["3"]]),
        (4, None, "cuda:2", 3, [["0"], ["1"], ["3"]]),
        (4, None, "cpu", 2, [["0", "1"], ["2", "3"]]),
        (5, None, "auto", 2, [["1", "2"], ["3", "4"]]),
        (3, "GPU-a,7,5", "cuda:1", 2, [["GPU-a"], ["5"]]),
    ],
)
def test_each_server_gets_as_many_of_the_gpus_that_the_trainer_leaves(
    load, gpus, visible, device, replicas, expected
) -> None:
    read = load(gpus, visible, replicas=replicas, engine="sglang")
    assert share_gpus(replace_keys(read, {"model.device": device})) == expected


@pytest.mark.parametrize(
    ("gpus", "replicas", "engine", "named"),
    [
        (1, 1, "sglang", "1 servers cannot share 0 GPUs evenly"),
        (4, 2, "sglang", "2 servers cannot share 3 GPUs evenly"),
        (3, 1, "embedded", "set inference.replicas=2"),
    ],
)
def test_gpus_that_cannot_be_shared_out_are_an_error(load, gpus, replicas, engine, named) -> None:
    with pytest.raises(RecipeError, match=named):
        share_gpus(load(gpus, replicas=replicas, engine=engine))


def test_a_dry_run_tells_the_gpus_and_the_memory_of_each_server(load, qwen2: Path) -> None:
    def describe(gpus: int, **keys: Any) -> list[str]:
        read = load(gpus, replicas=2, kv_tokens=1000, **keys)
        return describe_replicas(replace_keys(read, {"model.dtype": "float32"}), load_config(qwen2))

    assert describe(5, engine="vllm")[1].startswith("replica-1 (vllm) on GPU 3, 4: weights 0.00 GB, and a cache")
    assert describe(0)[0].startswith("replica-0 (embedded) on no GPU: weights 0.00 GB, KV cache 0.00 GB")
    with pytest.raises(RecipeError, match="2 servers cannot share 1 GPUs"):
        describe(2, engine="sglang")


def test_a_server_gets_its_split_our_arguments_and_the_endpoint_for_weights(load, tmp_path: Path) -> None:
    engine = {"replicas": 1, "engine": "vllm", "replica_python": "/v/python", "replica_args": "--dtype 'bfloat16'"}
    read = replace_keys(load(3, **engine), {"model.path": str(tmp_path)})
    [(name, command)] = make_commands(read).items()
    assert name == "replica-0"
    assert command.words[0] == "/v/python"
    assert command.words[-4:] == ["--tensor-parallel-size", "2", "--dtype", "bfloat16"]
    assert str(tmp_path) in command.words
    assert command.environment == {"CUDA_VISIBLE_DEVICES": "1,2", "VLLM_SERVER_DEV_MODE": "1"}
    assert command.url.endswith(command.words[command.words.index("--port") + 1])


@pytest.mark.parametrize(
    ("engine", "own"),
    [
        ("embedded", "--max-model-len 512 --dtype float32 --kv-tokens 4096 --max-num-seqs 7"),
        ("vllm", "--max-model-len 512"),
    ],
)
def test_a_server_takes_no_longer_calls_than_the_recipe_allows(load, tmp_path: Path, engine: str, own: str) -> None:
    keys = {"replicas": 1, "engine": engine, "kv_tokens": 4096, "max_num_seqs": 7, "replica_args": "--last"}
    settings = {"model.path": str(tmp_path), "model.max_model_len": 512, "model.dtype": "float32"}
    (command,) = make_commands(replace_keys(load(0, **keys), settings)).values()
    assert " ".join(command.words).endswith(f"{own} --last")


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["inference.replicas=1", "inference.servers=[http://a:1]"], "in place of inference.servers"),
        (["inference.engine=vllm"], "set inference.replicas"),
        (["inference.replica_args=--tp 2"], "set inference.replicas"),
        (["inference.replicas=2", "run.parallel_seeds=2"], "one seed at a time"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(overrides: list[str], named: str) -> None:
    with pytest.raises(RecipeError, match=named):
        method_spec("memagent").load("tiny", ["run.parallel_seeds=1", *overrides])


@pytest.mark.parametrize("cut", ["rollout.top_p=0.9", "rollout.top_k=20"])
@pytest.mark.parametrize("keys", [["inference.servers=['vllm+http://a:1']"], VLLM_REPLICA])
def test_vllm_samples_no_cut_distribution_for_training(cut: str, keys: list[str]) -> None:
    """Its log-probs are of the tokens that are left, and importance weights would compare them with all."""
    spec, alone = method_spec("memagent"), "run.parallel_seeds=1"
    with pytest.raises(RecipeError, match="top_p and top_k: vLLM's log-probs"):
        spec.load("tiny", [alone, *keys, cut])
    spec.load("tiny", [alone, *keys])
    spec.load("tiny", [alone, "inference.servers=[http://a:1]", cut])
