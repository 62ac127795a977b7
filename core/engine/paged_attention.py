"""Attends from one new token of each sequence to its pages in the KV cache: a Triton kernel for CUDA.

PyTorch's `varlen_attn` reads pages only where FlashAttention 3 or 4 is installed. The work is split as in
Flash-Decoding (Dao et al. 2023): a program reads one part of a sequence for one key head. The results of the parts are
then weighed by their log-sum-exps. Before its first use a probe compares the kernel with plain attention.

PyTorch brings Triton with CUDA; elsewhere importing this module may raise ImportError. Tensor suffixes:
core/__init__.py and attention.py; here X counts the parts of a sequence, and G the query heads of a key head.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

PART = 512
"""Counts the tokens of a part, unless the batch is so large that `PARTS_BYTES` asks for longer ones."""
PARTS_BYTES = 1 << 26
"""Limits the results of all parts in a layer."""
BLOCK = 64
"""Counts the tokens that a program reads at a time."""
ROWS = 16
"""Pads the query heads of a key head to the rows that tensor cores multiply."""
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 0.02, torch.float16: 0.005}
"""Bounds the mean difference that the probe accepts, relative to the mean size, in each format of the cache."""
PROBED = ((1, 17, BLOCK), (PART, 2 * PART + 33, 5))
"""Lists the lengths of the sequences that the probe compares: in one part, and in several."""


def attend_pages(
    q_NHD: Tensor, keys: Tensor, values: Tensor, table_NP: Tensor, lengths_N: Tensor, page_size: int
) -> Tensor:
    """Attend with one query for each sequence to its first `lengths_N` tokens; return [N, H, D].

    `keys` and `values` are [places, K, D], contiguous as the queries are. `table_NP` (int32) lists the pages of each
    sequence.
    """
    count, heads, head_dim = q_NHD.shape
    kv_heads = keys.shape[1]
    tokens = table_NP.shape[1] * page_size
    part = PART
    while 4 * q_NHD.numel() * (parts := triton.cdiv(tokens, part)) > PARTS_BYTES and parts > 1:
        part *= 2
    out_NHXD = q_NHD.new_empty(count, heads, parts, head_dim, dtype=torch.float32 if parts > 1 else q_NHD.dtype)
    lse_NHX = q_NHD.new_empty(count, heads, parts, dtype=torch.float32)
    group = heads // kv_heads
    with torch.cuda.device_of(q_NHD):  # Triton launches on the current device
        _attend_part[(count, kv_heads, parts)](
            *(q_NHD, keys, values, table_NP, lengths_N, out_NHXD, lse_NHX),
            *(table_NP.stride(0), part, head_dim**-0.5),
            **make_constants(group, kv_heads, head_dim, page_size),
        )
    if parts == 1:
        return out_NHXD.squeeze(2)
    # A part beyond the end of its sequence has the log-sum-exp -inf, and so weighs nothing.
    return torch.einsum("nhx,nhxd->nhd", lse_NHX.softmax(dim=-1), out_NHXD).to(q_NHD.dtype)


def make_constants(group: int, kv_heads: int, head_dim: int, page_size: int) -> dict[str, int]:
    """Return what the kernel is compiled for."""
    sizes = {"GROUP": group, "KV_HEADS": kv_heads, "HEAD_DIM": head_dim, "PAGE": page_size}
    padded = {"ROWS": max(ROWS, triton.next_power_of_2(group)), "DIM": max(16, triton.next_power_of_2(head_dim))}
    return {**sizes, **padded, "BLOCK": BLOCK}


@triton.jit(do_not_specialize=("table_stride", "part_tokens"))
def _attend_part(  # type: ignore[no-untyped-def]  # Triton reads annotations
    q_NHD, keys, values, table_NP, lengths_N, out_NHXD, lse_NHX,  # pointers
    table_stride, part_tokens, scale,
    GROUP: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, PAGE: tl.constexpr,
    ROWS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Attend for the query heads of one key head to one part of one sequence."""
    sequence, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = part * part_tokens
    last = tl.minimum(first + part_tokens, tl.load(lengths_N + sequence).to(tl.int32))
    rows_G, dims_D = tl.arange(0, ROWS), tl.arange(0, DIM)
    in_head_D = dims_D < HEAD_DIM
    in_group_GD = (rows_G < GROUP)[:, None] & in_head_D[None, :]
    heads_G = (sequence * KV_HEADS + kv_head) * GROUP + rows_G  # numbered over all sequences
    q_GD = tl.load(q_NHD + heads_G[:, None] * HEAD_DIM + dims_D[None, :], mask=in_group_GD, other=0.0)
    # The softmax as the blocks come: weights are relative to the best score so far.
    best_G = tl.full([ROWS], -float("inf"), tl.float32)
    total_G = tl.full([ROWS], 0.0, tl.float32)
    sum_GD = tl.full([ROWS, DIM], 0.0, tl.float32)
    for start in range(first, last, BLOCK):
        positions_S = start + tl.arange(0, BLOCK)
        seen_S = positions_S < last
        page_S = tl.load(table_NP + sequence * table_stride + positions_S // PAGE, mask=seen_S, other=0)
        place_S = page_S.to(tl.int64) * PAGE + positions_S % PAGE
        offset_SD = (place_S * KV_HEADS + kv_head)[:, None] * HEAD_DIM + dims_D[None, :]
        seen_SD = seen_S[:, None] & in_head_D[None, :]
        k_SD = tl.load(keys + offset_SD, mask=seen_SD, other=0.0)
        v_SD = tl.load(values + offset_SD, mask=seen_SD, other=0.0)
        scores_GS = tl.dot(q_GD, tl.trans(k_SD), input_precision="ieee") * scale
        scores_GS = tl.where(seen_S[None, :], scores_GS, -float("inf"))
        better_G = tl.maximum(best_G, tl.max(scores_GS, 1))
        weights_GS = tl.exp(scores_GS - better_G[:, None])
        shrink_G = tl.exp(best_G - better_G)
        total_G = total_G * shrink_G + tl.sum(weights_GS, 1)
        weighted_GD = tl.dot(weights_GS.to(v_SD.dtype), v_SD, input_precision="ieee")
        sum_GD = sum_GD * shrink_G[:, None] + weighted_GD
        best_G = better_G
    # The best score weighs 1, so the total is at least 1, unless the part lies beyond the end of the sequence.
    total_G = tl.maximum(total_G, 1.0)
    row_G = heads_G * tl.num_programs(2) + part  # of [N * H * X]
    out_GD = sum_GD / total_G[:, None]
    tl.store(out_NHXD + row_G[:, None] * HEAD_DIM + dims_D[None, :], out_GD, mask=in_group_GD)
    tl.store(lse_NHX + row_G, best_G + tl.log(total_G), mask=rows_G < GROUP)


def has_paged_attention(
    device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int, head_dim: int, page: int
) -> bool:
    """Return whether the kernel computes attention in this format and these sizes; warn if it does not."""
    if dtype not in TOLERANCE:
        return False
    generator = torch.Generator(device).manual_seed(0)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, head_dim, generator=generator, device=device, dtype=dtype)

    for lengths in PROBED:
        count, width = len(lengths), triton.cdiv(max(lengths), page)
        table_NP = 1 + torch.randperm(count * width, generator=generator, device=device).view(count, width).int()
        places = (count * width + 1) * page
        q_NHD, keys, values = draw(count, heads), draw(places, kv_heads), draw(places, kv_heads)
        try:
            ours_NHD = attend_pages(q_NHD, keys, values, table_NP, torch.tensor(lengths, device=device), page).float()
        except Exception as error:  # compilers and drivers have errors of their own
            warnings.warn(f"the Triton kernel does not run here, so pages are gathered: {error}", stacklevel=1)
            return False
        exact_NHD = _attend_one_by_one(q_NHD.float(), keys.float(), values.float(), table_NP, lengths, page)
        off = ((ours_NHD - exact_NHD).abs().mean() / exact_NHD.abs().mean()).item()
        if not off <= TOLERANCE[dtype]:
            warnings.warn(f"the Triton kernel is off by {off:.2g} here, so pages are gathered", stacklevel=1)
            return False
    return True


def _attend_one_by_one(
    q_NHD: Tensor, keys: Tensor, values: Tensor, table_NP: Tensor, lengths: Sequence[int], page: int
) -> Tensor:
    """Compute what `attend_pages` computes, with PyTorch's attention and one sequence after the other."""
    outputs = []
    for q_HD, pages_P, length in zip(q_NHD, table_NP.long(), lengths, strict=True):
        places_S = (pages_P[:, None] * page + torch.arange(page, device=q_NHD.device)).flatten()[:length]
        k_KSD, v_KSD = keys[places_S].transpose(0, 1), values[places_S].transpose(0, 1)
        out_H1D = F.scaled_dot_product_attention(q_HD[:, None], k_KSD, v_KSD, enable_gqa=True)
        outputs.append(out_H1D.squeeze(1))
    return torch.stack(outputs)
