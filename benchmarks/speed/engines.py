"""Run the sides of the rollout comparison behind one call: it takes requests and returns samples with log-probs.

All sides sample at temperature 1 without filters, from the weights of one folder. They ignore EOS, so that token
counts are equal. Computing the log-probs of the sampled tokens is part of every side's work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.speed.workload import PAD, GenerationRequest, GenerationSample
from core.engine import CausalLM, Engine
from core.types import Sampling

Generate = Callable[[Sequence[GenerationRequest]], list[GenerationSample]]


class EmbeddedSide:
    """Runs our engine on `model`, with pages for all requests at once, of up to `longest` tokens each."""

    def __init__(self, model: CausalLM, requests: int, longest: int):
        pages = requests * math.ceil(longest / 16)
        self.engine = Engine(model, max_model_len=longest, kv_tokens=16 * pages)

    def reset(self) -> None:
        """Forget every cached prefix, so that a repeat costs what the first run cost."""
        self.engine.flush_cache()

    def generate(self, batch: Sequence[GenerationRequest]) -> list[GenerationSample]:
        running = [
            self.engine.submit(r.prompt_ids, Sampling(max_new_tokens=r.max_new_tokens), session=str(i))
            for i, r in enumerate(batch)
        ]
        while self.engine.has_work():
            self.engine.step()
        done = [request.completion for request in running]
        return [GenerationSample(r.prompt_ids, c.token_ids, c.logprobs) for r, c in zip(batch, done, strict=True) if c]


class TransformersSide:
    """Runs `model.generate` on left-padded prompts. Every row runs to the longest of its batch and is then cut."""

    def __init__(self, model: Any, cache: str):
        self.model, self.cache = model, cache

    def generate(self, batch: Sequence[GenerationRequest]) -> list[GenerationSample]:
        from transformers import GenerationConfig

        width, new = max(len(r.prompt_ids) for r in batch), max(r.max_new_tokens for r in batch)
        ids = torch.full((len(batch), width), PAD)
        for row, request in zip(ids, batch, strict=True):
            row[width - len(request.prompt_ids) :] = torch.tensor(request.prompt_ids)
        # N: requests of the batch. Prompts are padded on the left, so real tokens start at width - length.
        lengths_N = torch.tensor([len(r.prompt_ids) for r in batch])
        attention_mask = (torch.arange(width) >= width - lengths_N[:, None]).long()
        config = GenerationConfig(
            do_sample=True, temperature=1.0, top_k=0, top_p=1.0, max_new_tokens=new, eos_token_id=None,
            pad_token_id=PAD, output_logits=True, return_dict_in_generate=True, disable_compile=True,
            **({"cache_implementation": self.cache} if self.cache == "static" else {}),
        )  # fmt: skip
        out = self.model.generate(ids, attention_mask=attention_mask, generation_config=config)
        tokens = out.sequences[:, width:]
        picked = [
            logits.gather(1, tokens[:, step, None]).squeeze(1) - logits.logsumexp(dim=1)
            for step, logits in enumerate(out.logits)
        ]
        rows = zip(batch, tokens.tolist(), torch.stack(picked, dim=1).tolist(), strict=True)
        return [
            GenerationSample(r.prompt_ids, tuple(t[: r.max_new_tokens]), tuple(p[: r.max_new_tokens]))
            for r, t, p in rows
        ]


@torch.no_grad()
def max_logprob_error(model: Any, samples: Sequence[GenerationSample], batch: int = 8) -> float:
    """Return the largest difference from the log-probs of a full forward of Hugging Face's model."""
    worst = 0.0
    for start in range(0, len(samples), batch):
        part = samples[start : start + batch]
        whole = [torch.tensor((*s.prompt_ids, *s.token_ids)) for s in part]
        ids = torch.nn.utils.rnn.pad_sequence(whole, batch_first=True, padding_value=PAD)
        logprobs = torch.log_softmax(model(ids).logits.float(), dim=-1)
        for row, sample in zip(logprobs, part, strict=True):
            # Logits at position p predict the token at p + 1, so those before `first` score the first sampled token.
            first = len(sample.prompt_ids)
            targets = torch.tensor(sample.token_ids)[:, None]
            exact = row[first - 1 : first - 1 + len(targets)].gather(1, targets).squeeze(1)
            worst = max(worst, (exact - torch.tensor(sample.logprobs)).abs().max().item())
    return worst
