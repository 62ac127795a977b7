from __future__ import annotations

from pathlib import Path

import pytest

from core.runs.run_folder import RunFolder
from scripts.report import main


def test_the_command_rebuilds_the_report_or_names_the_problem(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run.path)]) == 0
    assert "report.html" in capsys.readouterr().out
    for name in ("summary.json", "table.md", "report.html"):
        assert (run.path / name).stat().st_size > 0
    assert main([str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize("line", ['{"step": 1}', '{"stage": "train"}', '{"stage": "train", "step": "one"}'])
def test_a_record_without_stage_or_step_is_named(line: str, run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    with (run.seed_path(0) / "metrics.jsonl").open("a") as file:
        file.write(line + "\n")
    assert main([str(run.path)]) == 2
    assert "metrics.jsonl: a record has no `stage` or no `step`" in capsys.readouterr().err
