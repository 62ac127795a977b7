"""From problems to files: a policy whose right answers are known gives the numbers counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.aime import evaluate as cli
from benchmarks.aime.problems import keep_verdict, load_problems, make_grade
from core.data.files import DataError
from core.rewards.math_grader import MathGrader
from core.types import Status, Task, Trajectory


def test_problems_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_problems("absent.jsonl", tmp_path)
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps({"problem": "What is pi?", "answer": "\\pi"}) + "\n")
    with pytest.raises(DataError, match="no integers"):
        load_problems(str(path), tmp_path)


def test_the_budget_is_that_of_every_call_of_the_policy() -> None:
    recipe = {
        "a": {"final": {"role": "policy", "max_tokens": 7}, "judge": {"role": "other", "max_tokens": 9}},
        "b": 1,
    }
    assert cli.with_budget(recipe, 50) == {
        "a": {"final": {"role": "policy", "max_tokens": 50}, "judge": {"role": "other", "max_tokens": 9}},
        "b": 1,
    }


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
    assert await keep_verdict(Task("p", "q", ("7",)), judged) == (
        judged,
        {"answer": "**Answer:** 7", "graded_by": "same", "final": "**Answer:** 7"},
    )


@pytest.mark.parametrize("status", ["failed", "truncated"])
async def test_a_rollout_without_an_answer_is_a_wrong_one(status: Status) -> None:
    """One whose prompts outgrew the context is truncated, with reward 0 (core/rollout/runner.py)."""
    ended = Trajectory("p", (), status, 0.0, "too_long", log={"error": "too long"})
    grader = MathGrader()
    for grade in (keep_verdict, make_grade(grader)):
        graded, fields = await grade(Task("p", "q", ("7",)), ended)
        assert (graded.reward, fields["answer"], fields["final"]) == (0.0, None, "")
    await grader.close()
