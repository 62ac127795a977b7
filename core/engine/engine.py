"""The inference engine: submit requests, then call `step` until they end. One step is one forward of one batch.

It batches continuously, shares the pages of common prefixes and returns the log-prob of every sampled token.
The model is shared with the trainer; after an optimizer step call `adopt_weights`. Tensor suffixes:
core/__init__.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from core.engine import weights
from core.engine.attention import Span, make_table, prepare_decode, prepare_step
from core.engine.cache import PagedCache
from core.engine.graphs import DecodeGraphs
from core.engine.model import CausalLM
from core.engine.sampler import SamplingBatch, sample
from core.engine.scheduler import Request, Scheduler
from core.engine.states import StateCache, count_slots
from core.hub import resolve
from core.policy.base import Decode, completes_a_stop
from core.types import Completion, FinishReason, Sampling


@dataclass(frozen=True)
class EngineStats:
    """Counts tokens since the engine started, and the requests that run or wait now.

    `prefilled_tokens` were computed, some again on new weights; `cached_tokens` were found in the cache instead.
    """

    prefilled_tokens: int
    cached_tokens: int
    generated_tokens: int
    num_running: int
    num_waiting: int


class Engine:
    """Runs requests synchronously; `core.engine.policy.EmbeddedPolicy` makes it awaitable.

    `kv_tokens` is the size of the cache, in which a running request takes the pages of its prompt and its new tokens,
    less those that it shares. At most `max_num_seqs` run at once. What they leave keeps the prefixes of earlier ones.
    Requests with stop texts need `decode`.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        eos_token_ids: Sequence[int] = (),
        max_model_len: int | None = None,
        kv_tokens: int = 65536,
        page_size: int = 16,
        max_num_seqs: int = 256,
        max_prefill_tokens: int = 2048,
        decode: Decode | None = None,
    ):
        self.model = model
        self.eos_token_ids = frozenset(eos_token_ids)
        self.weight_version = "0"
        self.max_model_len = model.config.context(max_model_len)
        if kv_tokens < self.max_model_len:
            raise ValueError(
                f"kv_tokens {kv_tokens} is less than max_model_len {self.max_model_len}: raise it or lower the other"
            )
        self.vocab_size = model.config.vocab_size
        self.decode = decode
        slots = count_slots(max_num_seqs)
        self.cache = PagedCache(model.config, kv_tokens, page_size, model.dtype, model.device, slots)
        self.graphs: DecodeGraphs | None = None
        if model.device.type == "cuda" and not model.config.other:  # whether transformers waits inside, nobody knows
            self.graphs = DecodeGraphs(self._decode_tokens, model.device, self.vocab_size, max_num_seqs)
        # A step with prompts replays no graph, and launches every kernel by itself.
        patience = 16 if self.graphs is not None else 0
        self.scheduler = Scheduler(self.cache, max_num_seqs, max_prefill_tokens, patience)
        self._requests: dict[str, Request] = {}
        self._ids = itertools.count()
        self._unseeded = itertools.count()
        self._prefilled_tokens = self._generated_tokens = 0

    @classmethod
    def from_pretrained(
        cls,
        model: str | Path,
        *,
        dtype: str = "float32",
        device: str = "auto",
        max_model_len: int | None = None,
        kv_tokens: int = 65536,
        max_num_seqs: int = 256,
        decode: Decode | None = None,
    ) -> Engine:
        """Make an engine with the weights of a local folder or a hub id."""
        folder = resolve(model)
        network = weights.load(folder, dtype, device).eval()
        max_len = max_model_len or min(network.config.max_positions, kv_tokens)
        return cls(
            network,
            eos_token_ids=weights.eos_token_ids(folder),
            max_model_len=max_len,
            kv_tokens=kv_tokens,
            max_num_seqs=max_num_seqs,
            decode=decode,
        )

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Completion]:
        """Sample a completion of each prompt, and return them in the order of the prompts.

        Raises:
            ValueError: a prompt can never run; none was sampled then. The message names the field.
        """
        for prompt_ids in prompts:
            self._check(prompt_ids, sampling)
        requests = [self.submit(prompt_ids, sampling) for prompt_ids in prompts]
        while self.has_work():
            self.step()
        return [cast(Completion, request.completion) for request in requests]

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
        if isinstance(prompt_ids, str) or not isinstance(prompt_ids, Sequence):
            fix = "encode a text with the model's tokenizer, and give `.tolist()` of a tensor or an array"
            raise ValueError(f"input_ids: a prompt must be a list of ids; {fix}")
        if not prompt_ids:
            raise ValueError("input_ids: empty prompt")
        for name, values in {
            "input_ids": prompt_ids,
            "max_new_tokens": [sampling.max_new_tokens],
            "top_k": [sampling.top_k],
            "seed": [0 if sampling.seed is None else sampling.seed],
            "stop_token_ids": sampling.stop_token_ids,
        }.items():
            kinds = {*map(type, values)} if isinstance(values, Collection) else {object}
            if not all(issubclass(kind, Integral) and kind is not bool for kind in kinds):
                raise ValueError(f"{name}: needs ints, is {values!r:.60}; write 4, not 4.0 or True")
        if isinstance(sampling.stop, str):
            raise ValueError(f'stop: must be a tuple of texts, is {sampling.stop!r:.60}; write ("...",)')
        if min(prompt_ids) < 0 or max(prompt_ids) >= self.vocab_size:
            raise ValueError(f"input_ids: ids must lie in [0, {self.vocab_size})")
        if sampling.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens: must be at least 1, is {sampling.max_new_tokens}")
        if len(prompt_ids) + sampling.max_new_tokens > self.max_model_len:
            raise ValueError(
                f"input_ids: {len(prompt_ids)} prompt tokens and max_new_tokens {sampling.max_new_tokens} exceed the "
                f"context of {self.max_model_len}; shorten the prompt, or raise max_model_len up to the model's "
                f"{self.model.config.max_positions} positions"
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
        """Compute one token of each sequence that decodes, and parts of prompts; return the finished requests.

        Raises:
            ArithmeticError: a log-prob is not finite.
        """
        decode, prefill = self.scheduler.schedule()
        if not decode and not prefill:
            return []
        self.model.prepack_weights()
        # Prompts of which a part is still to come sample nothing.
        batch = [*decode, *(request for request, count in prefill if request.computed + count == request.length)]
        sampling = SamplingBatch.make(
            [r.sampling for r in batch], [r.seed for r in batch], [len(r.output_ids) for r in batch], self.vocab_size
        )
        try:
            if self.graphs is not None and not prefill:
                tokens, logprobs = self._replay(self.graphs, decode, sampling)
            else:
                sampling = sampling.to(self.model.device)  # before the forward: this would wait for it
                logits_NV = self._compute(decode, prefill)
                tokens, logprobs = sample(logits_NV, sampling) if batch else ([], [])
        except BaseException:
            # Keys may be written twice; a state may not take a token twice. So all is computed from the beginning.
            self.scheduler.preempt_all()
            raise
        for request, count in [*((request, 1) for request in decode), *prefill]:
            request.computed += count
        for request, _ in prefill:
            page = self.cache.name(request.tokens[: request.computed], request.pages)
            if self.cache.states is not None and request.computed in request.stops:
                self.cache.states.copy(request.slot, page)
        if self.cache.states is not None:
            for request in decode:
                self._copy_states(request, self.cache.states)
        self._prefilled_tokens += sum(count for _, count in prefill)
        self._generated_tokens += len(batch)
        return self._add_tokens(batch, tokens, logprobs)

    def _copy_states(self, request: Request, states: StateCache) -> None:
        """Copy the states at the end of a completion's page, in place of the page before, if a session goes on."""
        if request.session is not None and request.computed % self.cache.page_size == 0:
            page = self.cache.name(request.tokens[: request.computed], request.pages)
            if request.copied is not None:
                states.forget(request.copied)
            request.copied = None if states.has_copy(page) else page
            states.copy(request.slot, page)

    def _add_tokens(self, batch: Sequence[Request], tokens: Sequence[int], logprobs: Sequence[float]) -> list[Request]:
        """Give each request its new token; return the requests that finish with it."""
        if not all(map(math.isfinite, logprobs)):
            raise ArithmeticError(
                "a log-prob is not finite: the weights hold NaN or overflow. If training made them so, begin again "
                "with --fresh and a lower optimizer.lr"
            )
        finished = []
        for request, token, logprob in zip(batch, tokens, logprobs, strict=True):
            request.add_token(token, logprob, self.weight_version)
            if self._stops(request, token):
                self._end(request, "stop")
            elif len(request.output_ids) >= request.sampling.max_new_tokens:
                self._end(request, "length")
            if request.completion is not None:
                finished.append(request)
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
        waiting = len(self._requests) - running
        cached = self.scheduler.cached_tokens
        return EngineStats(self._prefilled_tokens, cached, self._generated_tokens, running, waiting)

    def adopt_weights(self, weight_version: str) -> None:
        """Take the model's new weights into use: forget every cached key and value, preempt the running requests."""
        self.scheduler.preempt_all()
        self.cache.forget()
        self.model.drop_prepacked()
        self.weight_version = weight_version

    def set_weights(self, tensors: Mapping[str, Tensor], weight_version: str | None = None) -> None:
        """Copy the weights that `weights.read` returned into the model. The version counts up if none is given."""
        weights.assign(self.model, tensors)
        old = self.weight_version
        self.adopt_weights(weight_version or (str(int(old) + 1) if old.isdigit() else f"{old}+1"))

    def flush_cache(self) -> None:
        """Forget the prefixes of earlier requests."""
        self.cache.forget()

    def release_cache(self) -> None:
        """Free the memory of cached keys and values while something else needs it; the next step allocates it again.

        Running requests are preempted. With CUDA graphs, which have recorded where the cache lies, it stays.
        """
        self.scheduler.preempt_all()
        self.model.drop_prepacked()
        if self.graphs is None:
            self.cache.free_memory()

    def drop_all(self) -> None:
        """Forget every request without ending it, and every cached prefix. This touches no tensor, so cannot fail."""
        self._requests.clear()
        self.scheduler.drop_all()

    def _end(self, request: Request, reason: FinishReason) -> None:
        if request.session is not None:
            # The last token was sampled but never fed to the model: the cache holds no key for it.
            self.cache.name(request.tokens[: request.computed], request.pages)
        self.scheduler.remove(request)
        del self._requests[request.request_id]
        request.finish(reason, self.weight_version)

    def _compute(self, decode: Sequence[Request], prefill: Sequence[tuple[Request, int]]) -> Tensor:
        """Feed sequences their newest token and prompts their next part.

        Returns the logits [N, V] of the next token of every sequence that is then computed to its end.
        """
        parts = [*((request, 1) for request in decode), *prefill]
        # T: the new tokens of all sequences, one sequence after the other.
        new_tokens = [[request.output_ids[-1]] for request in decode]
        new_tokens += [request.tokens[request.computed : request.computed + count] for request, count in prefill]
        spans = [Span(request.pages, request.computed, count, request.slot) for request, count in parts]
        positions_T, attend = prepare_step(self.cache, spans[: len(decode)], spans[len(decode) :])
        # Where on T the last token of each sequence lies: running sums of the lengths, less one.
        ends = itertools.accumulate(count for _, count in parts)
        whole = [end - 1 for end, (r, count) in zip(ends, parts, strict=True) if r.computed + count == r.length]
        device = self.model.device
        ids_T = torch.tensor(list(itertools.chain.from_iterable(new_tokens)), device=device)
        keep_N = torch.tensor(whole, dtype=torch.int64, device=device)
        return self.model.logits(self.model(ids_T, positions_T, attend, keep_N))

    def _replay(
        self, graphs: DecodeGraphs, batch: Sequence[Request], sampling: SamplingBatch
    ) -> tuple[list[int], list[float]]:
        """Feed every sequence its newest token; return the next ones and their log-probs."""
        positions = [request.computed for request in batch]
        table_NP = make_table(self.cache, [request.pages for request in batch], max(positions) + 1)
        return graphs([request.output_ids[-1] for request in batch], positions, table_NP, sampling)

    def _decode_tokens(self, ids_N: Tensor, positions_N: Tensor, table_NP: Tensor) -> Tensor:
        attend = prepare_decode(self.cache, table_NP, positions_N)
        return self.model.logits(self.model(ids_N, positions_N, attend))
