from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.runs.evaluation import EvalResult, file_name, load_evaluations

GOOD = {
    "variant": "trained", "data": "niah", "length": 7168, "seed": 0, "n": 2, "scores": {"official": [1.0, 0.5]},
    "turns": [8, 8], "document_tokens": [7000, 7100], "seconds": 1.5, "failures": {"timeout": 1}, "model": "m",
    "sampling": {"temperature": 0.0}, "predictions": ["\\boxed{7}", None], "policy_tokens": [9000, 9200],
    "settings": {"data": {"task": "niah"}}, "notes": {"concurrency": 1},
    "measures": {"cost": [12.5, None]}, "labels": {"kind": ["sum", "word"]},
}  # fmt: skip


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    result = EvalResult(**GOOD)
    path = result.save(tmp_path)
    assert EvalResult.load(path) == result
    assert json.loads(path.read_text()) == GOOD
    assert load_evaluations(tmp_path) == [result]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"n": 0}, "n"),
        ({"n": 3}, r"scores\.official"),
        ({"seed": "0"}, "seed"),
        ({"scores": {"strict": [1, 1]}}, "scores"),
        ({"scores": {"official": [1, 1.01]}}, r"scores\.official"),
        ({"scores": {"official": [1, 1], "strict": [1]}}, r"scores\.strict"),
        ({"turns": [8]}, "turns"),
        ({"seconds": float("nan")}, "seconds"),
        ({"failures": {"timeout": 3}}, "failures"),
        ({"policy_tokens": [9000]}, "policy_tokens"),
        ({"predictions": ["7", 8]}, "predictions"),
        ({"measures": {"cost": [1.0, float("inf")]}}, r"measures\.cost"),
        ({"labels": {"kind": ["sum", 1]}}, r"labels\.kind"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_wrong_field_is_named_with_its_file(tmp_path: Path, change: dict, field: str) -> None:
    path = tmp_path / "wrong.json"
    path.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(ValueError, match=rf"wrong\.json: .*\b{field}\b"):
        EvalResult.load(path)


name = st.text("ab_/.- ", min_size=1, max_size=4)


@given(first=st.tuples(name, name), second=st.tuples(name, name))
def test_different_results_never_share_a_file(first: tuple[str, str], second: tuple[str, str]) -> None:
    one, other = file_name(*first, 480, 0), file_name(*second, 480, 0)
    assert (one == other) == (first == second)
    assert "/" not in one
