"""Records decode steps as CUDA graphs: launching kernels bounds a step of few tokens, and a graph launches all at once.

A graph computes the logits and draws from them. It is recorded for each rounded number of sequences and of their pages,
with and without filters, when it is first needed. It reads weights and cache where they lie, so new weights in the same
tensors need no new recording.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from core.engine.cache import NULL_PAGE
from core.engine.sampler import SamplingBatch, draw, settle

DecodeStep = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps (ids_N, positions_N, table_NP) to logits_NV; row n of the table lists the pages of sequence n."""

IDS, POSITIONS, HASHES, TOP_K, PAGES = range(5)
"""Names the columns of the whole numbers that a graph reads. From column PAGES on lie the pages of the sequence."""

TEMPERATURE, TOP_P = range(2)
"""Names the columns of the real numbers that a graph reads."""


Replay = Callable[[Sequence[int], Sequence[int], Tensor, SamplingBatch], Tensor]
"""Maps (ids, positions, table_NP, batch) of a step to what `draw` returns for it."""


class DecodeGraphs:
    """Replays the kernels of `decode` and `draw`. Rows beyond the batch write to the null page."""

    def __init__(self, decode: DecodeStep, device: torch.device, vocab: int, max_num_seqs: int):
        self._decode = decode
        self._device = device
        self._vocab = vocab
        self._max_rows = round_rows(max_num_seqs)
        self._recordings: dict[tuple[int, int, bool], Replay] = {}
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    @cached_property
    def _logits_NV(self) -> Tensor:
        """Holds the logits of the last step with filters: one tensor for all recordings, since it is large."""
        return torch.empty(self._max_rows, self._vocab, device=self._device)

    def __call__(
        self, ids: Sequence[int], positions: Sequence[int], table_NP: Tensor, batch: SamplingBatch
    ) -> tuple[list[int], list[float]]:
        """Feed each sequence its newest token; return the next ones and their log-probs."""
        count, width = table_NP.shape
        # The graph covers at least N sequences of P pages, rounded up so that few graphs are recorded: a recording
        # takes longer than many steps, and rows and pages beyond the batch cost little.
        shape = round_rows(count), _round_up(width, 16, 4), batch.some_filtered
        if shape not in self._recordings:
            self._recordings[shape] = self._record(*shape)
        drawn_3N = self._recordings[shape](ids, positions, table_NP, batch)
        return settle(drawn_3N, self._logits_NV if batch.some_filtered else None, batch)

    def _clear(self, host_NX: Tensor, host_N2: Tensor) -> None:
        """Let all rows hold token 0 alone, on the null page, and sample without filters at temperature 1."""
        host_NX[:, :PAGES] = 0
        host_NX[:, TOP_K] = self._vocab
        host_NX[:, PAGES:] = NULL_PAGE
        host_N2[:, TEMPERATURE] = 1.0
        host_N2[:, TOP_P] = torch.inf

    def _record(self, rows: int, width: int, filters: bool) -> Replay:
        # X counts the columns of what the graph reads, in memory of the host and on the device.
        pinned = self._device.type == "cuda"  # from other memory a copy would wait for the device
        host_NX = torch.empty(rows, PAGES + width, dtype=torch.int64, pin_memory=pinned)
        host_N2 = torch.empty(rows, 2, pin_memory=pinned)
        self._clear(host_NX, host_N2)
        numbers_NX = host_NX.to(self._device, copy=True)
        reals_N2 = host_N2.to(self._device, copy=True)

        kept_NV = self._logits_NV[:rows] if filters else None

        def run() -> Tensor:
            ids_N, positions_N, keys_N, top_k_N = numbers_NX[:, :PAGES].unbind(dim=1)
            temperatures_N, top_p_N = reals_N2.unbind(dim=1)
            batch = SamplingBatch(
                keys_N, temperatures_N, top_k_N, top_p_N, filters, all_filtered=False, tempered=True, greedy=True
            )
            logits_NV = self._decode(ids_N, positions_N, numbers_NX[:, PAGES:].int())
            if kept_NV is not None:
                kept_NV.copy_(logits_NV)
            return draw(logits_NV, batch)

        replay, drawn_3N = record(run, self._device, self._pool)

        def step(ids: Sequence[int], positions: Sequence[int], table_NP: Tensor, batch: SamplingBatch) -> Tensor:
            # The step before was waited for when its tokens were read, so the host's tensors may be written to.
            self._clear(host_NX, host_N2)
            count, pages = table_NP.shape
            columns = [torch.tensor(ids), torch.tensor(positions), batch.keys_N, batch.top_k_N]
            host_NX[:count, :PAGES] = torch.stack(columns, dim=1)
            host_NX[:count, PAGES : PAGES + pages] = table_NP
            host_N2[:count] = torch.stack([batch.temperatures_N, batch.top_p_N], dim=1)
            numbers_NX.copy_(host_NX, non_blocking=True)
            reals_N2.copy_(host_N2, non_blocking=True)
            replay()
            return drawn_3N[:, :count]

        return step


def record(run: Callable[[], Tensor], device: torch.device, pool: Any) -> tuple[Callable[[], None], Tensor]:
    """Record `run` as a CUDA graph; return what replays it, and the tensor that each replay writes."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.device(device):  # a recording is made on the current device, which may be another one
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()  # libraries allocate their workspaces before the recording
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph, pool=pool, stream=stream):
            written = run()
    return graph.replay, written


def round_rows(count: int) -> int:
    """Return how many sequences a graph covers that is recorded for `count`."""
    return _round_up(count, 4, 2)


def _round_up(count: int, smallest: int, factor: int) -> int:
    """Return the next of `smallest`, `smallest` times `factor`, times `factor` again, ..."""
    size = smallest
    while size < count:
        size *= factor
    return size
