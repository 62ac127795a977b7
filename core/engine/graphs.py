"""Records decode steps as CUDA graphs: launching kernels bounds a step of few tokens, and a graph launches all at once.

A graph is recorded for each rounded batch size and rounded span of positions, when it is first needed. It reads weights
and cache where they lie, so new weights in the same tensors need no new recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

DecodeStep = Callable[[Tensor, Tensor, int], Tensor]
"""Maps (ids_N, positions_N, span) to logits_NV; row i is the sequence in slot i, and none is longer than `span`."""


@dataclass(frozen=True, slots=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    ids_N: Tensor
    positions_N: Tensor
    logits_NV: Tensor


class DecodeGraphs:
    """Replays the kernels of `decode`. Rows beyond the batch write to slots that no sequence owns."""

    def __init__(self, decode: DecodeStep, slots: int, max_len: int, device: torch.device):
        self._decode = decode
        self._slots = slots
        self._max_len = max_len
        self._device = device
        self._recordings: dict[tuple[int, int], _Recording] = {}
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, ids: Sequence[int], positions: Sequence[int]) -> Tensor:
        """Return the logits [N, V]; the next call overwrites them."""
        # The graph covers `rows` >= N slots and `span` > all positions, rounded up so that few graphs are recorded.
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
        # No slot holds anything yet at the last position of the span, so the trial run may write there.
        positions_N = torch.full_like(ids_N, span - 1)
        stream = torch.cuda.Stream(self._device)
        stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(stream):
            self._decode(ids_N, positions_N, span)  # libraries allocate their workspaces before the recording
        torch.cuda.current_stream(self._device).wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            logits_NV = self._decode(ids_N, positions_N, span)
        return _Recording(graph, ids_N, positions_N, logits_NV)


def _round_up(count: int, smallest: int) -> int:
    """Return the next of `smallest` times 1, 1.5, 2, 3, 4, 6, 8, ...: at most half as much again."""
    size = smallest
    while size < count:
        if size + size // 2 >= count:
            return size + size // 2
        size *= 2
    return size
