"""Tests that the work is seeded, has equal token counts and contains no special token."""

from __future__ import annotations

from benchmarks.speed.workload import (
    EOS,
    make_regimes,
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
