"""CUDA graphs of decode steps: a step of few tokens is bound by launching kernels, which a recorded graph does at once.

A graph is recorded for each rounded number of rows and rounded span of positions, when it is first needed. Weights and
cache are read where they lie, so new weights in the same tensors need no new recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Decode = Callable[[Tensor, Tensor, int], Tensor]
"""(ids [N], positions [N], span) -> logits [N, V]; row i is the sequence in slot i, of at most span tokens."""


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    ids_N: Tensor
    positions_N: Tensor
    logits_NV: Tensor


class DecodeGraphs:
    """`decode` with its kernels replayed. Rows beyond those asked for write to slots that nobody uses."""

    def __init__(self, decode: Decode, slots: int, max_len: int, device: torch.device):
        self._decode, self._slots, self._max_len, self._device = decode, slots, max_len, device
        self._recordings: dict[tuple[int, int], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Logits [N, V]; valid until the next call."""
        rows = min(_round_up(len(ids), 4), self._slots)
        span = min(_round_up(max(positions) + 1, 256), self._max_len)
        recording = self._recordings.get((rows, span))
        if recording is None:
            recording = self._recordings[rows, span] = self._record(rows, span)
        recording.ids_N[: len(ids)] = torch.tensor(ids, device=self._device)
        recording.positions_N[: len(ids)] = torch.tensor(positions, device=self._device)
        recording.graph.replay()
        return recording.logits_NV[: len(ids)]

    def _record(self, rows: int, span: int) -> _Recording:
        ids_N = torch.zeros(rows, dtype=torch.int64, device=self._device)
        # The last position holds nothing yet in any slot, so what is written here on trial does no harm.
        positions_N = torch.full_like(ids_N, span - 1)
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._decode(ids_N, positions_N, span)  # libraries set themselves up outside of the recording
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits_NV = self._decode(ids_N, positions_N, span)
        return _Recording(graph, ids_N, positions_N, logits_NV)


def _round_up(count: int, smallest: int) -> int:
    """The next of `smallest` times 1, 1.5, 2, 3, 4, 6, 8, ...: at most half as much again."""
    size = smallest
    while size < count:
        if size + size // 2 >= count:
            return size + size // 2
        size *= 2
    return size
