from __future__ import annotations

import pytest

from benchmarks.ruler.score import box_or_all, score
from core.rewards.qa import extract_the_answer_is
from core.types import Task


def task(metric: str, *answers: str) -> Task:
    return Task("t", "q", answers, "c", {"metric": metric})


def test_needles() -> None:
    needles = task("string_match_all", "19", "20")
    assert score(needles, "So \\boxed{1995, 20}") == {"score": 1.0, "strict": 0.5, "boxed": 0.0}
    assert score(needles, "1995 and 20", box_or_all)["score"] == 1.0
    assert score(needles, "1995 and \\boxed{20}", box_or_all)["score"] == 0.5
    assert score(needles, "1995 and 20")["score"] == 0.0, "no box"


def test_qa() -> None:
    question = task("string_match_part", "New York", "NYC")
    scores = score(question, "\\boxed{NYC}")
    assert (scores["score"], scores["strict"], scores["em"], scores["sub_em"]) == (1.0, 1.0, 0.0, 0.0)


def test_hqa_counts_the_first_answer_officially_and_any_strictly() -> None:
    question = task("sub_em", "New York", "NYC")
    assert score(question, "\\boxed{NYC}") == {"score": 0.0, "strict": 1.0, "em": 0.0, "f1": 0.0, "boxed": 1.0}
    assert score(question, "\\boxed{the}")["score"] == 1.0
    assert score(question, "\\boxed{the}")["strict"] == 0.0


@pytest.mark.parametrize("metric", ["string_match_all", "string_match_part", "sub_em"])
@pytest.mark.parametrize("response", [None, "", "\\boxed{}", "no box"])
def test_what_failed_scores_zero_under_the_same_names(metric: str, response: str | None) -> None:
    failed = score(task(metric, "A"), response)
    assert set(failed.values()) == {0.0}
    assert failed.keys() == score(task(metric, "A"), "\\boxed{A}").keys()


def test_thoughts_are_not_answers() -> None:
    assert score(task("sub_em", "Paris"), "\\boxed{Paris}</think> \\boxed{Rome}")["score"] == 0.0


def test_the_published_evaluation_reads_what_follows_the_answer_is() -> None:
    paris = task("sub_em", "Paris")
    scores = score(paris, "Rome? No. Therefore, the answer is **Paris**.", extract_the_answer_is)
    assert scores == {"score": 1.0, "strict": 1.0, "em": 1.0, "f1": 1.0}
    assert set(score(paris, "\\boxed{Paris}", extract_the_answer_is).values()) == {0.0}
