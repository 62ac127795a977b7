"""Sampling: filters, seeds, and the distribution itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from core.engine import sampler
from core.engine.sampler import SamplingBatch, hash_positions, uniforms
from core.types import Sampling
from tests.unit.conftest import threads


def sample(
    logits_NV: torch.Tensor, rules: Sequence[Sampling], seeds: Sequence[int], steps: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    batch = SamplingBatch.make(rules, seeds, steps, logits_NV.shape[1])
    tokens, logprobs = sampler.sample(logits_NV, batch)
    return torch.tensor(tokens), torch.tensor(logprobs)


def draw(logits: torch.Tensor, rule: Sampling, count: int) -> torch.Tensor:
    tokens, _ = sample(logits.expand(count, -1), [rule] * count, list(range(count)), [0] * count)
    return tokens


@pytest.mark.parametrize("axis", ["seeds", "steps"])
@pytest.mark.parametrize("vocab", [3, 64, 200])
def test_frequencies_follow_the_tempered_distribution(axis, vocab):
    """Pearson's statistic lies within five standard deviations of its mean, over seeds and over steps."""
    torch.manual_seed(vocab)
    logits_V, count = torch.randn(vocab) * 1.5, 40_000
    numbers, same = range(count), [7] * count
    seeds, steps = (numbers, same) if axis == "seeds" else (same, numbers)
    tokens, _ = sample(logits_V.expand(count, -1), [Sampling(temperature=0.8)] * count, seeds, steps)
    expected = torch.softmax(logits_V.double() / 0.8, -1) * count
    # Tokens that are expected fewer than five times are counted as one.
    common = expected >= 5
    observed = tokens.bincount(minlength=vocab)
    pairs = [*zip(observed[common].tolist(), expected[common].tolist(), strict=True)]
    if not common.all():
        pairs.append((int(observed[~common].sum()), float(expected[~common].sum())))
    statistic = sum((got - wanted) ** 2 / wanted for got, wanted in pairs)
    degrees = len(pairs) - 1
    assert abs(statistic - degrees) < 5 * (2 * degrees) ** 0.5


def test_noise_in_the_logits_hardly_moves_the_tokens():
    """Sampling by cumulative probabilities changes more than every tenth of these tokens."""
    torch.manual_seed(0)
    logits = torch.randn(400, 5000) * 2
    noisy = logits + 0.005 * torch.randn_like(logits)
    rules = [Sampling()] * 400
    (tokens, _), (moved, _) = (sample(each, rules, range(400), [3] * 400) for each in (logits, noisy))
    assert int((tokens != moved).sum()) <= 8
    assert len(set(tokens.tolist())) > 300


def test_top_k_and_top_p_cut_but_log_probs_stay_those_of_the_full_distribution():
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
    full = torch.log_softmax(logits[0], -1)
    assert set(draw(logits, Sampling(top_k=2), 500).tolist()) == {0, 1}
    nucleus = float(full.exp()[:2].sum()) + 1e-4
    assert set(draw(logits, Sampling(top_p=nucleus), 2000).tolist()) == {0, 1, 2}
    assert set(draw(logits, Sampling(top_p=1e-6), 500).tolist()) == {0}
    tokens, logprobs = sample(logits.expand(9, -1), [Sampling(top_k=2)] * 9, list(range(9)), [0] * 9)
    torch.testing.assert_close(logprobs, full[tokens])


@pytest.mark.parametrize("rule", [Sampling(top_k=4), Sampling(top_k=9), Sampling(top_p=1 - 1e-9)])
def test_filters_that_cut_nothing_change_nothing(rule: Sampling):
    logits = torch.tensor([[0.0, 1.0, 2.0, 3.0]])
    assert draw(logits, rule, 200).tolist() == draw(logits, Sampling(), 200).tolist()


def test_a_neighbours_top_p_takes_no_token_from_a_row():
    """Rounded probabilities may pass 1 before the last token; a filter that is off must not cut there."""
    rules = [Sampling() if row % 2 else Sampling(top_p=0.5) for row in range(6000)]
    tokens, _ = sample(torch.zeros(1, 101).expand(6000, -1), rules, range(6000), [0] * 6000)
    assert [len(set(tokens[first::2].tolist())) for first in (0, 1)] == [51, 101]
    alone, _ = sample(torch.zeros(1, 101).expand(3000, -1), rules[1::2], range(1, 6000, 2), [0] * 3000)
    assert torch.equal(tokens[1::2], alone)


