"""From problems to files: a policy whose right answers are known gives the numbers counted by hand."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.aime import evaluate as cli
from benchmarks.aime.problems import SingleCall, keep_verdict, load_problems, make_grade
from benchmarks.aime.results import aime_result
from benchmarks.aime.statistics import AimeStatistics
from benchmarks.harness.run import OpenVariant, evaluate_cell
from core.data.files import DataError
from core.policy.scripted import ScriptedPolicy
from core.rewards.math_grader import MathGrader
from core.runs.run_folder import RunFolder
from core.seeds import derive_seed
from core.text.tokenizer import load_tokenizer
from core.types import Sampling, Task, Trajectory

from ..conftest import CELL

Script = Callable[[int, int, Task], str]
"""(number of the problem, repeat, problem) -> what the policy writes."""


async def run(
    model: Path, folder: RunFolder, tasks: Sequence[Task], k: int, script: Script
) -> tuple[AimeStatistics, ScriptedPolicy]:
    """Sample with a policy that writes what `script` says, told apart by the seed of the call."""
    tokenizer = load_tokenizer(model)
    samples = {
        derive_seed(0, "aime", task.task_id, repeat): (i, repeat, task)
        for i, task in enumerate(tasks)
        for repeat in range(k)
    }

    def respond(prompt: tuple[int, ...], sampling: Sampling) -> Sequence[int]:
        assert sampling.seed is not None
        i, repeat, task = samples[sampling.seed]
        assert task.question in tokenizer.decode(prompt)
        return [*tokenizer.encode(script(i, repeat, task)), tokenizer.eos_token_id]

    policy = ScriptedPolicy(respond)
    sampling = Sampling(temperature=0.7, top_p=0.95)
    cell = replace(CELL, variant="single", length=256, n=len(tasks), sampling=sampling, repeats=k, stream="aime")
    cell = replace(cell, concurrency=8, deadline_s=60.0)

    @asynccontextmanager
    async def opener() -> AsyncIterator[OpenVariant]:
        yield OpenVariant(SingleCall(tokenizer, 256), {"policy": policy}, tokenizer)

    grader = MathGrader()
    await evaluate_cell(cell, tasks, folder, opener, aime_result, make_grade(grader))
    await grader.close()
    return cli.read_statistics(folder, seed=0)["made-up"]["single"], policy


async def test_a_policy_with_known_answers_on_the_real_problems(
    shared_data: Path, model: Path, folder: RunFolder
) -> None:
    """Of 30 problems the first 9 are always right, the next 6 in every other sample, which then tie with one wrong
    answer; the rest are wrong, each time otherwise, and the last one never ends."""
    _, tasks = load_problems(str(shared_data / "aime24.jsonl"), Path("unused"))
    assert len(tasks) == 30

    def script(i: int, repeat: int, task: Task) -> str:
        if i < 9 or (i < 15 and repeat % 2):
            return rf"Not \boxed{{1000}} but \boxed{{{int(task.answers[0]):03}}}."
        if i == 29:
            return "and so on " * 300
        return rf"\boxed{{{1000 + (repeat if i >= 15 else 0)}}}"

    stats, policy = await run(model, folder, tasks, 16, script)
    assert len(policy.calls) == 480
    assert {(call.sampling.temperature, call.sampling.top_p) for call in policy.calls} == {(0.7, 0.95)}
    assert stats.k == 16
    assert sum(stats.avg) / 30 == pytest.approx((9 + 6 / 2) / 30)
    assert sum(stats.pass_at[2]) / 30 == pytest.approx((9 + 6 * (1 - (8 * 7) / (16 * 15))) / 30)
    assert sum(stats.pass_at[16]) / 30 == pytest.approx(15 / 30)
    assert sum(stats.maj) / 30 == pytest.approx((9 + 6 / 2) / 30)
    # Every even repeat has 9 right, every odd one 15: mean 0.4, standard deviation 0.1 * sqrt(16/15), t(15) = 2.131.
    half = 2.131 * 0.1 * (16 / 15) ** 0.5 / 4
    assert stats.repeats == pytest.approx((0.4 - half, 0.4 + half))
    estimate = stats.estimates()["avg@16"]
    # Standard error over problems: variance of nine 1, six 1/2, fifteen 0 around 0.4.
    spread = ((9 * 0.36 + 6 * 0.01 + 15 * 0.16) / 30 / 30) ** 0.5
    assert estimate.low == pytest.approx(0.4 - 1.96 * spread, abs=0.03)
    assert estimate.high == pytest.approx(0.4 + 1.96 * spread, abs=0.03)
    assert (stats.truncated, stats.no_answer) == (1 / 30, 1 / 30)
    assert (stats.mean_turns, stats.failures) == (1.0, {})


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
    _, fields = await keep_verdict(Task("p", "q", ("7",)), Trajectory("p", (), "failed", failure="timeout"))
    assert (fields["answer"], fields["graded_by"]) == (None, None)
