"""The inference engine: submit requests, then call `step` until they end. One step is one forward of one batch.

It batches continuously over slots, shares prefixes through a store and returns the log-prob of every sampled token.
The model is shared with the trainer; after an optimizer step call `adopt_weights`. Tensor suffixes:
core/engine/__init__.py.
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
    """Counts tokens since the engine started, and the requests that run or wait now.

    Of the prompts' tokens, `prefilled_tokens` were computed and `cached_tokens` were found in the prefix store.
    """

    prefilled_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    num_running: int = 0
    num_waiting: int = 0


class Engine:
    """Runs requests synchronously; `core.engine.policy.EmbeddedPolicy` makes it awaitable.

    `kv_tokens` is the budget of running sequences: kv_tokens // max_model_len of them run at once. The prefix store
    takes `prefix_cache_tokens` more (default: as much again). Requests with stop texts need `decode`.
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
        self.model = model
        self.eos_token_ids = frozenset(eos_token_ids)
        self.weight_version = weight_version
        self.max_model_len = min(max_model_len or model.config.max_positions, model.config.max_positions)
        slots = kv_tokens // self.max_model_len
        if slots < 1:
            raise ValueError(
                f"kv_tokens {kv_tokens} is less than max_model_len {self.max_model_len}: raise it or lower the other"
            )
        self.vocab_size = model.config.vocab_size
        self.decode = decode
        self.cache = SlotCache(model.config, slots, self.max_model_len, model.dtype, model.device)
        store_tokens = kv_tokens if prefix_cache_tokens is None else prefix_cache_tokens
        self.prefixes = PrefixStore(self.cache, blocks=store_tokens // block_size, block_size=block_size)
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
        """Make an engine with the weights of a local folder or a hub id."""
        folder = resolve(model)
        network = weights.load(folder, dtype, device).eval()
        max_len = min(max_model_len or network.config.max_positions, network.config.max_positions, kv_tokens)
        eos = weights.eos_token_ids(folder)
        return cls(network, eos_token_ids=eos, max_model_len=max_len, kv_tokens=kv_tokens, decode=decode)

    def submit(
        self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None, request_id: str | None = None
    ) -> Request:
        """Queue one request. A request that can never run raises ValueError, which names the field."""
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
        if sampling.frequency_penalty:
            raise ValueError("frequency_penalty: our engine has none; serve the model with SGLang, or set it to 0")
        if sampling.top_k == 0 or sampling.top_k < -1:
            raise ValueError(f"top_k: must be -1 (off) or at least 1, is {sampling.top_k}")

    def has_work(self) -> bool:
        return bool(self._requests)

    @torch.inference_mode()
    def step(self) -> list[Request]:
        """Run one batch, a prefill if any request can be admitted and else a decode; return the finished requests."""
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
        logprobs = logprobs_N.tolist()
        if not all(map(math.isfinite, logprobs)):
            raise ArithmeticError("a log-prob is not finite; the weights hold NaN or overflow")
        finished = []
        for request, token, logprob in zip(batch, tokens_N.tolist(), logprobs, strict=True):
            request.add_token(token, logprob, self.weight_version)
            if self._stops(request, token):
                self._end(request, "stop")
            elif len(request.output_ids) >= request.sampling.max_new_tokens:
                self._end(request, "length")
            if request.completion is not None:
                finished.append(request)
        self._count(generated_tokens=len(batch))
        return finished

    def _stops(self, request: Request, token: int) -> bool:
        if token in self.eos_token_ids or token in request.sampling.stop_token_ids:
            return True
        stop = request.sampling.stop
        return bool(stop) and self.decode is not None and completes_a_stop(request.output_ids, stop, self.decode)

    def abort(self, request_id: str) -> Request | None:
        """End a request with the tokens it has so far and finish reason `abort`; return None if there is none."""
        request = self._requests.get(request_id)
        if request is not None:
            self._end(request, "abort")
        return request

    def stats(self) -> EngineStats:
        running = len(self.scheduler.running)
        return replace(self._stats, num_running=running, num_waiting=len(self._requests) - running)

    def adopt_weights(self, weight_version: str) -> None:
        """Take the model's new weights into use: forget every cached key and value, preempt the running requests."""
        self.scheduler.preempt_all()
        self.prefixes.clear()
        self.weight_version = weight_version

    def set_weights(self, tensors: Mapping[str, Tensor], weight_version: str | None = None) -> None:
        """Copy the weights that `weights.read` returned into the model. The version counts up if none is given."""
        weights.assign(self.model, tensors)
        old = self.weight_version
        self.adopt_weights(weight_version or (str(int(old) + 1) if old.isdigit() else f"{old}+1"))

    def flush_cache(self) -> None:
        self.prefixes.clear()

    def release_cache(self) -> None:
        """Free the memory of cached keys and values while something else needs it; the next step allocates it again.

        Running requests are preempted. CUDA graphs have recorded where the slots lie, so on a GPU the slots stay, and
        the prefix store alone is freed.
        """
        self.scheduler.preempt_all()
        self.prefixes.release()
        if self.graphs is None:
            self.cache.release()

    def drop_all(self) -> None:
        """Forget every request without ending it, and every cached prefix. This touches no tensor, so cannot fail."""
        self._requests.clear()
        self.scheduler.waiting.clear()
        self.scheduler.running.clear()
        self.prefixes.clear()

    def _end(self, request: Request, reason: FinishReason) -> None:
        if request.session is not None and request in self.scheduler.running:
            # The last token was sampled but never fed to the model: the slot holds no key for it.
            self.prefixes.insert(request.tokens[:-1], self.scheduler.running.index(request))
        self.scheduler.remove(request)
        del self._requests[request.request_id]
        request.finish(reason, self.weight_version)

    def _prefill(self, admitted: list[tuple[Request, int]]) -> Tensor:
        """Prefill what the cache lacks of the admitted prompts; return the logits of each one's last token, [N, V]."""
        new_tokens = [request.tokens[cached:] for request, cached in admitted]
        starts = [cached for _, cached in admitted]
        lengths = [len(tokens) for tokens in new_tokens]
        device = self.model.device
        # The scheduler has put the admitted requests into the last slots, in this order.
        first_slot = len(self.scheduler.running) - len(admitted)
        # T: the new tokens of all prompts, one prompt after the other; a token's position counts the cached ones too.
        positions_T = torch.cat([torch.arange(s, s + n) for s, n in zip(starts, lengths, strict=True)]).to(device)
        ids_T = torch.tensor(list(itertools.chain.from_iterable(new_tokens)), device=device)
        attend = PrefillAttention(self.cache.kv, first_slot, starts, lengths, positions_T)
        # Where on T the last token of each prompt lies: running sums of the lengths, less one.
        last_N = torch.tensor(list(itertools.accumulate(lengths)), device=device) - 1
        logits_NV = self.model.logits(self.model(ids_T, positions_T, attend, last_N))
        for offset, (request, cached) in enumerate(admitted):
            self.prefixes.insert(request.tokens, first_slot + offset)
            request.cached_tokens += cached
        self._count(prefilled_tokens=sum(lengths), cached_tokens=sum(starts))
        return logits_NV

    def _decode(self, batch: list[Request]) -> Tensor:
        """Feed every running sequence its newest token; return the logits of the one after it, [N, V]."""
        # Row i is slot i. A token's position is the number of tokens before it.
        ids = [request.output_ids[-1] for request in batch]
        positions = [request.length - 1 for request in batch]
        if self.graphs is not None:
            return self.graphs(ids, positions)
        device = self.model.device
        return self._decode_tokens(
            torch.tensor(ids, device=device), torch.tensor(positions, device=device), max(positions) + 1
        )

    def _decode_tokens(self, ids_N: Tensor, positions_N: Tensor, span: int) -> Tensor:
        attend = DecodeAttention(self.cache.kv, positions_N, span)
        return self.model.logits(self.model(ids_N, positions_N, attend))

    def _count(self, **increments: int) -> None:
        totals = {name: getattr(self._stats, name) + number for name, number in increments.items()}
        self._stats = replace(self._stats, **totals)
