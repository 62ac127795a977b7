from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from core.report import print_summary, write_report
from core.report.summary import build_summary, first_and_last_reward, measure_parts
from core.runs.evaluation import EvalResult
from core.runs.health import FIXES
from core.runs.run_folder import RunFolder


def result(
    variant: str, length: int, official: list[float], seed: int = 0, data: str = "niah", **more: object
) -> EvalResult:
    n = len(official)
    fields = {"turns": [length // 100] * n, "document_tokens": [length] * n, "seconds": 2.0, **more}
    return EvalResult(variant, data, length, seed, n, {"official": official}, **fields)  # type: ignore[arg-type]


def test_cells_hold_mean_cost_and_failures_over_seeds(empty: RunFolder) -> None:
    empty.save_evaluation(result("trained", 500, [1, 1, 1, 0], 0, failures={"timeout": 1}))
    empty.save_evaluation(result("trained", 500, [1, 0, 0, 0], 1, failures={"timeout": 1, "http_400": 1}))
    empty.save_evaluation(result("trained", 1000, [1, 0]))
    empty.save_evaluation(result("empty-document", 500, [0, 0], document_tokens=[0, 0]))
    summary = build_summary(empty)
    cell = summary["variants"]["trained"]["500"]
    assert cell["score"] == cell["official"]
    assert (cell["score"]["mean"], cell["score"]["n"], cell["seeds"]) == (0.5, 8, [0, 1])
    assert cell["score"]["ci95"] == [0.0, 1.0]
    assert cell["failures"] == {"timeout": 2, "http_400": 1}
    assert cell["tokens_per_task"] == 500
    assert cell["seconds_per_1k_tokens"] == pytest.approx(1000 * 4.0 / (8 * 500))
    assert summary["variants"]["empty-document"]["500"]["seconds_per_1k_tokens"] is None
    assert list(summary["variants"]) == ["trained", "empty-document"]
    assert summary["retention"] == {"trained": pytest.approx(1.0), "empty-document": None}


def test_intervals_take_tasks_of_one_question_together(empty: RunFolder) -> None:
    """Twenty prompts at four prices each have the interval of twenty answers, not of eighty."""
    prompts = [f"p{i}" for i in range(20)]
    for variant, right in (("trained", 3), ("untrained", 2)):
        scores = [float(i % 5 < right) for i in range(20)]
        empty.save_evaluation(result(variant, 0, scores, data="alone", notes={"task_ids": prompts}))
        notes = {"task_ids": [f"{p}-{price}" for p in prompts for price in range(4)]}
        notes["question_ids"] = [p for p in prompts for _ in range(4)]
        empty.save_evaluation(result(variant, 0, [x for x in scores for _ in range(4)], data="prices", notes=notes))
    summary = build_summary(empty, "prices")
    found = [(each["variants"]["trained"]["0"], each["changes"]) for each in (summary, summary["other_data"]["alone"])]
    (prices, changed), (alone, changes) = found
    assert (prices["tasks"], alone["tasks"]) == (80, 20)
    assert prices["score"]["ci95"] == alone["score"]["ci95"]
    assert changed["untrained"]["0"]["official"]["ci95"] == changes["untrained"]["0"]["official"]["ci95"]


def test_policy_tokens_are_counted(empty: RunFolder) -> None:
    for seed in (0, 1):
        empty.save_evaluation(result("full-context", 500, [1, 0], seed, policy_tokens=[600, 700]))
    empty.save_evaluation(result("trained", 500, [1, 0]))
    variants = write_report(empty)["variants"]
    whole, chunks = variants["full-context"]["500"], variants["trained"]["500"]
    assert whole["policy_tokens_per_1k_tokens"] == 1300.0
    assert chunks["policy_tokens_per_1k_tokens"] is None
    table = (empty.path / "table.md").read_text()
    assert "| full-context | 500 | 4 | 500 | 5.0 | 1,300 | 2 | 0 |" in table
    assert "| trained | 500 | 2 | 500 | 5.0 | – | 2 | 0 |" in table


def test_failed_tasks_count_once_in_the_cost_of_a_solved_one(empty: RunFolder) -> None:
    """Five tasks are solved at a dollar each; five fail at an unknown cost: a solved one costs a dollar."""
    empty.save_evaluation(result("trained", 0, [1.0] * 5 + [0.0] * 5, measures={"cost": [1.0] * 5 + [None] * 5}))
    assert build_summary(empty)["variants"]["trained"]["0"]["measures"] == {"cost": 1.0, "cost_per_solved": 1.0}


def test_measures_are_means_over_the_tasks_that_have_them_and_are_split_by_label(empty: RunFolder) -> None:
    labels = {"kind": ["sum", "word", "sum", "sum"]}
    for seed, cost in ((0, [1.0, None, 3.0, 5.0]), (1, [1.0, 7.0, None, None])):
        official = [1.0, 0.0, 1.0, float(seed)]
        empty.save_evaluation(result("trained", 0, official, seed, measures={"cost": cost}, labels=labels))
    cell = build_summary(empty)["variants"]["trained"]["0"]
    assert cell["measures"] == {"cost": 17 / 5, "cost_per_solved": 17 / 5}
    split = cell["by"]["kind"]
    assert list(split) == ["sum", "word"]
    assert split["sum"]["measures"] == {"cost": 10 / 4, "cost_per_solved": 10 / 5}
    assert split["word"]["measures"] == {"cost": 7.0}, "nothing was solved"
    assert (split["sum"]["official"]["mean"], split["sum"]["official"]["n"]) == (pytest.approx(5 / 6), 6)
    assert split["word"]["score"]["mean"] == 0.0


def test_a_measure_that_a_seed_lacks_is_0_for_its_tasks_that_did_not_fail(empty: RunFolder) -> None:
    """One of seven tasks ended at a limit, in the one seed that has the measure; the eighth task failed."""
    turns = [1.0, 1.0, 1.0, 1.0]
    ends = {"end_limit": [1.0, 0, 0, 0], "answer_logprob": [-2.0, None, None, None]}
    empty.save_evaluation(result("trained", 0, [1.0] * 4, 0, measures={"turns": turns, **ends}))
    empty.save_evaluation(result("trained", 0, [1.0] * 4, 1, measures={"turns": [*turns[:3], None]}))
    measures = build_summary(empty)["variants"]["trained"]["0"]["measures"]
    assert measures["end_limit"] == 1 / 7
    assert measures["answer_logprob"] == -2.0, "who has no answer is not certain of it"


def test_the_change_of_a_measure_counts_tasks_that_all_seeds_share_once_as_that_of_a_score_does(
    empty: RunFolder,
) -> None:
    for variant, right in (("trained", [1.0, 0.0, 0.0, 0.0]), ("untrained", [0.0] * 4)):
        for seed in (0, 1, 2):
            more = {"measures": {"same": right}, "notes": {"task_ids": list("abcd")}}
            empty.save_evaluation(result(variant, 0, right, seed, **more))
    change = build_summary(empty)["changes"]["untrained"]["0"]
    assert change["measures"]["same"] == change["official"]


def test_seeds_that_sample_the_same_tasks_do_not_narrow_the_fit_of_retention(empty: RunFolder) -> None:
    def fit(seeds: range) -> tuple[float, float]:
        for seed in seeds:
            for length, right in ((1000, 18), (2000, 12)):
                ids = {"task_ids": [f"{length}-{i}" for i in range(20)]}
                scores = [1.0] * right + [0.0] * (20 - right)
                empty.save_evaluation(result("trained", length, scores, seed, notes=ids))
        found = build_summary(empty)["retention_fit"]["trained"]
        return found["low"], found["high"]

    assert fit(range(1)) == pytest.approx(fit(range(3)))


def test_a_lost_pair_does_not_make_new_tasks_of_the_others(empty: RunFolder) -> None:
    """One rollout of 120 failed: the interval of the change is nearly as wide as with it, and no third of that."""
    ids, cost = {"task_ids": [f"t{i}" for i in range(40)]}, [float(i % 5) for i in range(40)]
    widths = []
    for lost in (None, 7):
        for seed in (0, 1, 2):
            for variant, costs in (("trained", cost), ("untrained", [1.0] * 40)):
                mine = [None if (i, seed) == (lost, 0) else value for i, value in enumerate(costs)]
                empty.save_evaluation(result(variant, 0, [1.0] * 40, seed, measures={"cost": mine}, notes=ids))
        change = build_summary(empty)["changes"]["untrained"]["0"]["measures"]["cost"]
        widths.append(change["ci95"][1] - change["ci95"][0])
    assert widths[1] == pytest.approx(widths[0], rel=0.1)


def test_a_whole_run_is_summarized(run: RunFolder) -> None:
    summary = write_report(run)
    assert json.loads((run.path / "summary.json").read_text()) == summary
    assert summary["seeds"] == [0, 1, 2]
    assert list(summary["variants"]) == ["trained", "untrained", "empty-document", "full-context"]
    assert summary["checkpoints"]["1"] == ["seed-1/checkpoints/step-20"]
    assert summary["reward"]["0"]["last"] > summary["reward"]["0"]["first"]
    assert len(summary["departures"]) == 2


def test_a_report_says_which_seeds_have_not_finished_training(empty: RunFolder) -> None:
    empty.update_config({**empty.config, "run": {"steps": 20}})
    for seed, step in ((0, 20), (1, 15)):
        (empty.checkpoints_path(seed) / f"step-{step:06d}").mkdir(parents=True)
    metrics = empty.open_metrics(2)
    metrics.append({"stage": "train", "step": 1, "reward": 0.5})
    metrics.close()
    empty.rejection_path(3).mkdir(parents=True)  # a baseline, or a backend that keeps its checkpoints elsewhere
    (empty.rejection_path(3) / "rollouts.jsonl").write_text('{"step": 1}\n')
    write_report(empty)
    text = (empty.path / "table.md").read_text()
    assert "- seed 1 has not finished training; its newest checkpoint is step-000015" in text
    assert "- seed 2 has not finished training; its newest checkpoint is not there yet" in text
    assert "seed 0" not in text
    assert "seed 3 has" not in text
    assert "- seed 3: its rejection sampling has 1 of 20 steps" in text


def test_what_was_evaluated_of_a_run_is_measured_by_what_has_trained(empty: RunFolder) -> None:
    for seed, step in ((0, 40), (1, 40), (2, 40)):
        (empty.checkpoints_path(seed) / f"step-{step:06d}").mkdir(parents=True)
    for seed, step in ((0, 20), (1, 40)):
        model = f"seed-{seed}/checkpoints/step-{step:06d}"
        for variant in ("trained", "trained-greedy"):
            empty.save_evaluation(result(variant, 0, [1.0], seed, "test", model=model))
    assert build_summary(empty)["departures"] == [
        *(f"test, {variant}: seed 2 was not evaluated" for variant in ("trained", "trained-greedy")),
        "test, trained: seed 0 was evaluated at step-000020, and has step-000040 now",
        "test, trained-greedy: seed 0 was evaluated at step-000020, and has step-000040 now",
    ]


def test_what_the_seeds_of_a_number_do_not_share_is_told(empty: RunFolder) -> None:
    for seed in range(3):
        window = {} if seed else {"window": "5", "code": {"a.py": "1", "b.py": "1"}}
        settings = {"memagent": {"max_chunks": 8 - seed // 2}, "weights": f"{seed}", **window}
        scores = [1.0] * (1 + seed // 2)
        empty.save_evaluation(result("trained", 500, scores, seed, sampling={"temperature": 1.0}, settings=settings))
    empty.save_evaluation(result("untrained", 500, [0.0], 1, sampling={"temperature": 1.0}))
    assert build_summary(empty)["departures"] == [
        "niah, trained at length 500: memagent.max_chunks is not the same for all seeds",
        "niah, trained at length 500: window is not the same for all seeds",
        "niah, trained at length 500: code is not the same for all seeds",
        "niah, trained at length 500: tasks is not the same for all seeds",
        "niah, untrained at length 500: seed 0, 2 was not evaluated",
    ]


def test_what_a_change_compares_and_was_had_otherwise_is_told(empty: RunFolder) -> None:
    def save(variant: str, file: str, code: str, temperature: float, **more: str) -> None:
        settings = {"data": {"file": file}, "code": {"a.py": code, "b.py": code}, "weights": variant, **more}
        empty.save_evaluation(
            result(variant, 0, [1.0], 0, "test", sampling={"temperature": temperature}, settings=settings)
        )

    save("trained", "test.jsonl sha256:1", "1", 0.7)
    save("untrained", "test.jsonl sha256:1", "2", 1.0)
    save("untrained-greedy", "test.jsonl sha256:2", "1", 0.0, tokenizer="t")
    save("no-tool", "test.jsonl sha256:1", "1", 0.7)
    assert build_summary(empty)["departures"] == [
        "test, untrained: code is another than that of trained, or unknown",
        "test, untrained: sampling.temperature is another than that of trained, or unknown",
        "test, untrained-greedy: data.file is another than that of trained, or unknown",
    ]


def test_the_first_and_the_last_reward_share_no_step() -> None:
    def records(*rewards: float) -> list[dict[str, object]]:
        return [{"stage": "train", "reward": reward} for reward in rewards]

    assert first_and_last_reward(records(0.0, 0.5, 1.0)) == {"first": 0.0, "last": 1.0, "steps": 1}
    assert first_and_last_reward(records(*[0.0] * 15, *[1.0] * 10)) == {"first": 0.0, "last": 1.0, "steps": 10}
    assert first_and_last_reward(records(0.5)) == {"first": 0.5, "last": 0.5, "steps": 1}


def test_what_ran_at_the_same_time_counts_once() -> None:
    seeds = [{"stage": "train", "time": time, "seconds": 10.0} for time in (10.0, 10.0, 15.0, 30.0)]
    evaluations = [{"part": "evaluation", "time": time, "seconds": 60.0} for time in (100.0, 90.0)]
    records = [*seeds, {"stage": "eval", "time": 33.0, "seconds": 3.0}, *evaluations]
    assert measure_parts(records) == {"train": 28.0, "evaluation": 70.0}


def test_signs_of_bad_health_are_in_the_summary_the_page_and_the_terminal(empty: RunFolder) -> None:
    metrics = empty.open_metrics(3)
    for step in range(1, 5):
        health = {"entropy_gone": f"the entropy is {step}"} if step in (2, 3) else {}
        metrics.append({"stage": "train", "step": step, "reward": 0.5, "seconds": 1.0, "health": health})
    empty.open_metrics(4).append({"stage": "train", "step": 1, "reward": 0.5})  # by an older version
    summary = write_report(empty)
    fix = FIXES["entropy_gone"]
    sign = {"sign": "entropy_gone", "first": 2, "last": 3, "steps": 2, "text": "the entropy is 3", "fix": fix}
    assert summary["health"] == {"3": [sign]}
    line = f"seed 3, 2 steps from 2 on, entropy gone: the entropy is 3. Try: {fix}"
    assert line in (empty.path / "report.html").read_text()
    console = Console(file=StringIO())
    print_summary(summary, console)
    assert f"warning: {line}\n" in console.file.getvalue()  # type: ignore[attr-defined]


def test_the_kept_step_is_in_the_summary_the_page_and_the_terminal(tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, {"method": "memagent", "preset": "tiny", "run": {"keep": "best"}})
    for seed, rewards in {3: {0: 0.25, 2: 0.75, 4: 0.5}, 4: {2: 0.5}, 6: {0: 0.5, 2: 0.25}}.items():
        metrics = run.open_metrics(seed)
        for step, reward in rewards.items():
            metrics.append({"stage": "eval", "step": step, "reward": reward})
            if step:
                (run.checkpoints_path(seed) / f"step-{step:06d}").mkdir(parents=True)
    (run.checkpoints_path(5) / "step-000007").mkdir(parents=True)  # never evaluated
    summary = write_report(run)
    assert summary["kept"]["3"] == {"step": 2, "rewards": {"0": 0.25, "2": 0.75, "4": 0.5}}
    lines = [
        "seed 3: step 2 has the best held-out reward, 0.750 (step 0: 0.250, step 4: 0.500)",
        "seed 4: step 2 has the best held-out reward, 0.500 (step 2: 0.500, step 2: 0.500)",
        "seed 6: step 2 has the best held-out reward, 0.250 (step 0: 0.500, step 2: 0.250); the start is better",
    ]
    console = Console(file=StringIO())
    print_summary(summary, console)
    for line in lines:
        assert line in (run.path / "report.html").read_text()
        assert f"{line}\n" in console.file.getvalue()  # type: ignore[attr-defined]
    assert summary["kept"].keys() == {"3", "4", "6"}


def test_tasks_that_all_seeds_share_are_not_counted_as_many_tasks(empty: RunFolder) -> None:
    for variant, ids in (("shared", "abcd"), ("own", None)):
        for seed in (0, 1, 2):
            notes = {"task_ids": list(ids)} if ids else {}
            empty.save_evaluation(result(variant, 0, [1, 1, 0, 0], seed, notes=notes))
    variants = build_summary(empty)["variants"]
    shared, own = (variants[variant]["0"]["score"] for variant in ("shared", "own"))
    assert shared["mean"] == own["mean"] == 0.5
    assert shared["n"] == own["n"] == 12
    assert shared["ci95"][0] < own["ci95"][0]
    assert shared["ci95"][1] > own["ci95"][1]
