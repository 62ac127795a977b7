"""One table of all published scores: each has our cell, a command that makes it, or says that there is none."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.table import command
from benchmarks.table.evaluations import Evaluation, Places, find_evaluation, find_lacking, list_published
from core.runs.run_folder import RunFolder

from .conftest import make_result


def list_evaluations() -> list[Evaluation]:
    found = (find_evaluation(row, Places()) for row in list_published())
    return list(dict.fromkeys(evaluation for evaluation in found if evaluation is not None))


def test_every_evaluation_is_a_command_that_its_evaluator_reads() -> None:
    evaluations = list_evaluations()
    assert len(evaluations) == len({evaluation.command for evaluation in evaluations}) >= 19
    for evaluation in evaluations:
        _, _, benchmark, *words = evaluation.command.split()
        read = vars(command.EVALUATORS[benchmark].make_parser().parse_args(words))
        assert read["model"] == evaluation.model == evaluation.models[0]


def test_what_is_missing_is_told_with_the_way_to_get_it(tmp_path: Path) -> None:
    evaluation = next(each for each in list_evaluations() if "frames" in each.data)
    (tmp_path / "frames.jsonl").write_text("{}\n")
    evaluation = replace(evaluation, data=(*evaluation.data, "hle", "essays", "tau2"))
    told = "\n".join(find_lacking(evaluation, Places(data=tmp_path)))
    assert "frames.jsonl: missing" not in told
    assert "essays: missing. Get it: tokentrue data download essays" in told
    assert "TAU2_DATA: missing. Get it: see benchmarks/tau2/README.md" in told
    assert f"{tmp_path / 'hle.jsonl'}: missing. Get it: copy evaluation/hle.jsonl of NVlabs/ToolOrchestra" in told
    assert "retrieval service: tokentrue data download frames-corpus" in told
    assert "--set toolorchestra.search.url=URL" in told
    assert "secrets/openai_api_key: the key of the models behind paid interfaces" in told


def save_scores(folder: RunFolder, count: int) -> None:
    """Save a cell of so many tasks; three of four are right."""
    scores, notes = [1.0, 1.0, 1.0, 0.0] * (count // 4), {"protocol": "memagent recurrent"}
    model = "BytedTsinghua-SIA/RL-MemoryAgent-7B"
    folder.save_evaluation(make_result("trained", "ruler-hqa", scores, length=50, model=model, notes=notes))


def test_what_a_folder_holds_is_no_longer_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell of four tasks is shown, and is missing yet beside a score of 128."""

    def show() -> tuple[str, int]:
        assert command.main(["--runs", str(tmp_path)]) == 0
        text = capsys.readouterr().out
        return text, int(text.partition(" published scores have none")[0].rpartition("\n")[2])

    _, before = show()
    folder = RunFolder.create(tmp_path / "ours", {"method": "memagent", "preset": "published"})
    save_scores(folder, 4)
    text, lacking = show()
    (row,) = [line for line in text.splitlines() if line.startswith("| RL-MemAgent-7B | ruler-hqa | 50 |")]
    assert "| 75.0 (" in row
    assert lacking == before
    assert "8 rows (RL-MemAgent-7B, ruler-hqa)" in text

    save_scores(RunFolder.create(tmp_path / "whole", {"method": "memagent", "preset": "published"}), 128)
    text, lacking = show()
    (row,) = [line for line in text.splitlines() if line.startswith("| RL-MemAgent-7B | ruler-hqa | 50 |")]
    assert row.count("| 128 |") == 2, "of two folders the one with all tasks is shown"
    assert lacking == before - 1
    assert "7 rows (RL-MemAgent-7B, ruler-hqa)" in text
    assert "Comparisons of official scores in the tables: 1." in text


def test_seeds_make_no_further_tasks_and_departures_and_failures_stand_below_the_table(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three seeds of 44 questions are 44 tasks and not 132, beside 128 published ones."""
    folder = RunFolder.create(tmp_path / "ours", {"method": "memagent", "preset": "published"})
    notes = {
        "protocol": "memagent recurrent",
        "task_ids": [str(i) for i in range(44)],
        "departures": ["chunk_tokens: 1,000; published: 5,000"],
    }
    named = {"length": 50, "model": "BytedTsinghua-SIA/RL-MemoryAgent-7B", "failures": {"unavailable": 11}}
    for seed in range(3):
        folder.save_evaluation(
            replace(make_result("trained", "ruler-hqa", [1.0, 0.0] * 22, notes=notes, **named), seed=seed)
        )
    assert command.main(["--runs", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if line.startswith("| RL-MemAgent-7B | ruler-hqa | 50 |")]
    assert "| 128 | 50.0 (35.8 to 64.2) | 44 |" in row
    assert "8 rows (RL-MemAgent-7B, ruler-hqa)" in text, "84 questions are missing yet"
    below = "failed, and counted as wrong: 33 unavailable\n- chunk_tokens: 1,000; published: 5,000\n"
    assert f"ours (RL-MemAgent-7B on ruler-hqa):\n- {below}" in (tmp_path / "table.md").read_text()
