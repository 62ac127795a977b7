"""One table of all published scores: each has our cell, a command that makes it, or says that there is none."""

from __future__ import annotations

import shlex
from importlib import import_module
from pathlib import Path

import pytest

from agentic.agentflow.rollout import SPEC as AGENTFLOW
from benchmarks import table
from benchmarks.table import AIME_BUDGET, describe_missing, find_evaluation, list_published, place_servers
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder

MODULES = {"ruler": "benchmarks.ruler.evaluate", "aime": "benchmarks.aime.evaluate", "tau2": "benchmarks.tau2.evaluate"}


def test_every_command_is_one_that_its_evaluator_reads() -> None:
    commands = {found.command for row in list_published() if (found := find_evaluation(row)) is not None}
    assert len(commands) >= 12
    for command in commands:
        _, benchmark, *words = shlex.split(command)
        options = import_module(MODULES[benchmark]).make_parser().parse_args(words)
        assert options.model
    assert AGENTFLOW.load("published").agentflow.planner.next_step.max_tokens == AIME_BUDGET


def test_rows_without_a_protocol_or_a_model_are_told() -> None:
    lines = describe_missing(list_published(), 8, 80)
    beyond = lines[lines.index("No cell can be had for:") + 1 :]
    assert any("ToolOrchestra_Slime_Agentic_Qwen3_8B" in line for line in beyond)
    assert any("Qwen2.5-7B, YaRN" in line for line in beyond)
    assert not any("Orchestrator-8B, tau2" in line for line in beyond)


@pytest.mark.parametrize(
    ("needed", "gpus", "places"),
    [
        ({"a": 70.0, "b": 20.0}, 1, None),
        ({"a": 40.0, "b": 30.0}, 1, {"a": [0], "b": [0]}),
        ({"small": 20.0, "large": 200.0}, 4, None),
        ({"small": 20.0, "large": 200.0}, 8, {"large": [0, 1, 2, 3], "small": [4]}),
    ],
)
def test_servers_are_placed_where_they_fit(
    needed: dict[str, float], gpus: int, places: dict[str, list[int]] | None
) -> None:
    assert place_servers(needed, gpus, 80) == places


def test_what_a_folder_holds_is_no_longer_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert table.main(["--runs", str(tmp_path), "--dry-run"]) == 0
    before, *_ = capsys.readouterr().out.split()
    folder = RunFolder.create(tmp_path / "ours", {"method": "memagent", "preset": "published"})
    notes = {"protocol": "memagent recurrent"}
    folder.save_evaluation(
        EvalResult(
            "trained", "ruler-hqa", 50, 0, 4, {"official": [1.0, 1.0, 1.0, 0.0]}, [3] * 4, [7000] * 4, 1.0,
            model="BytedTsinghua-SIA/RL-MemoryAgent-7B", notes=notes,
        )
    )  # fmt: skip
    assert table.main(["--runs", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    (row,) = [line for line in text.splitlines() if line.startswith("| RL-MemAgent-7B | ruler-hqa | 50 |")]
    assert "| 75.0 (" in row
    assert f"\n{int(before) - 1} of " in text
