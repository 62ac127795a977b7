"""Samples one token per request, each with its own temperature, filters and seed, whatever its neighbours are.

Sampling is an exponential race: every token v draws E_v from Exp(1), and the one with the largest weight_v / E_v wins.
A token wins with a probability proportional to its weight (it is the Gumbel-max trick without its outer logarithm: -log
E_v is a Gumbel variable). Each E_v is a hash of (seed, position, v), where the position counts the tokens of the
completion so far. So a request samples the same tokens whatever else is in the batch, and rounding noise in the logits
changes the winner only where two tokens are nearly level. Cumulative probabilities lack this: noise in one logit moves
the boundaries of all tokens after it.

To hash a few numbers instead of the vocabulary, the race has two rounds: first the blocks of `BLOCK` neighbouring
tokens with their summed weights, then the tokens of the block that won.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from core.types import Sampling

Integers = TypeVar("Integers", np.ndarray, Tensor)  # of int64

BLOCK = 64
RANKS = 64
"""Counts the best tokens that filters look at first; they nearly always hold enough, and sorting all takes long."""
GREEDY_BELOW = 1e-6
"""Temperatures below it are greedy, as in SGLang: logits divided by them may leave the range of float32."""
_GAMMA = 0x9E3779B97F4A7C15 - 2**64  # constants of SplitMix64, as signed numbers
_MULTIPLIERS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


@dataclass(frozen=True, slots=True)
class SamplingBatch:
    """Says how the next token of each of N sequences is sampled.

    A CUDA graph reads the tensors. The other fields let `draw` leave out what no sequence needs; a graph is recorded
    with fixed ones.
    """

    keys_N: Tensor
    """int64, the hashes of seeds and positions."""
    temperatures_N: Tensor
    """float32; 0 is greedy."""
    top_k_N: Tensor
    """int64; the size of the vocabulary where top-k is off."""
    top_p_N: Tensor
    """float32; infinite where top-p is off, because rounding lets the sum over better ranks reach 1."""
    some_filtered: bool
    """Says whether a sequence may have top-k or top-p."""
    all_filtered: bool
    """Says that every sequence has."""
    tempered: bool
    """Says whether a temperature may be neither 0 nor 1."""
    greedy: bool
    """Says whether a temperature may be 0."""

    @classmethod
    def make(
        cls, samplings: Sequence[Sampling], seeds: Sequence[int], positions: Sequence[int], vocab: int
    ) -> SamplingBatch:
        """Make it on the CPU. `positions[i]` is the number of tokens that request i has sampled before."""
        temperatures = [0.0 if s.temperature < GREEDY_BELOW else s.temperature for s in samplings]
        cuts = [s if t else Sampling() for s, t in zip(samplings, temperatures, strict=True)]
        top_k_N = torch.tensor([min(s.top_k, vocab) if s.top_k > 0 else vocab for s in cuts])
        top_p_N = torch.tensor([s.top_p if s.top_p < 1 else torch.inf for s in cuts])
        filtered = find_filtered(top_k_N, top_p_N, vocab).tolist()  # float32 may round a top-p to 1
        return cls(
            hash_positions(seeds, positions),
            torch.tensor(temperatures),
            top_k_N,
            top_p_N,
            some_filtered=any(filtered),
            all_filtered=all(filtered),
            tempered=any(temperature not in (0, 1) for temperature in temperatures),
            greedy=not all(temperatures),
        )

    def select(self, rows: Sequence[int]) -> SamplingBatch:
        """Return the batch of some of its sequences, all of them filtered."""
        keys_N, temperatures_N = self.keys_N[rows], self.temperatures_N[rows]
        top_k_N, top_p_N = self.top_k_N[rows], self.top_p_N[rows]
        return SamplingBatch(keys_N, temperatures_N, top_k_N, top_p_N, True, True, tempered=self.tempered, greedy=False)

    def to(self, device: torch.device) -> SamplingBatch:
        """Return it with its tensors on the device."""
        names = ("keys_N", "temperatures_N", "top_k_N", "top_p_N")
        return replace(self, **{name: getattr(self, name).to(device) for name in names})


def find_filtered(top_k_N: Tensor, top_p_N: Tensor, vocab: int) -> Tensor:
    """Return which sequences have a filter that may cut something."""
    return (top_k_N < vocab) | (top_p_N < 1)


def sample(logits_NV: Tensor, batch: SamplingBatch) -> tuple[list[int], list[float]]:
    """Sample one token for each row of float32 `logits_NV`; return token ids and their log-probs.

    A log-prob belongs to the distribution at the request's temperature before top-k and top-p (greedy requests: at
    temperature 1), as SGLang reports it.
    """
    return settle(draw(logits_NV, batch.to(logits_NV.device)), logits_NV, batch)


def settle(drawn_3N: Tensor, logits_NV: Tensor | None, batch: SamplingBatch) -> tuple[list[int], list[float]]:
    """Return the token ids and log-probs that `draw` returned; draw again where a row is not settled.

    This waits for the device, once if all rows are settled. Without filters they are, and the logits are not needed.
    """
    tokens, logprobs, unsettled = drawn_3N.tolist()
    ranks, rows = RANKS, [row for row, is_unsettled in enumerate(unsettled) if is_unsettled]
    while rows:
        assert logits_NV is not None, "filters need the logits"
        ranks *= 16  # the third draw looks at 16,384 tokens
        again = draw(logits_NV[rows], batch.select(rows).to(logits_NV.device), ranks).tolist()
        for row, token, logprob in zip(rows, *again[:2], strict=True):
            tokens[row], logprobs[row] = token, logprob
        rows = [row for row, is_unsettled in zip(rows, again[2], strict=True) if is_unsettled]
    return [int(token) for token in tokens], logprobs


def draw(logits_NV: Tensor, batch: SamplingBatch, ranks: int = RANKS) -> Tensor:
    """Sample with filters that look at the best `ranks` tokens; return float64 [3, N].

    The first row holds token ids and the second their log-probs. The third is 1 where a row is unsettled: a filter may
    keep more than these tokens, so the drawn one does not count. No shape depends on a value, so a CUDA graph can
    record this.
    """
    vocab = logits_NV.shape[1]
    greedy_N = batch.temperatures_N == 0
    scores_NV = logits_NV
    if batch.tempered:
        scores_NV = logits_NV / torch.where(greedy_N, 1.0, batch.temperatures_N)[:, None]
    best_N1 = scores_NV.amax(dim=-1, keepdim=True)
    weights_NV = (scores_NV - best_N1).exp_()  # the most likely token has weight 1
    totals_N1 = _sum_rows(weights_NV)
    keys_N1 = batch.keys_N[:, None]
    tokens_N = torch.zeros_like(batch.keys_N) if batch.all_filtered else _race(weights_NV, keys_N1)
    unsettled_N = torch.zeros_like(greedy_N)
    if batch.some_filtered:
        order_NR, kept_NR, unsettled_N = _filter(weights_NV, totals_N1, batch.top_k_N, batch.top_p_N, min(ranks, vocab))
        filtered_N = find_filtered(batch.top_k_N, batch.top_p_N, vocab)
        tokens_N = torch.where(filtered_N, _race_among(order_NR, kept_NR, keys_N1, vocab), tokens_N)
        unsettled_N &= filtered_N
    if batch.greedy:
        tokens_N = torch.where(greedy_N, logits_NV.argmax(dim=-1), tokens_N)
    logprobs_N1 = scores_NV.gather(1, tokens_N[:, None]) - best_N1 - totals_N1.log()
    return torch.stack([tokens_N.double(), logprobs_N1.squeeze(1).double(), unsettled_N.double()])


def _sum_rows(weights_NV: Tensor) -> Tensor:
    """Return the sum of each row, [N, 1]; PyTorch divides a row among threads, and rounds otherwise, if it is alone."""
    count = len(weights_NV)
    return weights_NV.expand(max(2, count), -1).sum(dim=-1, keepdim=True)[:count]


def _filter(
    weights_NV: Tensor, totals_N1: Tensor, top_k_N: Tensor, top_p_N: Tensor, ranks: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best tokens of each row, [N, R], and the probability of each, or 0 if top-k or top-p excludes it.

    The third tensor, [N], says which rows are unsettled: they may keep more tokens than the best `ranks`. The most
    likely token always stays.
    """
    best_NR, order_NR = _find_best(weights_NV, ranks)
    # Column r of the sorted tensors is rank r; order_NR leads from a rank back to the token id.
    sorted_NR = best_NR / totals_N1
    sums_NR = sorted_NR.cumsum(dim=-1)
    before_NR = sums_NR - sorted_NR  # probability of all better ranks
    ranks_R = torch.arange(ranks, device=weights_NV.device)
    keep_NR = (ranks_R < top_k_N[:, None]) & (before_NR < top_p_N[:, None])
    keep_NR[:, :1].fill_(True)
    unsettled_N = (ranks < top_k_N) & (sums_NR[:, -1] < top_p_N)
    return order_NR, sorted_NR * keep_NR, unsettled_N


