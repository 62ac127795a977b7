"""Counts the bytes that an engine of a model will take, from the sizes in config.json and those of the engine alone."""

from __future__ import annotations

import math
from functools import cache

import torch

from core.engine import kernel, weights
from core.engine.attention import GATHERED_BYTES
from core.engine.four_bits import packed_bytes
from core.engine.graphs import round_rows
from core.engine.model import Linear, ModelConfig, can_prepack
from core.engine.states import count_slots

SAMPLING_BYTES = 4 * 4
"""Counts what sampling keeps of one logit in float32: the logit, its score, the difference from the best, a weight."""


@cache
def parameter_bytes(config: ModelConfig, dtype: torch.dtype, load_in_4bit: bool = False) -> int:
    """Return the bytes of a model's weights; tied embeddings count once."""
    model = weights.make_empty(config)
    packed = [linear.weight.numel() for linear in weights.find_packable(model)] if load_in_4bit else []
    whole = sum(parameter.numel() for parameter in model.parameters()) - sum(packed)
    return whole * dtype.itemsize + sum(map(packed_bytes, packed))


@cache
def prepacked_bytes(config: ModelConfig, dtype: torch.dtype, device: str, load_in_4bit: bool = False) -> int:
    """Return the bytes of the weights of linear maps that lie in memory once more while a CPU samples."""
    if device != "cpu" or not can_prepack(dtype):
        return 0
    model = weights.make_empty(config)
    linears = {module for module in model.modules() if isinstance(module, Linear)}
    if load_in_4bit:
        linears -= set(weights.find_packable(model))
    # Of float32 the last panel is filled up.
    width, fewest = (kernel.panel_width(), kernel.FEWEST_OUTPUTS) if dtype == torch.float32 else (1, 1)
    sizes = [(each.out_features, each.in_features) for each in linears if each.out_features >= fewest]
    return sum(math.ceil(outputs / width) * width * inputs for outputs, inputs in sizes) * dtype.itemsize


@cache
def restored_bytes(config: ModelConfig, dtype: torch.dtype) -> int:
    """Return the bytes of the largest weight that is restored from 4 bits."""
    packable = weights.find_packable(weights.make_empty(config))
    return max((linear.weight.numel() for linear in packable), default=0) * dtype.itemsize


def cache_bytes(config: ModelConfig, tokens: int, dtype: torch.dtype) -> int:
    """Return the bytes that the keys and values of `tokens` tokens take."""
    return tokens * 2 * len(config.attending_layers) * config.num_kv_heads * config.head_dim * dtype.itemsize


def state_bytes(config: ModelConfig, sequences: int, dtype: torch.dtype) -> int:
    """Return the bytes of the states of layers that have any, for an engine that runs so many sequences at once."""
    return count_slots(sequences) * config.states.count_bytes(dtype.itemsize) if config.states else 0


def sampling_bytes(config: ModelConfig, sequences: int) -> int:
    """Return the bytes that sampling one token of each sequence takes."""
    return sequences * config.vocab_size * SAMPLING_BYTES


def recorded_bytes(config: ModelConfig, sequences: int) -> int:
    """Return the bytes of recorded decode steps: those of sampling, and the logits that filters may look at again."""
    rows = round_rows(sequences)
    return sampling_bytes(config, rows) + 4 * rows * config.vocab_size


def step_bytes(config: ModelConfig, dtype: torch.dtype, *, prefilled: int, sequences: int, kv_tokens: int) -> int:
    """Return the bytes that come and go in the largest step: of its layers, of attention and of sampling."""
    gathered = min(GATHERED_BYTES, cache_bytes(config, kv_tokens, dtype) // len(config.attending_layers))
    # In a layer lie at most the residual stream and its norm, [T, C] each, and three tensors [T, I] of the MLP.
    layer = (prefilled + sequences) * (2 * config.hidden_size + 3 * config.intermediate_size)
    scores = config.scored * 3 * 4 * config.num_heads * prefilled * min(kv_tokens, config.max_positions)
    return layer * dtype.itemsize + sampling_bytes(config, sequences) + gathered + scores


def format_bytes(size: int) -> str:
    """Return a size in gigabytes, as text."""
    return f"{size / 1e9:.2f} GB"
