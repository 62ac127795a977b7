"""Samples one token per request, each with its own temperature, filters and seed, whatever its neighbours are.

Randomness is counter based: the uniform number behind a request's t-th token is a hash of (seed, t), so a request
samples the same tokens whatever else is in the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from core.types import Sampling

_GAMMA = np.uint64(0x9E3779B97F4A7C15)


def sample(
    logits_NV: Tensor, samplings: Sequence[Sampling], seeds: Sequence[int], steps: Sequence[int]
) -> tuple[Tensor, Tensor]:
    """Sample one token for each row of float32 `logits_NV`; return token ids [N] and their log-probs [N].

    `steps[i]` is the number of tokens that request i has sampled before. A log-prob belongs to the distribution at the
    request's temperature before top-k and top-p (greedy requests: at temperature 1), as SGLang reports it.
    """
    device = logits_NV.device
    temperatures_N = torch.tensor([s.temperature if s.temperature > 0 else 1.0 for s in samplings], device=device)
    logprobs_NV = torch.log_softmax(logits_NV / temperatures_N[:, None], dim=-1)
    probs_NV = logprobs_NV.exp()
    if any(s.top_k > 0 or s.top_p < 1 for s in samplings):
        probs_NV = _filter(probs_NV, samplings)
    # Inverse transform sampling in vocabulary order: the token is the first whose cumulative probability exceeds the
    # draw. After filters the total is below 1, so the draw is scaled to it; rounding may reach V, hence the clamp.
    cumulative_NV = probs_NV.double().cumsum(dim=-1)
    draws_N = torch.from_numpy(uniforms(seeds, steps)).to(device) * cumulative_NV[:, -1]
    tokens_N = (
        torch.searchsorted(cumulative_NV, draws_N[:, None], right=True).squeeze(1).clamp_(max=logits_NV.shape[1] - 1)
    )
    if any(s.temperature == 0 for s in samplings):
        greedy_N = torch.tensor([s.temperature == 0 for s in samplings], device=device)
        tokens_N = torch.where(greedy_N, logits_NV.argmax(dim=-1), tokens_N)
    return tokens_N, logprobs_NV.gather(1, tokens_N[:, None]).squeeze(1)


def _filter(probs_NV: Tensor, samplings: Sequence[Sampling]) -> Tensor:
    """Set to zero what top-k and top-p exclude; the most likely token always stays."""
    vocab = probs_NV.shape[1]
    device = probs_NV.device
    top_k_N = torch.tensor([s.top_k if s.top_k > 0 else vocab for s in samplings], device=device)
    top_p_N = torch.tensor([s.top_p for s in samplings], device=device, dtype=probs_NV.dtype)
    # Column v of the sorted tensors is rank v; order_NV leads from a rank back to the token id.
    sorted_NV, order_NV = probs_NV.sort(dim=-1, descending=True)
    before_NV = sorted_NV.cumsum(dim=-1) - sorted_NV  # probability of all better ranks
    rank_V = torch.arange(vocab, device=device)
    keep_NV = (rank_V < top_k_N[:, None]) & (before_NV < top_p_N[:, None])
    keep_NV[:, 0] = True
    return torch.zeros_like(probs_NV).scatter(1, order_NV, sorted_NV * keep_NV)


def uniforms(seeds: Sequence[int], steps: Sequence[int]) -> np.ndarray:
    """Hash each (seed, step) to a float64 in [0, 1) with the output function of SplitMix64 (Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = _mix(np.array([s % 2**64 for s in seeds], dtype=np.uint64) + _GAMMA)
        z = _mix(z + (np.array(steps, dtype=np.uint64) + np.uint64(1)) * _GAMMA)
    return np.asarray(z >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mix(z: np.ndarray) -> np.ndarray:
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