@pytest.mark.parametrize("vocab", [24 * sampler.RANKS, 2 * sampler.RANKS * sampler.BLOCK + 5])
def test_excluded_tokens_change_nothing_in_the_race_however_far_filters_look(vocab):
    """Among the tokens that a filter leaves, the race is that of logits whose other tokens are impossible.

    The best ranks settle peaked rows and few tokens, but neither flat rows nor many tokens.
    """
    torch.manual_seed(4)
    kinds = [  # how peaked a row is, its filters, and whether the best ranks leave it unsettled
        *[(0.5, {}, False), (0.5, {"top_k": 9}, False), (0.5, {"top_k": 700}, True), (0.3, {"top_p": 0.9}, True)],
        *[(9.0, {"top_p": 0.9}, False), (0.3, {"top_p": 0.99, "top_k": 9}, False)],
    ] * 60
    count, rules = len(kinds), [Sampling(**rule) for _, rule, _ in kinds]
    logits_NV = torch.randn(count, vocab) * torch.tensor([scale for scale, _, _ in kinds])[:, None]
    batch = SamplingBatch.make(rules, range(count), [1] * count, vocab)
    assert sampler.draw(logits_NV, batch)[2].tolist() == [unsettled for _, _, unsettled in kinds]
    tokens, logprobs = sample(logits_NV, rules, range(count), [1] * count)
    cut_NV = torch.full_like(logits_NV, -torch.inf)
    for cut_V, logits_V, rule in zip(cut_NV, logits_NV, rules, strict=True):
        probs_V, order_V = torch.softmax(logits_V, -1).sort(descending=True)
        left = int(((probs_V.cumsum(-1) - probs_V) < rule.top_p).sum()) if rule.top_p < 1 else vocab
        order_V = order_V[: min(left, rule.top_k) if rule.top_k > 0 else left]
        cut_V[order_V] = logits_V[order_V]
    alone, _ = sample(cut_NV, [Sampling()] * count, range(count), [1] * count)
    assert torch.equal(tokens, alone)
    exact = torch.log_softmax(logits_NV.double(), -1).gather(1, tokens[:, None]).squeeze(1)
    torch.testing.assert_close(logprobs.double(), exact, atol=4e-6, rtol=0)


def test_a_filter_takes_no_token_that_is_impossible():
    logits_V = torch.full((2 * sampler.RANKS * sampler.BLOCK + 5,), -200.0)
    logits_V[-3:] = 0.0
    assert set(draw(logits_V, Sampling(top_p=0.99), 200).tolist()) == {*range(len(logits_V) - 3, len(logits_V))}


@pytest.mark.parametrize("count", [1, 2])
def test_a_row_has_the_same_log_prob_alone_and_beside_others(count):
    torch.manual_seed(5)
    logits_NV = torch.randn(20, 49_152) * 3
    with threads(count):
        tokens, logprobs = sample(logits_NV, [Sampling()] * 20, range(20), [0] * 20)
        alone = [sample(row, [Sampling()], [i], [0]) for i, row in enumerate(logits_NV.split(1))]
    assert torch.equal(tokens, torch.cat([token for token, _ in alone]))
    assert torch.equal(logprobs, torch.cat([logprob for _, logprob in alone]))


def draw_uniforms(seeds: Sequence[int], steps: Sequence[int], number: int) -> np.ndarray:
    return uniforms(hash_positions(seeds, steps), torch.tensor(number)).numpy()


@given(st.integers(-(2**63), 2**64 - 1), st.integers(0, 10_000), st.integers(-800, 50_000))
def test_uniforms_depend_on_seed_step_and_number_alone(seed, step, number):
    alone = draw_uniforms([seed], [step], number)[0]
    assert 0.0 < alone < 1.0
    assert draw_uniforms([1, seed, 2], [5, step, 6], number)[1] == alone
    assert draw_uniforms([seed], [step + 1], number)[0] != alone
    assert draw_uniforms([seed], [step], number + 1)[0] != alone


def test_uniforms_are_those_of_splitmix64():
    """The generator that starts from key 1234567 returns these numbers first (Rosetta Code)."""
    wanted = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    got = uniforms(torch.tensor(1234567), torch.arange(4))
    assert [int(u * 2**52) for u in got.tolist()] == [z >> 12 for z in wanted]
