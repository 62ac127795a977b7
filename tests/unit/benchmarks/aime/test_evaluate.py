"""From problems to files: a policy whose right answers are known gives the numbers counted by hand."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.aime import evaluate as cli
from benchmarks.aime.problems import load_problems
from benchmarks.aime.samples import read_sample, sample
from benchmarks.aime.single import SingleCall
from benchmarks.aime.statistics import Statistics, statistics
from benchmarks.cells import EvaluationError
from benchmarks.plan import Plan, drop_failed, held, missing
from core.data.files import DataError
from core.policy.base import PolicyError, Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import derive_seed
from core.runs.run_folder import RunFolder
from core.text.tokenizer import load_tokenizer
from core.types import Sampling, Task

Script = Callable[[int, int, Task], str | Exception]
"""(number of the problem, repeat, problem) -> what the policy writes."""


def plan_of(tasks: Sequence[Task], k: int) -> Plan:
    return Plan("made-up", tasks, k, Sampling(temperature=0.7, top_p=0.95), seed=0, concurrency=8, deadline_s=60.0)


async def run(
    model: Path, folder: RunFolder, plan: Plan, script: Script, variant: str = "single"
) -> tuple[Statistics, ScriptedPolicy]:
    """Sample with a policy that writes what `script` says, told apart by the seed of the call."""
    tokenizer = load_tokenizer(model)
    of = {
        derive_seed(plan.seed, "aime", task.task_id, repeat): (i, repeat, task)
        for i, task in enumerate(plan.tasks)
        for repeat in range(plan.k)
    }

    def respond(prompt: tuple[int, ...], sampling: Sampling) -> Sequence[int] | Exception:
        assert sampling.seed is not None
        i, repeat, task = of[sampling.seed]
        assert task.question in tokenizer.decode(prompt)
        text = script(i, repeat, task)
        return text if isinstance(text, Exception) else [*tokenizer.encode(text), tokenizer.eos_token_id]

    policy = ScriptedPolicy(respond)
    log = folder.open_trajectories(plan.seed)
    await sample(plan, variant, SingleCall(tokenizer, 256), Roles({"policy": policy}), log, tokenizer)
    records = held(plan, variant, log)
    log.close()
    return statistics([read_sample(record) for record in records], [task.task_id for task in plan.tasks]), policy


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "out", {"method": "test", "preset": "none"})


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

    stats, policy = await run(model, folder, plan_of(tasks, 16), script)
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


async def test_what_is_there_is_not_run_again_and_a_larger_k_adds(
    model: Path, problems: Path, folder: RunFolder
) -> None:
    _, tasks = load_problems(str(problems), Path("unused"))
    first, policy = await run(model, folder, plan_of(tasks, 2), right)
    assert len(policy.calls) == 12
    again, policy = await run(model, folder, plan_of(tasks, 2), right)
    assert (len(policy.calls), again) == (0, first)
    more, policy = await run(model, folder, plan_of(tasks, 5), right)
    assert (len(policy.calls), more.k, set(more.avg)) == (18, 5, {1.0})
    other, policy = await run(model, folder, plan_of(tasks, 1), right, variant="agent")
    assert (len(policy.calls), other.k) == (6, 1)
    log = folder.open_trajectories(0)
    assert missing(plan_of(tasks, 6), "single", log) == [(5, task) for task in tasks]
    keys = [(record["variant"], record["task_id"], record["step"]) for record in log.records()]
    assert len(keys) == len(set(keys)) == 36


async def test_a_line_torn_by_a_crash_is_one_sample_to_be_had(model: Path, problems: Path, folder: RunFolder) -> None:
    _, tasks = load_problems(str(problems), Path("unused"))
    await run(model, folder, plan_of(tasks, 2), right)
    path = folder.seed_path(0) / "trajectories.jsonl"
    path.write_bytes(path.read_bytes()[:-10])
    stats, policy = await run(model, folder, plan_of(tasks, 2), right)
    assert (len(policy.calls), stats.k, set(stats.avg)) == (1, 2, {1.0})


async def test_failed_samples_are_wrong_counted_and_run_anew_only_when_asked(
    model: Path, problems: Path, folder: RunFolder
) -> None:
    _, tasks = load_problems(str(problems), Path("unused"))

    def flaky(i: int, repeat: int, task: Task) -> str | Exception:
        return PolicyError("http_500", "down") if i == 2 else right(i, repeat, task)

    stats, _ = await run(model, folder, plan_of(tasks, 2), flaky)
    assert stats.failures == {"http_500": 2}
    assert list(stats.avg) == [1.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    stats, policy = await run(model, folder, plan_of(tasks, 2), right)
    assert (len(policy.calls), stats.failures) == (0, {"http_500": 2})
    log = folder.open_trajectories(0)
    assert drop_failed(log, ["agent"], [plan_of(tasks, 2).data]) == 0
    assert drop_failed(log, ["single"], ["other"]) == 0
    assert drop_failed(log, ["single"], [plan_of(tasks, 2).data]) == 2
    log.close()
    stats, policy = await run(model, folder, plan_of(tasks, 2), right)
    assert (len(policy.calls), stats.failures, set(stats.avg)) == (2, {}, {1.0})


async def test_a_set_up_in_which_nothing_works_is_an_error(model: Path, problems: Path, folder: RunFolder) -> None:
    _, tasks = load_problems(str(problems), Path("unused"))
    with pytest.raises(EvaluationError, match="every sample failed: 6 x http_400"):
        await run(model, folder, plan_of(tasks, 1), lambda *_: PolicyError("http_400", "no"))


async def test_another_text_under_the_same_id_is_refused(model: Path, problems: Path, folder: RunFolder) -> None:
    _, tasks = load_problems(str(problems), Path("unused"))
    await run(model, folder, plan_of(tasks, 1), right)
    reworded = [replace(task, question=task.question + "?") for task in tasks]
    corrected = [replace(task, answers=("7",)) for task in tasks]
    for changed in (reworded, corrected):
        with pytest.raises(EvaluationError, match="had another text or other answers"):
            await run(model, folder, plan_of(changed, 1), right)


def right(i: int, repeat: int, task: Task) -> str:
    return rf"\boxed{{{task.answers[0]}}}"


def test_problems_that_are_none_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such file"):
        load_problems("absent.jsonl", tmp_path)
    path = tmp_path / "odd.jsonl"
    path.write_text(json.dumps({"problem": "What is pi?", "answer": "\\pi"}) + "\n")
    with pytest.raises(DataError, match="no integers"):
        load_problems(str(path), tmp_path)


def test_the_budget_is_that_of_every_call_of_the_policy() -> None:
    recipe = {
        "a": {"final": {"engine": "policy", "max_tokens": 7}, "judge": {"engine": "other", "max_tokens": 9}},
        "b": 1,
    }
    assert cli.with_budget(recipe, 50) == {
        "a": {"final": {"engine": "policy", "max_tokens": 50}, "judge": {"engine": "other", "max_tokens": 9}}, "b": 1,
    }  # fmt: skip


def test_a_model_that_is_not_there_is_named_before_its_problems(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", "absent.jsonl", "--model", "/no/model", "--out", str(tmp_path / "out")]
    assert cli.main(arguments) == 1
    assert "error: /no/model: no such folder" in capsys.readouterr().err


def test_arms_are_words_as_in_the_other_evaluations() -> None:
    assert cli.parser().parse_args(["--model", "m", "--variants", "single", "agent"]).variants == ["single", "agent"]


def test_problems_out_of_reach_are_told_with_the_option(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise OSError("offline")

    monkeypatch.setattr("datasets.load_dataset", unreachable)
    with pytest.raises(DataError, match=r"HuggingFaceH4/aime_2024.*offline.*--data FILE"):
        load_problems("aime24", tmp_path)
