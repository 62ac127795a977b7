"""Random engines under random orders: each token is what the full forward of that moment's weights gives.

`--fuzz N` runs N / 8 requests.
"""

from __future__ import annotations

import random
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from core.engine import weights
from core.engine.engine import Engine
from core.engine.sampler import SamplingBatch, sample
from core.engine.scheduler import Request
from core.types import Sampling
from tests.unit.conftest import count_idle, save_model

VOCAB = 96


def spell(ids: Any) -> str:
    return "".join(f"<{token}>" for token in ids)


class Orders:
    """Drives one random engine with random orders, and notes which weights sampled each token."""

    def __init__(self, rng: random.Random, folders: list[Path]):
        self.rng = rng
        self.max_len = rng.choice((48, 80, 128))
        model = weights.load(folders[0], device="cpu").eval()
        self.tensors = [weights.read(model, folder) for folder in folders]
        self.engine = Engine(
            model,
            max_model_len=self.max_len,
            kv_tokens=self.max_len * rng.randint(1, 6),
            page_size=rng.choice((1, 4, 16)),
            max_num_seqs=rng.choice((1, 3, 256)),
            max_prefill_tokens=rng.choice((1, 60, 400)),
            eos_token_ids=rng.choice(((), (5,))),
            decode=spell,
        )
        self.sampled_by: dict[Request, list[int]] = {}
        self.ended: list[Request] = []
        self.prompts = [self.draw(rng.randint(1, self.max_len - 4)) for _ in range(3)]

    def draw(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(count)]

    def submit(self) -> None:
        rng = self.rng
        # A prompt is new, begins like others do, or goes on where an earlier call ended.
        earlier = [request.tokens for request in self.sampled_by if request.completion is not None]
        base = rng.choice([[], *self.prompts, *earlier])[: self.max_len - 4]
        prompt = [*base[: rng.choice((len(base), len(base) // 2))], *self.draw(rng.randint(1, 3))]
        sampling = Sampling(
            temperature=rng.choice((0.0, 0.5, 1.0, 1.3)),
            top_p=rng.choice((1.0, 1.0, 0.5, 0.95)),
            top_k=rng.choice((-1, -1, 1, 7)),
            max_new_tokens=rng.randint(1, min(20, self.max_len - len(prompt))),
            seed=rng.getrandbits(64),
            stop_token_ids=rng.choice(((), (), tuple(self.draw(8)))),
            stop=rng.choice(((), (), tuple(f"{token}>" for token in self.draw(3)))),
        )
        request = self.engine.submit(prompt, sampling, session=rng.choice((None, "s")))
        self.sampled_by[request] = []

    def step(self) -> None:
        self.ended += self.engine.step()
        for request, versions in self.sampled_by.items():
            versions += [int(self.engine.weight_version)] * (len(request.output_ids) - len(versions))

    def abort(self) -> None:
        aborted = self.engine.abort(self.rng.choice(list(self.sampled_by)).request_id)
        self.ended += [aborted] if aborted else []

    def set_weights(self) -> None:
        version = int(self.engine.weight_version) + 1  # even ones are the first weights
        self.engine.set_weights(self.tensors[version % 2])

    def run(self, count: int) -> None:
        rare = dict.fromkeys((self.set_weights, self.engine.flush_cache, self.engine.release_cache), 1)
        orders = {self.step: 60, self.abort: 5, **rare}
        while len(self.sampled_by) < count or self.engine.has_work():
            if len(self.sampled_by) < count and (not self.sampled_by or self.rng.random() < 0.4):
                self.submit()
            else:
                self.rng.choices(list(orders), list(orders.values()))[0]()
            stats = self.engine.stats()
            assert stats.num_running + stats.num_waiting + len(self.ended) == len(self.sampled_by)
        assert set(self.ended) == set(self.sampled_by)
        assert count_idle(self.engine.cache) == self.engine.cache.pages
        if (states := self.engine.cache.states) is not None:
            assert len(states._free) + len(states._copies) == states.slots


def check(request: Request, sampled_by: list[int], models: list[Any]) -> None:
    completion, sampling = request.completion, request.sampling
    assert completion is not None
    tokens = completion.token_ids
    if tokens:
        # Row t of the logits belongs to the position before sampled token t, under the weights that sampled it.
        ids = torch.tensor([[*request.prompt_ids, *tokens]])
        first = len(request.prompt_ids) - 1
        by_model = [model(ids).logits[0, first:-1] for model in models]
        logits_NV = torch.stack([by_model[version % 2][t] for t, version in enumerate(sampled_by)])
        count = len(tokens)
        batch = SamplingBatch.make([sampling] * count, [request.seed] * count, range(count), logits_NV.shape[1])
        wanted, logprobs = sample(logits_NV, batch)
        assert list(tokens) == wanted
        torch.testing.assert_close(torch.tensor(completion.logprobs), torch.tensor(logprobs), atol=1e-5, rtol=0)
        runs = [(str(version), len(list(run))) for version, run in groupby(sampled_by)]
        assert completion.count_versions() == runs
    ends = [t in sampling.stop_token_ids or any(text in f"<{t}>" for text in sampling.stop) for t in tokens]
    assert not any(ends[:-1])
    if completion.finish_reason == "length":
        assert len(tokens) == sampling.max_new_tokens


@pytest.mark.parametrize("name", ["qwen2", "qwen3_5"])
def test_whatever_happens_each_token_is_that_of_a_full_forward(name, tmp_path, fuzz_cases):
    folders = [save_model(name, tmp_path / str(seed), seed) for seed in (0, 1)]
    models = [AutoModelForCausalLM.from_pretrained(folder).eval() for folder in folders]
    rng = random.Random(0)
    checked = 0
    while checked < fuzz_cases // 8:
        orders = Orders(rng, folders)
        orders.run(rng.randint(1, 20))
        with torch.no_grad():
            for request, sampled_by in orders.sampled_by.items():
                check(request, sampled_by, models)
                checked += 1
