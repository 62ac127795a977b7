"""Tests that the work is seeded, has equal token counts and contains no special token."""

from __future__ import annotations

import pytest

from benchmarks.speed.workload import (
    EOS,
    OBSERVATION,
    GenerationSample,
    continue_sessions,
    grade,
    make_checkpoint,
    make_regimes,
    make_step_requests,
    spell,
)

VOCAB = 1280


def test_regimes_repeat_and_hold_the_promised_shapes():
    first, again = make_regimes(VOCAB), make_regimes(VOCAB)
    assert first == again
    assert {name: len(requests) for name, requests in first.items()} == {
        "distinct": 64, "groups": 64, "heavy_tailed": 64, "sessions": 32, "sections": 48,
    }  # fmt: skip
    assert len({r.prompt_ids for r in first["distinct"]}) == 64
    assert len({r.prompt_ids for r in first["groups"]}) == 4
    assert all(len(r.prompt_ids) == 300 and r.max_new_tokens == 64 for r in first["distinct"] + first["groups"])
    assert len({r.prompt_ids for r in first["sections"]}) == 48
    assert len({r.prompt_ids[:300] for r in first["sections"]}) == 4
    assert {(len(r.prompt_ids), r.max_new_tokens) for r in first["sections"]} == {(340, 32)}
    lengths = [r.max_new_tokens for r in first["heavy_tailed"]]
    assert max(lengths) > 3 * sorted(lengths)[32]
    assert all(token > EOS for requests in first.values() for r in requests for token in r.prompt_ids)


@pytest.mark.parametrize("kind", ["equal", "uneven", "distinct"])
def test_step_requests_come_group_after_group(kind):
    requests = make_step_requests(kind, VOCAB, groups=3, group_size=4)
    assert len(requests) == 12
    prompts_per_group = [len({r.prompt_ids for r in requests[i : i + 4]}) for i in (0, 4, 8)]
    assert prompts_per_group == ([4, 4, 4] if kind == "distinct" else [1, 1, 1])
    assert (len({r.max_new_tokens for r in requests}) == 1) == (kind == "equal")


def test_a_session_goes_on_with_what_was_sampled():
    samples = [GenerationSample((5, 6), (7, 8, 9), (-1.0, -1.0, -1.0)), GenerationSample((5,), (6,), (-1.0,))]
    turns = continue_sessions(samples, VOCAB, turn=1)
    assert [r.prompt_ids[:-OBSERVATION] for r in turns] == [(5, 6, 7, 8, 9), (5, 6)]
    assert [r.max_new_tokens for r in turns] == [3, 1]
    assert turns == continue_sessions(samples, VOCAB, turn=1)
    assert turns[0].prompt_ids[-OBSERVATION:] != continue_sessions(samples, VOCAB, turn=2)[0].prompt_ids[-OBSERVATION:]


def test_reward_looks_at_the_first_eight_tokens():
    assert grade((2, 2, 3, 3, 2, 2, 3, 3, 2, 2, 2)) == 0.5
    assert grade((3,)) == 0.0


def test_the_checkpoint_s_words_are_its_ids(tmp_path):
    from transformers import PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast.from_pretrained(make_checkpoint("tiny", tmp_path))
    ids = [2, 1279, 30]
    assert tokenizer(" ".join(map(spell, ids)))["input_ids"] == ids
