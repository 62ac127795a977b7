from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from core.report.__main__ import main
from core.report.console import print_summary
from core.report.summary import build_summary
from core.runs.evaluation import EvalResult
from core.runs.progress import Progress
from core.runs.run_folder import RunFolder


def plain() -> Console:
    return Console(file=io.StringIO(), width=100, force_terminal=False)


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_without_a_terminal_progress_is_a_line_now_and_then_and_one_at_the_end() -> None:
    console = plain()
    with Progress(100, interval=3600, console=console) as progress:
        for step in range(1, 101):
            progress.update(step, reward=step / 100, tokens_per_second=31234.5, failures=int(step == 100))
    lines = printed(console).splitlines()
    assert len(lines) == 2
    assert lines[0] == "train 1/100  0 s  reward 0.01  tok/s 31,234"
    assert lines[1] == "train 100/100  0 s  reward 1  tok/s 31,234  failures 1"


def test_in_a_terminal_progress_is_a_bar_that_starts_where_the_run_resumed() -> None:
    console = Console(file=io.StringIO(), width=140, force_terminal=True)
    with Progress(100, start=40, console=console) as progress:
        progress.update(41, reward=0.5)
    assert "41/100" in printed(console)
    assert "reward 0.5" in printed(console)


def test_progress_lets_an_error_through() -> None:
    with pytest.raises(KeyError), Progress(3, console=plain()):
        raise KeyError("x")


def test_the_summary_fits_a_terminal(run: RunFolder) -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    print_summary(build_summary(run), console)
    text = printed(console)
    assert "full-context" in text
    assert "training reward" in text
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80


def test_data_without_lengths_is_a_line_for_each_arm(run: RunFolder) -> None:
    for variant, failures in (("trained", {}), ("always-the-dearest-expert", {"timeout": 1})):
        scores = {"official": [1.0, 0.0], "strict": [0.0, 0.0]}
        run.save_evaluation(EvalResult(variant, "dev", 0, 0, 2, scores, [3, 4], [0, 0], 1.0, failures))
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    print_summary(build_summary(run, "dev"), console)
    lines = [" ".join(line.split()) for line in printed(console).splitlines()]
    assert "trained 50.0 0.0 3.5 0" in lines
    assert "always-the-dearest-expert 50.0 0.0 3.5 1 timeout" in lines


def test_the_command_rebuilds_the_report(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run.path)]) == 0
    assert "report.html" in capsys.readouterr().out
    for name in ("summary.json", "table.md", "report.html"):
        assert (run.path / name).stat().st_size > 0


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 2
    assert "not a run folder" in capsys.readouterr().err