def _find_best(weights_NV: Tensor, ranks: int) -> tuple[Tensor, Tensor]:
    """Return the largest weights of each row in falling order, [N, R], and their tokens, [N, R]."""
    if ranks * BLOCK >= weights_NV.shape[1]:
        best_NR, order_NR = weights_NV.topk(ranks, dim=-1)
        return best_NR, order_NR
    # No more than R blocks hold the best R tokens: those with the largest maxima. Sorting a few blocks is much faster.
    blocks_NBP = _split(weights_NV, -1.0)  # so that places beyond the vocabulary are worse than any token
    block_NR = blocks_NBP.amax(dim=-1).topk(ranks, dim=-1).indices
    some_NRP = blocks_NBP.gather(1, block_NR[:, :, None].expand(-1, -1, BLOCK))
    best_NR, place_NR = some_NRP.flatten(1).topk(ranks, dim=-1)
    return best_NR, block_NR.gather(1, place_NR // BLOCK) * BLOCK + place_NR % BLOCK


def _split(weights_NV: Tensor, filler: float = 0.0) -> Tensor:
    """View the vocabulary as blocks B of `BLOCK` places P: token v has place v % BLOCK of block v // BLOCK."""
    count, vocab = weights_NV.shape
    if vocab % BLOCK:
        weights_NV = F.pad(weights_NV, (0, -vocab % BLOCK), value=filler)
    return weights_NV.view(count, -1, BLOCK)


def _race(weights_NV: Tensor, keys_N1: Tensor) -> Tensor:
    """Return the token [N] that wins the race of each row."""
    weights_NBP = _split(weights_NV)
    block_N = _choose_block(weights_NBP.sum(dim=-1), keys_N1)
    rows_N = torch.arange(len(weights_NV), device=weights_NV.device)
    return _choose_token(weights_NBP[rows_N, block_N], block_N, keys_N1)


def _race_among(tokens_NR: Tensor, weights_NR: Tensor, keys_N1: Tensor, vocab: int) -> Tensor:
    """Return the token [N] that wins the same race where all weights but these are 0."""
    count, blocks_NR = len(tokens_NR), tokens_NR // BLOCK
    weights_NR = weights_NR.double()  # GPUs add in any order, and in float64 it hardly matters
    sums_NB = weights_NR.new_zeros(count, -(-vocab // BLOCK)).scatter_add_(1, blocks_NR, weights_NR)
    block_N = _choose_block(sums_NB, keys_N1)
    mine_NR = weights_NR * (blocks_NR == block_N[:, None])
    weights_NP = weights_NR.new_zeros(count, BLOCK).scatter_add_(1, tokens_NR % BLOCK, mine_NR)
    return _choose_token(weights_NP, block_N, keys_N1)


def _choose_block(weights_NB: Tensor, keys_N1: Tensor) -> Tensor:
    """Return the block [N] that wins the first round."""
    # The blocks' numbers are below zero, so that no block draws what a token draws.
    numbers_B = -1 - torch.arange(weights_NB.shape[1], device=weights_NB.device)
    return _winner(weights_NB, uniforms(keys_N1, numbers_B))


def _choose_token(weights_NP: Tensor, block_N: Tensor, keys_N1: Tensor) -> Tensor:
    """Return the token [N] of the block that wins the second round."""
    tokens_NP = block_N[:, None] * BLOCK + torch.arange(BLOCK, device=weights_NP.device)
    return tokens_NP.gather(1, _winner(weights_NP, uniforms(keys_N1, tokens_NP))[:, None]).squeeze(1)


def _winner(weights_NB: Tensor, uniforms_NB: Tensor) -> Tensor:
    return (weights_NB.double() / -uniforms_NB.log()).argmax(dim=-1)


def hash_positions(seeds: Sequence[int], positions: Sequence[int]) -> Tensor:
    """Hash each (seed, position) to an int64; seeds are taken modulo 2^64."""
    z_N = _mix(np.array([seed % 2**64 for seed in seeds], dtype=np.uint64).view(np.int64) + _GAMMA)
    return torch.from_numpy(_mix(z_N + (np.array(positions, dtype=np.int64) + 1) * _GAMMA))


def uniforms(keys: Tensor, numbers: Tensor) -> Tensor:
    """Hash each pair of a key and a number, both int64, to a float64 in (0, 1); the two shapes broadcast.

    The hash is SplitMix64 (Steele et al. 2014) in integers that wrap around, so every device gives the same bits.
    """
    z = _mix(keys + (numbers + 1) * _GAMMA)
    return (_shift(z, 12).double() + 0.5) * 2.0**-52


def _mix(z: Integers) -> Integers:
    z = (z ^ _shift(z, 30)) * _MULTIPLIERS[0]
    z = (z ^ _shift(z, 27)) * _MULTIPLIERS[1]
    return z ^ _shift(z, 31)


def _shift(z: Integers, bits: int) -> Integers:
    """Shift right and fill with zeros; the operator alone repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
