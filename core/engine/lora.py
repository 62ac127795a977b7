"""Low-rank adapters (LoRA, Hu et al. 2021, section 4.1): W x + (alpha / rank) B A x, where A and B learn and W stays.

Sampling and training compute this same sum, so their log-probs agree as they do without adapters. The start model is
the model with its adapters switched off; the KL term needs no copy of it. A checkpoint holds the merged weights, and
the adapters in PEFT's format. Tensor suffixes: core/__init__.py.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Protocol

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from core.engine import kernel
from core.engine.model import CausalLM, Linear
from core.hub import CheckpointError, read_json

logger = logging.getLogger(__name__)

FOLDER = "adapter"
WEIGHTS_FILE = "adapter_model.safetensors"
PREFIX = "base_model.model."
"""Stands before the names of modules in PEFT's files."""


class AdapterSizes(Protocol):
    """Says which adapters there are, how large, and on what weights, as the section `model.lora` of a recipe does."""

    @property
    def rank(self) -> int: ...
    @property
    def alpha(self) -> float: ...
    @property
    def targets(self) -> Sequence[str]: ...
    @property
    def load_in_4bit(self) -> bool: ...


class Adapter:
    """Holds A [rank, inputs] and B [outputs, rank] of one linear map, in the number format of the model.

    As in PEFT, A begins with small random values and B with zeros: the first forward is that of the start model.
    """

    panels: tuple[Tensor, Tensor]
    """Holds A and `scale` times B as the tiles of a CPU read them; zeros fill up the rank."""

    def __init__(self, linear: Linear, sizes: AdapterSizes, generator: torch.Generator):
        like = linear.read_weight()
        outputs, inputs = like.shape
        # Drawn on the CPU in float32: the same values for every device and number format.
        start = (2 * torch.rand(sizes.rank, inputs, generator=generator) - 1) * inputs**-0.5
        self.lora_A = nn.Parameter(start.to(like))
        self.lora_B = nn.Parameter(like.new_zeros(outputs, sizes.rank))
        self.sizes = sizes
        self.scale = sizes.alpha / sizes.rank

    def __call__(self, y: Tensor, x: Tensor) -> Tensor:
        """Add to the outputs `y` of the linear map, [T, outputs], what the adapter makes of its inputs [T, inputs]."""
        # In one pass over `y`, and in place: no gradient needs what was there. Autocast knows no operator in place.
        return y.addmm_(F.linear(x, self.lora_A), self.lora_B.to(y.dtype).T, alpha=self.scale)

    def prepack(self) -> None:
        rest = -self.sizes.rank % kernel.BLOCK
        a, b = F.pad(self.lora_A.detach(), (0, 0, 0, rest)), F.pad(self.scale * self.lora_B.detach(), (0, rest))
        self.panels = kernel.pack_panels(a), kernel.pack_panels(b)

    def add_on_tiles(self, y: Tensor, x: Tensor) -> Tensor:
        """Add as `__call__`, rounding a row alike whatever rows are beside it: PyTorch's product does not."""
        a, b = self.panels
        return y.add_(kernel.multiply(kernel.multiply(x, a, None, a.shape[0] * kernel.BLOCK), b, None, y.shape[1]))

    def product(self) -> Tensor:
        """Return what the adapter adds to the weight, in float32 [outputs, inputs]."""
        return self.scale * (self.lora_B.detach().float() @ self.lora_A.detach().float())


def add_adapters(model: CausalLM, sizes: AdapterSizes | None, seed: int = 0) -> None:
    """Give each target of `sizes` an adapter, and freeze all other weights. Without `sizes` change nothing."""
    if sizes is None:
        return
    targets = _targets(model, sizes)
    if (states := model.config.states) and not any("linear_attn" in name for name in targets):
        words = "model.lora.targets: %d of %d layers get no adapter beside their MLP; add out_proj and in_proj_qkv(z)"
        logger.warning(words, len(states.layers), model.config.num_layers)
    model.requires_grad_(False)
    generator = torch.Generator().manual_seed(seed)
    for linear in targets.values():
        linear.adapter = Adapter(linear, sizes, generator)


