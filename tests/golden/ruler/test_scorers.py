"""Our scorers against the official ones on 1,000 predictions; `make_golden.py` says where the numbers come from."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from core.rewards import boxed, qa
from tests.golden.is_equiv import is_equiv
from tests.golden.ruler.predictions import Case, cases

GOLDEN = json.loads((Path(__file__).parent / "scorers.json").read_text(encoding="utf-8"))
CASES = cases()


def test_predictions_are_those_that_were_scored() -> None:
    assert _digest(CASES) == GOLDEN["predictions_sha256"]


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("em", lambda c: qa.em(c.response, c.answers[0])),
        ("sub_em", lambda c: qa.sub_em(c.response, c.answers[0])),
        ("string_match_part", lambda c: qa.string_match_part(c.response, c.answers)),
        ("boxed_reward", lambda c: boxed.boxed_reward(c.response, c.answers)),
        ("is_equiv", lambda c: is_equiv(*c.latex)),
    ],
)
def test_score_is_the_official_one(name: str, score: Any) -> None:
    official = [int(digit) for digit in GOLDEN[name]]
    assert 50 < sum(official) < 950, "the predictions must exercise both outcomes"
    assert [int(score(case)) for case in CASES] == official


@pytest.mark.parametrize(
    ("name", "score"),
    [
        ("f1", lambda c: round(qa.f1(c.response, c.answers[0]), 4)),
        ("string_match_all", lambda c: round(100 * qa.string_match_all(c.response, c.answers), 2)),
    ],
)
def test_share_is_the_official_one(name: str, score: Any) -> None:
    assert len(set(GOLDEN[name])) > 4
    assert [score(case) for case in CASES] == pytest.approx(GOLDEN[name])


@pytest.mark.parametrize(
    ("name", "extract"), [("extract_boxed", boxed.find_boxed), ("extract_the_answer_is", qa.extract_the_answer_is)]
)
def test_extraction_is_the_official_one(name: str, extract: Any) -> None:
    assert _digest([extract(case.response) for case in CASES]) == GOLDEN[name]


def _digest(values: list[Case] | list[str | None]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
