"""Hugging Face -> megatron-core -> torch_dist on disk -> megatron-core -> Hugging Face, on the CPU.

    bash tests/optional/megatron_cpu/setup.sh
    tests/optional/megatron_cpu/.venv/bin/python tests/optional/megatron_cpu/round_trip.py MODEL OUT

MODEL is a small Qwen2 folder in float32. OUT gets `hf` and `torch_dist/iter_0000001`, which is laid out as Megatron
lays it out, with the arguments that slime's converter reads. Prints what was compared as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

warnings.filterwarnings("ignore")  # megatron-core misses Apex and Transformer Engine, once per module

# Saving waits for copies off the GPU, and counts failures on it. Here there is none.
torch.cuda.synchronize = lambda device=None: None
torch.cuda.current_device = lambda: torch.device("cpu")  # type: ignore[assignment, return-value]

LAYER = "model.layers.{layer_number}."


def open_bridge(folder: Path) -> Any:
    """mbridge's Qwen2, with megatron-core's own layers in place of Transformer Engine's, which need CUDA."""
    from mbridge.models.qwen2 import Qwen2Bridge
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from transformers import AutoConfig

    class LocalQwen2Bridge(Qwen2Bridge):
        # Transformer Engine keeps a norm inside of the linear layer that follows it; here it is a module of its own.
        _OTHER_MAPPING = {"input_layernorm.weight": [f"{LAYER}input_layernorm.weight"]}  # noqa: RUF012
        _MLP_MAPPING = Qwen2Bridge._MLP_MAPPING | {
            "pre_mlp_layernorm.weight": [f"{LAYER}post_attention_layernorm.weight"]
        }

        def _get_transformer_layer_spec(self, vp_stage: int | None = None) -> Any:
            return get_gpt_layer_local_spec(normalization="RMSNorm")

    config = AutoConfig.from_pretrained(folder)
    config.rope_theta = config.rope_parameters["rope_theta"]  # where mbridge looks for it
    bridge = LocalQwen2Bridge(config, dtype=torch.float32)
    bridge.set_extra_args(use_cpu_initialization=True, persist_layer_norm=False, masked_softmax_fusion=False)
    return bridge


def build(bridge: Any) -> torch.nn.Module:
    model: torch.nn.Module = bridge._model_provider([])(pre_process=True, post_process=True)
    return model.eval()


@torch.no_grad()
def megatron_logits(model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
    length = ids.shape[1]
    hidden_from = torch.ones(1, 1, length, length, dtype=torch.bool).triu(1)
    logits: torch.Tensor = model(ids, torch.arange(length)[None], hidden_from)
    return logits


@torch.no_grad()
def hugging_face_logits(folder: Path, ids: torch.Tensor) -> torch.Tensor:
    from transformers import AutoModelForCausalLM

    logits: torch.Tensor = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()(ids).logits
    return logits


def save_torch_dist(model: Any, folder: Path) -> None:
    """As `megatron.training.checkpointing.save_checkpoint` lays it out, without an optimizer."""
    from megatron.core import dist_checkpointing

    config = model.config
    sizes = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "kv_channels", "ffn_hidden_size")
    args = argparse.Namespace(
        **{name: getattr(config, name) for name in sizes}, vocab_size=model.vocab_size, q_lora_rank=None
    )
    iteration = folder / "iter_0000001"
    iteration.mkdir(parents=True)
    state = {"args": args, "iteration": 1, "model": model.sharded_state_dict()}
    dist_checkpointing.save(state, str(iteration))
    (folder / "latest_checkpointed_iteration.txt").write_text("1")


def load_torch_dist(model: Any, folder: Path) -> None:
    from megatron.core import dist_checkpointing

    state = dist_checkpointing.load({"model": model.sharded_state_dict()}, str(folder / "iter_0000001"))
    model.load_state_dict(state["model"])


def read_tensors(folder: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@contextmanager
def one_process() -> Iterator[None]:
    """torch.distributed and megatron-core's groups, all of size one."""
    from megatron.core import parallel_state, tensor_parallel

    tensor_parallel.get_cuda_rng_tracker().fork = nullcontext  # it holds a GPU's state, for dropout; there is none
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    parallel_state.initialize_model_parallel()
    try:
        yield
    finally:
        torch.distributed.destroy_process_group()


def round_trip(source: Path, out: Path) -> dict[str, Any]:
    """Returns what was compared: tensors, whether they are bit-equal, and the largest difference of logits."""
    bridge = open_bridge(source)
    model = build(bridge)
    bridge.load_weights([model], str(source))
    save_torch_dist(model, out / "torch_dist")
    again = build(bridge)
    load_torch_dist(again, out / "torch_dist")
    bridge.save_weights([again], str(out / "hf"))

    before, after = read_tensors(source), read_tensors(out / "hf")
    ids = torch.randint(bridge.hf_config.vocab_size, (1, 64), generator=torch.Generator().manual_seed(0))
    reference = hugging_face_logits(source, ids)
    return {
        "tensors": len(before),
        "bit_equal": before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before),
        "megatron_logits_differ_by": (megatron_logits(again, ids) - reference).abs().max().item(),
        "returned_logits_differ_by": (hugging_face_logits(out / "hf", ids) - reference).abs().max().item(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path, help="deleted first if it exists")
    options = parser.parse_args()
    shutil.rmtree(options.out, ignore_errors=True)
    with one_process():
        print(json.dumps(round_trip(options.model, options.out)))


if __name__ == "__main__":  # saving spawns processes that import this file
    main()
