"""Attention in one call for sequences of all lengths, without padding or masks: PyTorch's flash kernel on CUDA.

The kernel takes 16-bit numbers. Before its first use a probe compares it with `scaled_dot_product_attention`. Where it
is missing or differs, its callers pad sequences to buckets.

Tensor suffixes: core/__init__.py; here Y lists the keys of all sequences, one after the other, without padding.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import accumulate
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

PROBED = ((7, 7), (5, 40), (1, 33))
"""Lists the lengths, of queries and of keys, that the probe compares: without and with cached keys."""
ASKS = "enable_gqa" in inspect.signature(varlen_attn).parameters
"""Says whether key heads that several query heads share must be asked for; PyTorch 2.11 takes them unasked."""
TOLERANCE = 0.05
"""Bounds the mean difference, relative to the mean size. Another mask makes a difference of about 1."""


@dataclass(frozen=True, slots=True)
class VarlenCall:
    """Attends for N sequences. The last query of each sees all of its keys, the one before it all but the last key, ...

    The queries of the sequences lie one after the other. The keys lie anywhere: `places_Y` leads to those of the first
    sequence, then to those of the second, ...
    """

    count: int
    """Counts the queries, T."""
    places_Y: Tensor
    query_bounds: Tensor
    """Holds where each sequence begins among the queries, and where the last one ends, int32 [N + 1]."""
    key_bounds: Tensor
    longest_query: int
    longest_key: int

    @classmethod
    def make(cls, query_lengths: Sequence[int], key_lengths: Sequence[int], places_Y: Tensor) -> VarlenCall:
        query_bounds, key_bounds = (
            torch.tensor([0, *accumulate(lengths)], dtype=torch.int32, device=places_Y.device)
            for lengths in (query_lengths, key_lengths)
        )
        return cls(sum(query_lengths), places_Y, query_bounds, key_bounds, max(query_lengths), max(key_lengths))

    def __call__(self, q_THD: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Return the attended values [T, H, D] in 16 bits; `keys` and `values` are [places, K, D]."""
        dtype = find_dtype(q_THD)
        # Numbers are cut to 16 bits after the gathering, so that the gradients of a shared key add up before.
        k_YKD, v_YKD = (x.index_select(0, self.places_Y).to(dtype) for x in (keys, values))
        bounds, longest = (self.query_bounds, self.key_bounds), (self.longest_query, self.longest_key)
        attend = partial(varlen_attn, enable_gqa=True) if ASKS else varlen_attn
        out_THD = attend(q_THD.to(dtype), k_YKD, v_YKD, *bounds, *longest, window_size=(-1, 0))
        return cast(Tensor, out_THD)  # a pair only if the log-sum-exp is asked for


def find_dtype(tensor: Tensor) -> torch.dtype:
    """Return what attention computes in: the format of the tensor, or that of autocast."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else tensor.dtype


def has_varlen(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, width: int) -> bool:
    """Return whether VarlenCall computes attention in this format, with heads of this number and width."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    return _probe(device, dtype, heads, kv_heads, width)


@cache
def _probe(device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, width: int) -> bool:
    """Compare outputs and gradients with those of `scaled_dot_product_attention` in float32."""
    query_lengths, key_lengths = zip(*PROBED, strict=True)
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, device=device, dtype=dtype)

    # Leave the modes of the caller: inference, autocast, and a checkpoint that counts what is saved for backward.
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast(device.type, enabled=False),
        torch.autograd.graph.saved_tensors_hooks(lambda saved: saved.detach(), lambda saved: saved),
    ):
        inputs = [draw(sum(query_lengths), heads, width), *(draw(sum(key_lengths), kv_heads, width) for _ in "kv")]
        weights_THD = draw(*inputs[0].shape)
        call = VarlenCall.make(query_lengths, key_lengths, torch.arange(sum(key_lengths), device=device))
        try:
            ours = _run(call, inputs, weights_THD)
        except (RuntimeError, TypeError, ValueError) as error:
            warnings.warn(f"torch's varlen attention does not run here, so sequences are padded: {error}", stacklevel=1)
            return False
        exact = _run(_attend_one_by_one, [tensor.float() for tensor in inputs], weights_THD)
    off = [((a - b).abs().mean() / b.abs().mean()).item() for a, b in zip(ours, exact, strict=True)]
    if max(off) > TOLERANCE:
        warnings.warn(f"torch's varlen attention is off by {max(off):.2f} here, so sequences are padded", stacklevel=1)
    return max(off) <= TOLERANCE


def _run(attend: Callable[[Tensor, Tensor, Tensor], Tensor], inputs: Sequence[Tensor], weights: Tensor) -> list[Tensor]:
    """Return the attended values, and the gradients of their weighted sum."""
    leaves = [tensor.requires_grad_() for tensor in inputs]
    out_THD = attend(*leaves)
    return [out_THD.detach(), *torch.autograd.grad((out_THD * weights).sum(), leaves)]


def _attend_one_by_one(q_THD: Tensor, k_YKD: Tensor, v_YKD: Tensor) -> Tensor:
    """Compute what VarlenCall computes for the sequences of PROBED."""
    query_lengths, key_lengths = zip(*PROBED, strict=True)
    parts = zip(q_THD.split(query_lengths), k_YKD.split(key_lengths), v_YKD.split(key_lengths), strict=True)
    outputs = []
    for q_LHD, k_SKD, v_SKD in parts:
        every_LS = torch.ones(len(q_LHD), len(k_SKD), dtype=torch.bool, device=q_THD.device)
        seen_LS = every_LS.tril(len(k_SKD) - len(q_LHD))
        q_HLD, k_KSD, v_KSD = (x.transpose(0, 1) for x in (q_LHD, k_SKD, v_SKD))
        out_HLD = F.scaled_dot_product_attention(q_HLD, k_KSD, v_KSD, attn_mask=seen_LS, enable_gqa=True)
        outputs.append(out_HLD.transpose(0, 1))
    return torch.cat(outputs)
