"""RouteLLM's measures by hand, and the command on made-up prompts: its baselines, and the rows of a run."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.harness.plan import EvaluationError
from benchmarks.routing.curve import Outcomes, average, average_recovery, call_threshold, measure_router, recover_gap
from benchmarks.routing.evaluate import main, measure_routers, read_scores
from core.runs.run_folder import RunFolder
from tests.unit.benchmarks.conftest import make_result

WORDS = ("proof", "poem")
PREDICTED = {"prompt 0": 0.3, "prompt 1": 0.0}


def make_records() -> list[dict[str, Any]]:
    """Prompts with `proof` need the strong model, prompts with `poem` do not; every subject has both."""
    records = []
    for i in range(400):
        word = WORDS[i % 2]
        subject = "gsm8k" if i % 3 == 0 else f"mmlu_{i // 2 % 8}"
        prompt = f"number{i} asks for a {word} of kind{i % 7}"
        records.append({"set": subject, "prompt": prompt, "weak": word == "poem", "strong": True})
    return records


def write_tasks(path: Path) -> Path:
    names = {"question": "prompt", "kind": "set", "weak": "weak", "strong": "strong"}
    tasks = [{name: record[key] for name, key in names.items()} for record in make_records()]
    path.write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return path


def test_all_rows_are_measured_on_the_prompts_that_the_policy_has() -> None:
    records = make_records()
    found = {"trained": {r["prompt"]: float(not r["weak"]) for r in records[300:350]}}
    rows = dict(measure_routers(records[:300], records[:200], records[300:], found, seed=0))
    assert rows["trained"].values[0] == rows["oracle"].values[0]
    # Half of the prompts gain: the best curve is straight to 1 at half of the calls, 0.75 under it.
    assert rows["oracle"].values[0] == pytest.approx(0.75)
    assert np.array_equal(rows["trained"].draws, rows["oracle"].draws)


def test_command_writes_both_tables(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_tasks(tmp_path / "data.jsonl")
    assert main(["--data", str(data), "--folds", "0", "1", "--out", str(tmp_path / "out")]) == 0
    saved = json.loads((tmp_path / "out/routing.json").read_text())
    assert saved["mmlu"]["ridge"]["apgr"][0] == pytest.approx(saved["mmlu"]["oracle"]["apgr"][0], abs=0.02)
    assert "published: SW ranking, arena + gold | 0.603 |  | 35.4 | 71.5" in (tmp_path / "out/table.md").read_text()
    assert "fold 1, gsm8k" in capsys.readouterr().out


def test_the_table_says_how_many_prompts_a_run_has_a_score_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tasks(tmp_path / "data.jsonl")
    RunFolder.create(tmp_path / "run", {})
    scores = {r["prompt"]: float(r["strong"]) for r in make_records()[:200]}
    monkeypatch.setattr("benchmarks.routing.evaluate.read_scores", lambda folder, predicted, notes: {"trained": scores})
    words = ["--data", str(tmp_path / "data.jsonl"), "--folds", "0", "--run", str(tmp_path / "run")]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out/table.md").read_text()
    assert re.search(r"Fold 0, mmlu: only \d+ of \d+ prompts have a score of the run\.", text)


def test_command_wants_a_run_for_each_fold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--data", "x", "--folds", "0", "1", "--run", str(tmp_path)]) == 1
    assert "one run for each fold" in capsys.readouterr().err


def test_a_policy_scores_a_prompt_by_its_mean_probability_over_the_prices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = RunFolder.create(tmp_path / "run", {})
    ids = ["test-0-0.1", "test-0-0.5", "test-1-0.1", "test-1-0.5"]
    measures: dict[str, Any] = {
        "p_strong": [0.8, 0.4, 0.2, None],
        "malformed": [0.0, 0.0, 0.0, 1.0],
        "calls_strong": [1.0, 0.0, 0.0, 0.0],
        "reward": [0.9, 0.0, 1.0, -0.5],
    }
    more = {"notes": {"task_ids": ids}, "measures": measures, "labels": {"price": ["0.1", "0.5", "0.1", "0.5"]}}
    result = make_result("trained", "test", [1.0, 0.0, 1.0, 1.0], **more)
    folder.save_evaluation(result)
    samples = [
        SimpleNamespace(task_id=name, question=f"prompt {name[5]}", status="completed", log={"right": right})
        for name, right in ((name, {"weak": name[5] == "1", "strong": True}) for name in ids)
    ]
    monkeypatch.setattr("benchmarks.routing.evaluate.read_rollouts", lambda path: samples)
    notes: list[str] = []
    scores = {"prompt 0": 0.6, "prompt 1": 0.1}
    assert read_scores(folder, PREDICTED, notes) == {"trained (policy)": pytest.approx(scores)}
    assert "25.0 % malformed" in notes[0]
    assert "| 0.1 | 50.0 | 100.0 | 0.950 | 0.500 | 0.900 | 0.950 | 0.950 |" in notes[0]
    assert "| 0.5 | 0.0 | 50.0 | -0.250 | 0.500 | 0.500 | 0.500 | 0.750 |" in notes[0]
    assert "| mean | 25.0 | 75.0 | 0.350 | 0.500 | 0.700 | 0.725 | 0.850 |" in notes[0]
    # At 0.5 weak and strong are level, and the first is taken. Prompt 0 earns what they do, prompt 1 0.1 - 1.5 over 2.
    assert "at each price: -0.350 (-0.700 to +0.000); above ridge: -0.375 (-0.750 to +0.000)" in notes[0]
    two = RunFolder.create(tmp_path / "two", {})
    for seed in (0, 1):
        two.save_evaluation(replace(result, seed=seed))
    assert list(read_scores(two, PREDICTED, [])) == ["trained, seed 0 (policy)", "trained, seed 1 (policy)"]
    samples[1].status = "failed"  # its prompt's other price is of another scale
    assert read_scores(folder, PREDICTED, notes) == {"trained (policy)": {"prompt 1": pytest.approx(0.1)}}
    assert "1 rollouts failed; 1 prompts lack a price and have no score" in notes[1]
    samples[1].status = "completed"
    measures = {name: column for name, column in result.measures.items() if name != "p_strong"}
    folder.save_evaluation(replace(result, measures=measures))  # as if models had been named in several tokens
    with pytest.raises(EvaluationError, match=r"max_tokens=1"):
        read_scores(folder, PREDICTED, [])
    measures["malformed"] = [1.0] * 4  # as if no reply had named a model
    folder.save_evaluation(replace(result, measures=measures))
    assert read_scores(folder, PREDICTED, []) == {"trained (policy)": {"prompt 0": 0.0, "prompt 1": 0.0}}


def test_a_run_without_results_is_told_which_command_makes_them(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="evaluate heldout toolorchestra"):
        read_scores(RunFolder.create(tmp_path / "run", {}), PREDICTED, [])


# Ten prompts: the strong model alone is right on four of them (places 0 to 3), the weak one alone on none.
WEAK = np.array([0, 0, 0, 0, 1, 1, 1, 0, 0, 0], dtype=float)
STRONG = np.array([1, 1, 1, 1, 1, 1, 1, 0, 0, 0], dtype=float)
OUTCOMES = Outcomes(WEAK, STRONG)
BEST_FIRST = np.arange(10, 0, -1, dtype=float)


def test_the_best_router_recovers_the_gap_at_four_calls_in_ten() -> None:
    pgr = recover_gap(BEST_FIRST, OUTCOMES)
    assert pgr.tolist() == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1, 1, 1, 1, 1, 1])
    # Trapezoids of width 0.1: 0.1 * (0 / 2 + 0.25 + 0.5 + 0.75 + 6 * 1 + 1 / 2) = 0.8.
    assert average_recovery(pgr) == pytest.approx(0.8)
    assert call_threshold(pgr, 0.5) == pytest.approx(0.2)
    assert call_threshold(pgr, 0.8) == pytest.approx(0.32)
    assert OUTCOMES.quality(pgr)[[0, 2, 10]].tolist() == pytest.approx([0.3, 0.5, 0.7])


def test_a_prompt_that_strong_loses_takes_recovery_back() -> None:
    outcomes = Outcomes(np.array([0.0, 1.0, 0.0, 0.0]), np.array([1.0, 0.0, 1.0, 1.0]))  # a gap of 2 prompts in 4
    # After each call the recovered gap is 1/2, 0, 1/2, 1. The peak at 0.25 lies between two measured shares.
    pgr = recover_gap(np.array([4.0, 3.0, 2.0, 1.0]), outcomes)
    assert pgr[[2, 3, 5, 7, 8]].tolist() == pytest.approx([0.4, 0.4, 0, 0.4, 0.6])
    assert call_threshold(pgr, 0.5) == pytest.approx(0.75)
    assert call_threshold(pgr, 0.4) == pytest.approx(0.2)


def test_counts_are_copies_of_prompts() -> None:
    counts = np.array([2, 1, 1, 0, 1, 1, 1, 1, 1, 1], dtype=float)
    twice = np.repeat(np.arange(10), counts.astype(int))
    copied = recover_gap(BEST_FIRST[twice], Outcomes(WEAK[twice], STRONG[twice]))
    assert recover_gap(BEST_FIRST, OUTCOMES, counts).tolist() == pytest.approx(copied.tolist())


def test_no_gap_is_an_error() -> None:
    with pytest.raises(ValueError, match="not better"):
        recover_gap(BEST_FIRST, Outcomes(STRONG, WEAK))


def test_intervals_hold_the_value_and_the_mean_over_folds_has_a_narrower_one() -> None:
    rng = np.random.default_rng(1)
    folds = []
    for seed in range(3):
        gain = (rng.random(400) < 0.3).astype(float)
        scores = gain + rng.normal(size=400)
        folds.append(measure_router(scores, Outcomes(np.zeros(400), gain), seed, draws=200))
    for one in folds:
        low, high = one.interval(0)
        assert low < one.values[0] < high
    low, high = average(folds).interval(0)
    assert 0 < high - low < min(one.interval(0)[1] - one.interval(0)[0] for one in folds)
