"""Records decode steps as CUDA graphs: launching kernels bounds a step of few tokens, and a graph launches all at once.

A graph is recorded for each rounded number of sequences and of their pages, when it is first needed. It reads weights
and cache where they lie, so new weights in the same tensors need no new recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from core.engine.cache import NOBODYS_PAGE

DecodeStep = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps (ids_N, positions_N, table_NP) to logits_NV; row n of the table lists the pages of sequence n."""


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    ids_N: Tensor
    positions_N: Tensor
    table_NP: Tensor
    logits_NV: Tensor


class DecodeGraphs:
    """Replays the kernels of `decode`. Rows beyond the batch write to the page that is nobody's."""

    def __init__(self, decode: DecodeStep, device: torch.device):
        self._decode = decode
        self._device = device
        self._recordings: dict[tuple[int, int], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, ids: Sequence[int], positions: Sequence[int], table_NP: Tensor) -> Tensor:
        """Return the logits [N, V]; the next call overwrites them."""
        count, width = table_NP.shape
        # The graph covers at least N sequences of P pages, rounded up so that few graphs are recorded.
        shape = _round_up(count, 4), _round_up(width, 16)
        recording = self._recordings.get(shape)
        if recording is None:
            recording = self._recordings[shape] = self._record(*shape)
        recording.ids_N[:count] = torch.tensor(ids, device=self._device)
        recording.positions_N.zero_()
        recording.positions_N[:count] = torch.tensor(positions, device=self._device)
        recording.table_NP.fill_(NOBODYS_PAGE)
        recording.table_NP[:count, :width] = table_NP.to(self._device)
        recording.graph.replay()
        return recording.logits_NV[:count]

    def _record(self, rows: int, width: int) -> _Recording:
        ids_N = torch.zeros(rows, dtype=torch.int64, device=self._device)
        positions_N = torch.zeros_like(ids_N)
        table_NP = torch.full((rows, width), NOBODYS_PAGE, dtype=torch.int32, device=self._device)
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._decode(ids_N, positions_N, table_NP)  # libraries allocate their workspaces before the recording
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits_NV = self._decode(ids_N, positions_N, table_NP)
        return _Recording(graph, ids_N, positions_N, table_NP, logits_NV)


def _round_up(count: int, smallest: int) -> int:
    """Return the next of `smallest` times 1, 1.5, 2, 3, 4, 6, 8, ...: at most half as much again."""
    size = smallest
    while size < count:
        if size + size // 2 >= count:
            return size + size // 2
        size *= 2
    return size
