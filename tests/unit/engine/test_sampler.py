"""Sampling: filters, seeds, and the distribution itself."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.engine.sampler import sample, uniforms
from core.types import Sampling


def draw(logits: torch.Tensor, sampling: Sampling, count: int) -> torch.Tensor:
    tokens, _ = sample(logits.expand(count, -1), [sampling] * count, list(range(count)), [0] * count)
    return tokens


def test_frequencies_follow_the_tempered_distribution():
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    frequencies = draw(logits, Sampling(temperature=0.8), 40_000).bincount(minlength=4) / 40_000
    torch.testing.assert_close(frequencies, torch.softmax(logits[0] / 0.8, -1), atol=0.01, rtol=0)


def test_top_k_and_top_p_cut_but_log_probs_stay_those_of_the_full_distribution():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    full = torch.log_softmax(logits[0], -1)
    assert set(draw(logits, Sampling(top_k=2), 500).tolist()) == {0, 1}
    nucleus = float(full.exp()[:2].sum()) + 1e-4
    assert set(draw(logits, Sampling(top_p=nucleus), 2000).tolist()) == {0, 1, 2}
    assert set(draw(logits, Sampling(top_p=1e-6), 500).tolist()) == {0}
    tokens, logprobs = sample(logits.expand(9, -1), [Sampling(top_k=2)] * 9, list(range(9)), [0] * 9)
    torch.testing.assert_close(logprobs, full[tokens])


def test_each_row_has_its_own_rules():
    logits = torch.tensor([[0.0, 0.1, 0.0]]).expand(3, -1)
    rules = [Sampling(temperature=0.0), Sampling(top_k=1), Sampling()]
    tokens, _ = sample(logits, rules, [0, 1, 2], [0, 0, 0])
    assert tokens[:2].tolist() == [1, 1]


@given(st.integers(0, 2**63 - 1), st.integers(0, 10_000))
def test_uniforms_depend_on_seed_and_step_alone(seed, step):
    alone = uniforms([seed], [step])[0]
    assert 0.0 <= alone < 1.0
    assert uniforms([1, seed, 2], [5, step, 6])[1] == alone
    assert uniforms([seed], [step + 1])[0] != alone


def test_uniforms_are_uniform_along_both_axes():
    for values in (uniforms(range(20_000), [0] * 20_000), uniforms([7] * 20_000, range(20_000))):
        counts = np.histogram(values, bins=20, range=(0, 1))[0]
        assert abs(counts - 1000).max() < 150
        assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.03
