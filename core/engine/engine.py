"""The inference engine: submit requests, call `step` until they end. One step is one forward of one batch.

Continuous batching over slots, prefixes shared through a store, log-probs of every sampled token. The model is shared
with the trainer; after an optimizer step call `weights_changed`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from core.engine import weights
from core.engine.attention import DecodeAttention, PrefillAttention
from core.engine.cache import PrefixStore, SlotCache
from core.engine.graphs import DecodeGraphs
from core.engine.model import CausalLM
from core.engine.sampler import sample
from core.engine.scheduler import Request, Scheduler
from core.hub import resolve
from core.policy.base import Decode, completes_a_stop
from core.types import FinishReason, Sampling


@dataclass(frozen=True)
class EngineStats:
    """Counts since the engine was made. `prefilled_tokens` were computed, `cached_tokens` were found in the store."""

    prefilled_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0


class Engine:
    """Synchronous core; `core.engine.policy.EmbeddedPolicy` makes it awaitable.

    `kv_tokens` is the budget of running sequences: kv_tokens // max_model_len of them run at once. The prefix store
    takes `prefix_cache_tokens` more (default: as much again). Stop texts need `decode`.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        eos_token_ids: Sequence[int] = (),
        max_model_len: int | None = None,
        kv_tokens: int = 65536,
        prefix_cache_tokens: int | None = None,
        block_size: int = 16,
        max_prefill_tokens: int = 8192,
        weight_version: str = "0",
        seed: int = 0,
        decode: Decode | None = None,
    ):
        self.model, self.eos_token_ids, self.weight_version = model, frozenset(eos_token_ids), weight_version
        self.max_model_len = min(max_model_len or model.config.max_positions, model.config.max_positions)
        slots = kv_tokens // self.max_model_len
        if slots < 1:
            raise ValueError(
                f"kv_tokens {kv_tokens} is less than max_model_len {self.max_model_len}: raise it or lower the other"
            )
        self.vocab_size, self.decode = model.config.vocab_size, decode
        self.cache = SlotCache(model.config, slots, self.max_model_len, model.dtype, model.device)
        stored = kv_tokens if prefix_cache_tokens is None else prefix_cache_tokens
        self.prefixes = PrefixStore(self.cache, blocks=stored // block_size, block_size=block_size)
        self.scheduler = Scheduler(self.cache, self.prefixes, max_prefill_tokens)
        self.graphs = None
        if model.device.type == "cuda":
            self.graphs = DecodeGraphs(self._decode_tokens, slots, self.max_model_len, model.device)
        self._requests: dict[str, Request] = {}
        self._ids = itertools.count()
        self._unseeded = itertools.count(seed << 32)
        self._stats = EngineStats()

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        dtype: str = "float32",
        device: str = "auto",
        max_model_len: int | None = None,
        kv_tokens: int = 65536,
        decode: Decode | None = None,
    ) -> Engine:
        """An engine on the weights of a local folder or a hub id."""
        folder = resolve(model)
        network = weights.load(folder, dtype, device).eval()
        max_len = min(max_model_len or network.config.max_positions, network.config.max_positions, kv_tokens)
        stops = weights.eos_token_ids(folder)
        return cls(network, eos_token_ids=stops, max_model_len=max_len, kv_tokens=kv_tokens, decode=decode)

    def submit(
        self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None, request_id: str | None = None
    ) -> Request:
        """Queue one call. Raises ValueError, naming the field, for one that can never run."""
        self._check(prompt_ids, sampling)
        request_id = request_id or f"r{next(self._ids)}"
        if request_id in self._requests:
            raise ValueError(f"request_id {request_id!r} is already running")
        seed = next(self._unseeded) if sampling.seed is None else sampling.seed
        request = Request(request_id, tuple(prompt_ids), sampling, seed, session)
        self._requests[request_id] = request
        self.scheduler.waiting.append(request)
        return request

    def _check(self, prompt_ids: Sequence[int], sampling: Sampling) -> None:
        if not prompt_ids:
            raise ValueError("input_ids: empty prompt")
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.vocab_size:
            raise ValueError(f"input_ids: ids must lie in [0, {self.vocab_size})")
        if sampling.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: must be at least 1, is {sampling.max_new_tokens}")
        if len(prompt_ids) + sampling.max_new_tokens > self.max_model_len:
            raise ValueError(
                f"input_ids: {len(prompt_ids)} prompt tokens and max_new_tokens {sampling.max_new_tokens} exceed the "
                f"context of {self.max_model_len}; shorten the prompt or raise max_model_len"
            )
        if not (sampling.temperature >= 0 and math.isfinite(sampling.temperature)):
            raise ValueError(f"temperature: must be finite and at least 0, is {sampling.temperature}")
        if not 0 < sampling.top_p <= 1:
            raise ValueError(f"top_p: must lie in (0, 1], is {sampling.top_p}")
        if "" in sampling.stop:
            raise ValueError("stop: a text must not be empty")
        if sampling.stop and self.decode is None:
            raise ValueError("stop: this engine has no tokenizer to read texts with; use stop_token_ids")
        if sampling.top_k == 0 or sampling.top_k < -1:
            raise ValueError(f"top_k: must be -1 (off) or at least 1, is {sampling.top_k}")

    def has_work(self) -> bool:
        return bool(self._requests)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Run one batch; returns the requests that ended in it."""
        admitted = self.scheduler.admit()
        if admitted:
            logits_NV = self._prefill(admitted)
            batch = [request for request, _ in admitted]
        else:
            batch = list(self.scheduler.running)
            if not batch:
                return []
            logits_NV = self._decode(batch)
        tokens_N, logprobs_N = sample(
            logits_NV, [r.sampling for r in batch], [r.seed for r in batch], [len(r.output_ids) for r in batch]
        )
        ended = []
        for request, token, logprob in zip(batch, tokens_N.tolist(), logprobs_N.tolist(), strict=True):
            request.output_ids.append(token)
            request.logprobs.append(logprob)
            if self._stops(request, token):
                self._end(request, "stop")
            elif len(request.output_ids) >= request.sampling.max_new_tokens:
                self._end(request, "length")
            if request.completion is not None:
                ended.append(request)
        self._count(generated_tokens=len(batch))
        return ended

    def _stops(self, request: Request, token: int) -> bool:
        if token in self.eos_token_ids or token in request.sampling.stop_token_ids:
            return True
        stop = request.sampling.stop
        return bool(stop) and self.decode is not None and completes_a_stop(request.output_ids, stop, self.decode)

    def abort(self, request_id: str) -> Request | None:
        """End a request with what it has so far and finish reason `abort`; None when no such request runs."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, "abort")
        return request

    def stats(self) -> EngineStats:
        running = len(self.scheduler.running)
        return replace(self._stats, num_running=running, num_waiting=len(self._requests) - running)

    def weights_changed(self, weight_version: str) -> None:
        """The model's weights are new: forget every cached key and value; running requests go on under the new ones."""
        self.scheduler.preempt_all()
        self.prefixes.clear()
        self.weight_version = weight_version

    def load_weights(self, path: str | Path, weight_version: str | None = None) -> None:
        """Read other weights of the same architecture from a folder. On any error the old ones stay."""
        self.set_weights(weights.read(self.model, resolve(path)), weight_version)

    def set_weights(self, tensors: Mapping[str, Tensor], weight_version: str | None = None) -> None:
        """Take the weights that `weights.read` returned. Without a version the present one is counted up."""
        weights.assign(self.model, tensors)
        old = self.weight_version
        self.weights_changed(weight_version or (str(int(old) + 1) if old.isdigit() else f"{old}+1"))

    def flush_cache(self) -> None:
        self.prefixes.clear()

    def _end(self, request: Request, reason: FinishReason) -> None:
        if request.session is not None and request in self.scheduler.running:
            # The last sampled token has not been computed yet.
            self.prefixes.insert(request.tokens[:-1], self.scheduler.running.index(request))
        self.scheduler.remove(request)
        del self._requests[request.request_id]
        request.finish(reason, self.weight_version)

    def _prefill(self, admitted: list[tuple[Request, int]]) -> Tensor:
        """Compute what is missing of the admitted prompts; logits of each one's last token, [N, V]."""
        news = [request.tokens[cached:] for request, cached in admitted]
        starts, lengths = [cached for _, cached in admitted], [len(new) for new in news]
        device = self.model.device
        first_slot = len(self.scheduler.running) - len(admitted)
        positions = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]).to(device)
        ids = torch.tensor(list(itertools.chain.from_iterable(news)), device=device)
        attend = PrefillAttention(self.cache.kv, first_slot, starts, lengths, positions)
        last = torch.tensor(list(itertools.accumulate(lengths)), device=device) - 1
        logits_NV = self.model.logits(self.model(ids, positions, attend, last))
        for offset, (request, cached) in enumerate(admitted):
            self.prefixes.insert(request.tokens, first_slot + offset)
            request.cached_tokens += cached
        self._count(prefilled_tokens=sum(lengths), cached_tokens=sum(starts))
        return logits_NV

    def _decode(self, batch: list[Request]) -> Tensor:
        """One more token for every running sequence; logits [N, V]."""
        ids, positions = [r.output_ids[-1] for r in batch], [r.length - 1 for r in batch]
        if self.graphs is not None:
            return self.graphs(ids, positions)
        device = self.model.device
        return self._decode_tokens(
            torch.tensor(ids, device=device), torch.tensor(positions, device=device), max(positions) + 1
        )

    def _decode_tokens(self, ids_N: Tensor, positions_N: Tensor, span: int) -> Tensor:
        attend = DecodeAttention(self.cache.kv, positions_N, span)
        return self.model.logits(self.model(ids_N, positions_N, attend))

    def _count(self, **more: int) -> None:
        self._stats = replace(self._stats, **{name: getattr(self._stats, name) + n for name, n in more.items()})
