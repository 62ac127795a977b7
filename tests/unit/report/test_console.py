from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from core.report.console import print_summary
from core.report.summary import build_summary
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder
from scripts.report import main


def summary_lines(folder: RunFolder, headline: str | None = None) -> list[str]:
    output = io.StringIO()
    print_summary(build_summary(folder, headline), Console(file=output, width=80, force_terminal=False))
    return output.getvalue().splitlines()


def test_the_summary_fits_a_terminal(run: RunFolder) -> None:
    lines = summary_lines(run)
    assert any("full-context" in line for line in lines)
    assert "failures: 3 timeout" in lines
    assert not any("…" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_data_without_lengths_has_a_line_for_each_variant(empty: RunFolder) -> None:
    for variant, failures in (("trained", {}), ("always-the-strongest-expert", {"timeout": 1})):
        scores = {"official": [1.0, 0.0], "strict": [0.0, 0.0]}
        empty.save_evaluation(EvalResult(variant, "dev", 0, 0, 2, scores, [3, 4], [0, 0], 1.0, failures))
    lines = [" ".join(line.split()) for line in summary_lines(empty)]
    assert "trained 50.0 0.0 3.5 0" in lines
    assert "always-the-strongest-expert 50.0 0.0 3.5 1 timeout" in lines


def test_the_command_rebuilds_the_report_or_names_the_problem(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run.path)]) == 0
    assert "report.html" in capsys.readouterr().out
    for name in ("summary.json", "table.md", "report.html"):
        assert (run.path / name).stat().st_size > 0
    assert main([str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


def test_brackets_in_a_kind_of_failure_are_shown_as_they_are(empty: RunFolder) -> None:
    failures = {"[/bold] of [a]": 2}
    empty.open_metrics(0).append({"stage": "train", "step": 1, "failures": failures})
    assert "failures: 2 [/bold] of [a]" in summary_lines(empty)


@pytest.mark.parametrize("line", ['{"step": 1}', '{"stage": "train"}', '{"stage": "train", "step": "one"}'])
def test_a_record_without_stage_or_step_is_named(line: str, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with (run.seed_path(0) / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    assert main([str(run.path)]) == 2
    assert "metrics.jsonl: a record has no `stage` or no `step`" in capsys.readouterr().err


def test_a_folder_that_takes_no_report_is_named(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    (run.path / "report.html").mkdir()
    assert main([str(run.path)]) == 2
    assert "report.html" in capsys.readouterr().err
