"""From problems to files, and every statistic: numbers that are counted by hand or by brute force."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.aime import evaluate as cli
from benchmarks.aime.problems import keep_verdict, load_problems, make_grade
from benchmarks.aime.results import aime_statistics, score_majority
from benchmarks.harness.samples import Sample
from core.data.files import DataError
from core.report.stats import wilson
from core.rewards.math_grader import MathGrader
from core.types import Status, Task, Trajectory
from tests.unit.benchmarks.conftest import make_sample


def test_problems_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_problems("absent.jsonl", tmp_path)
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps({"problem": "What is pi?", "answer": "\\pi"}) + "\n")
    with pytest.raises(DataError, match="no integers"):
        load_problems(str(path), tmp_path)


def test_the_budget_is_that_of_every_call_of_the_policy() -> None:
    def recipe(tokens: int) -> dict[str, Any]:
        roles = {"final": {"role": "policy", "max_tokens": tokens}, "judge": {"role": "other", "max_tokens": 9}}
        return {"a": roles, "b": 1}

    assert cli.with_budget(recipe(7), 50) == recipe(50)


def test_samples_follow_from_the_code_that_asks_and_grades(tmp_path: Path) -> None:
    problems = tmp_path / "sums.jsonl"
    problems.write_text('{"id": "p", "problem": "What is 1 plus 1?", "answer": "2"}\n')
    words = ["--data", str(problems), "--model", "owner/name", "--variants", "single", "--out", str(tmp_path / "out")]
    (cell,) = cli.prepare(cli.make_parser().parse_args([*words, "--policy-url", "http://127.0.0.1:1"])).cells
    assert set(cell.settings["code_of_benchmark"]) == {"problems.py"}


def test_a_model_that_is_not_there_is_named_before_its_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", "absent.jsonl", "--model", "/no/model", "--out", str(tmp_path / "out")]
    assert cli.main(arguments) == 1
    assert "error: /no/model: no such folder" in capsys.readouterr().err
    assert cli.main([*arguments, "--variants", "agent-untrained"]) == 1
    assert "variant agent-untrained: no model for it." in capsys.readouterr().err


def test_problems_out_of_reach_are_told_with_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("offline")

    monkeypatch.setattr("huggingface_hub.HfApi.dataset_info", unreachable)
    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(DataError, match=r"HuggingFaceH4/aime_2024.*offline.*--data FILE"):
        load_problems("aime24", tmp_path)


async def test_a_methods_own_judge_is_kept_where_answers_need_no_box() -> None:
    log = {"answer": " **Answer:** 7 ", "graded_by": "same"}
    judged = Trajectory("p", (), "completed", 1.0, log=log)
    kept = {"answer": "**Answer:** 7", "graded_by": "same", "final": "**Answer:** 7"}
    assert await keep_verdict(Task("p", "q", ("7",)), judged) == (judged, kept)


@pytest.mark.parametrize("status", ["failed", "truncated"])
async def test_a_rollout_without_an_answer_is_a_wrong_one(status: Status) -> None:
    """One whose prompts outgrew the context is truncated, with reward 0 (core/rollout/runner.py)."""
    ended = Trajectory("p", (), status, 0.0, "too_long", log={"error": "too long"})
    grader = MathGrader()
    for grade in (keep_verdict, make_grade(grader)):
        graded, fields = await grade(Task("p", "q", ("7",)), ended)
        assert (graded.reward, fields["answer"], fields["final"]) == (0.0, None, "")
    await grader.close()


def sample(task_id: str, repeat: int, correct: bool, answer: str | None, **fields: Any) -> Sample:
    return make_sample(task_id, repeat, reward=float(correct), graded={"answer": answer}, **fields)


def graded(task_id: str, answers: list[str | None], label: str) -> list[Sample]:
    return [sample(task_id, i, answer == label, answer) for i, answer in enumerate(answers)]


@pytest.mark.parametrize(
    ("answers", "score"),
    [
        (["73", "73", "25"], 1.0),
        (["73", "25", "25"], 0.0),
        (["73", "25"], 0.5),
        (["73", "25", "9"], 1 / 3),
        (["73", "73", "25", "25", "9"], 0.5),
        ([None, None, None, "73"], 1.0),
        ([None, None], 0.0),
    ],
)
def test_majority_votes_over_answers_and_splits_ties(answers: list[str | None], score: float) -> None:
    assert score_majority(graded("a", answers, "73")) == pytest.approx(score)
    assert score_majority(graded("a", answers[::-1], "73")) == pytest.approx(score)


def test_every_number_of_two_problems_and_four_samples() -> None:
    easy = graded("easy", ["1", "1", "1", "2"], "1")
    hard = [
        sample("hard", 0, False, None, turns=9, sampled_tokens=50, status="truncated"),
        sample("hard", 1, False, "8", turns=3, sampled_tokens=30, metrics={"command_errors": 2}),
        sample("hard", 2, True, "7", turns=3, sampled_tokens=40, metrics={"parse_errors": 1, "tool_errors": 1}),
        sample("hard", 3, False, None, turns=0, status="failed", failure="deadline"),
    ]
    stats = aime_statistics([easy, hard])
    assert stats.k == 4
    assert list(stats.avg) == [0.75, 0.25]
    assert stats.pass_at == {2: [1.0, 0.5], 4: [1.0, 1.0]}
    assert list(stats.maj) == [1.0, 0.5]
    # The means of the repeats are 1/2, 1/2, 1 and 0; t(3 degrees) = 3.182; their standard deviation is sqrt(1/6).
    half = 3.182 * math.sqrt(1 / 6) / 2
    assert stats.repeats == pytest.approx((max(0, 0.5 - half), min(1, 0.5 + half)))
    assert (stats.truncated, stats.no_answer, stats.parse_errors, stats.tool_errors) == (1 / 8, 2 / 8, 2 / 8, 1 / 8)
    assert stats.failures == {"deadline": 1}
    assert (stats.mean_turns, stats.mean_tokens) == ((4 + 15) / 8, 120 / 8)
    estimates = stats.estimates()
    assert list(estimates) == ["avg@4", "pass@2", "pass@4", "maj@4"]
    # A bootstrap of two problems draws both of one with probability 1/4 each: the interval is their range.
    assert (estimates["avg@4"].mean, estimates["avg@4"].low, estimates["avg@4"].high) == (0.5, 0.25, 0.75)
    assert estimates["maj@4"].mean == 0.75


def test_repeats_that_agree_still_leave_an_interval() -> None:
    stats = aime_statistics([graded("a", ["1", "1"], "1"), graded("b", ["2", "2"], "1")])
    assert stats.repeats == pytest.approx(wilson(2, 4))