def _targets(model: CausalLM, sizes: AdapterSizes) -> dict[str, Linear]:
    linears = {name: module for name, module in model.named_modules() if isinstance(module, Linear)}
    there = {name.rpartition(".")[2] for name in linears}
    if missing := sorted(set(sizes.targets) - there):
        names = ", ".join(sorted(there))
        raise CheckpointError(f"model.lora.targets: the model has no linear map {missing[0]}; name some of {names}")
    found = {name: linear for name, linear in linears.items() if name.rpartition(".")[2] in sizes.targets}
    if model.config.tie_embeddings and (head := [name for name, linear in found.items() if linear is model.lm_head]):
        raise CheckpointError(
            f"model.lora.targets: {head[0]} is the embedding too (tie_word_embeddings), into which its adapter cannot "
            "be merged; leave it out"
        )
    return found


def adapter_sizes(model: CausalLM, sizes: AdapterSizes) -> list[int]:
    """Return how many values each A and each B would have."""
    return [sizes.rank * side for linear in _targets(model, sizes).values() for side in linear.weight.shape]


def find_adapters(model: CausalLM) -> dict[str, Adapter]:
    """Return the adapters by the names of their modules; empty for a model that has none."""
    return {
        name: module.adapter
        for name, module in model.named_modules()
        if isinstance(module, Linear) and isinstance(module.adapter, Adapter)
    }


def find_trained_parameters(model: CausalLM) -> dict[str, nn.Parameter]:
    """Return what an optimizer trains: the adapters', or of a model without adapters all parameters with a gradient."""
    found = find_adapters(model)
    pairs = {f"{name}.{part}.weight": getattr(a, part) for name, a in found.items() for part in ("lora_A", "lora_B")}
    return pairs or {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}


@contextmanager
def without_adapters(model: CausalLM) -> Iterator[CausalLM]:
    """Make the model the start model for a while."""
    found = [(model.get_submodule(name), adapter) for name, adapter in find_adapters(model).items()]
    for module, _ in found:
        module.adapter = None  # type: ignore[assignment]  # to mypy, what a module has are modules
    try:
        yield model
    finally:
        for module, adapter in found:
            module.adapter = adapter  # type: ignore[assignment]


def merge_weights(model: CausalLM, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return all weights by parameter name with the adapters added, in `dtype` or that of the model.

    They lie in the machine's memory: a card that trains adapters has no room for the model a second time.
    """
    products = {f"{name}.weight": adapter for name, adapter in find_adapters(model).items()}
    merged = {}
    linears = ((f"{name}.weight", module) for name, module in model.named_modules() if isinstance(module, Linear))
    # One by one: restored, all of them may not fit on the card.
    restored = ((name, linear.read_weight()) for name, linear in linears if linear.four_bits is not None)
    for name, parameter in chain(model.named_parameters(), restored):
        weight = parameter.detach()
        if name in products:
            weight = weight.float() + products[name].product()
        merged[name] = weight.to("cpu", dtype or parameter.dtype)
    return merged


def save(model: CausalLM, folder: Path, base: Path) -> None:
    """Write the adapters into `folder` in PEFT's format, as adapters of the model in the folder `base`."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = next(iter(find_adapters(model).values())).sizes
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": sizes.rank,
        "lora_alpha": sizes.alpha,
        "target_modules": list(sizes.targets),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    tensors = {f"{PREFIX}{name}": p.detach().cpu().contiguous() for name, p in find_trained_parameters(model).items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
    if "text_config" in read_json(base / "config.json"):  # PEFT would leave every B at zero, without an error
        words = "%s: the adapters have the names of the text model alone; load the base with AutoModelForCausalLM"
        logger.warning(words, folder)


@torch.no_grad()
def load(model: CausalLM, folder: Path) -> None:
    """Read what `save` wrote into the model's adapters.

    Raises:
        CheckpointError: the file is missing or broken, or belongs to other adapters.
    """
    path = folder / WEIGHTS_FILE
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}). Put the file back.") from error
    wanted = {f"{PREFIX}{name}": parameter for name, parameter in find_trained_parameters(model).items()}
    shapes = {name: tuple(p.shape) for name, p in wanted.items()}
    if shapes != {name: tuple(tensor.shape) for name, tensor in tensors.items()}:
        raise CheckpointError(f"{path}: holds other adapters than model.lora of the recipe says")
    for name, parameter in wanted.items():
        parameter.copy_(tensors[name])
