"""One table of all published scores: each has our cell, an evaluation that makes it, or says that there is none."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from agentic.agentflow.rollout import SPEC as AGENTFLOW
from benchmarks.table import command, data
from benchmarks.table.data import LENGTHS
from benchmarks.table.evaluations import (
    AIME_BUDGET,
    SEED_BUDGET,
    Evaluation,
    Places,
    find_evaluation,
    list_published,
)
from benchmarks.table.hours import CALLS, Work, estimate_work
from benchmarks.table.servers import USABLE, GpuShare, Servers, memory_needed, place_servers
from core.data.files import DataError
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder

RELEASED = (
    "RL-MemoryAgent-7B",
    "agentflow-planner-7b",
    "Orchestrator-8B",
    "MemAgent_Slime_Agentic_Qwen2.5_7B",
    "AgentFlow_Slime_Agentic_Qwen2.5_7B",
)
"""Name the released checkpoints that have published scores under a protocol that is stated."""


def list_evaluations() -> list[Evaluation]:
    found = (find_evaluation(row) for row in list_published())
    return list(dict.fromkeys(evaluation for evaluation in found if evaluation is not None))


def test_every_command_is_one_that_its_evaluator_reads() -> None:
    evaluations = list_evaluations()
    assert len(evaluations) == len({evaluation.name for evaluation in evaluations}) >= 19
    for evaluation in evaluations:
        urls = dict.fromkeys(evaluation.models, "http://127.0.0.1:1")
        benchmark, *words = evaluation.command(extra=evaluation.address(urls, stand_in=False))
        options = import_module(f"benchmarks.{benchmark}.evaluate").make_parser().parse_args(words)
        assert options.model == evaluation.model
        assert options.policy_url == "http://127.0.0.1:1"
    for preset, budget in (("published", AIME_BUDGET), ("seed", SEED_BUDGET)):
        assert AGENTFLOW.load(preset).agentflow.planner.next_step.max_tokens == budget


def test_rows_without_a_protocol_or_a_model_are_told() -> None:
    beyond = command.describe_unreachable(list_published(), Places())
    assert "ToolOrchestra_Slime_Agentic_Qwen3_8B" in beyond
    assert "Qwen2.5-7B, YaRN, ruler-hqa 50: 52.3" in beyond
    assert "Orchestrator-8B, " not in beyond


@pytest.mark.parametrize(
    ("needed", "gpus", "places"),
    [
        ({"a": 70.0, "b": 20.0}, 1, None),
        ({"a": 40.0, "b": 30.0}, 1, {"a": GpuShare((0,), 0.5), "b": GpuShare((0,), 0.75)}),
        ({"small": 23.0, "large": 200.0}, 4, None),
        (
            {"small": 20.0, "large": 200.0},
            4,
            {"large": GpuShare((0, 1, 2, 3), 0.625), "small": GpuShare((0,), 20 / 30)},
        ),
        ({"small": 20.0, "large": 200.0}, 8, {"large": GpuShare((0, 1, 2, 3), 0.625), "small": GpuShare((4,), 0.25)}),
    ],
)
def test_servers_are_placed_where_they_fit(
    needed: dict[str, float], gpus: int, places: dict[str, GpuShare] | None
) -> None:
    """A share is of the memory that is free when the server starts: b takes 30 of the 40 GB that a leaves."""
    assert place_servers(needed, gpus, 80) == places


@pytest.mark.parametrize("gpus", [1, 4, 8])
def test_a_plan_for_the_released_checkpoints_fits_or_says_why_not(gpus: int) -> None:
    servers = Servers(Path(), gpus=gpus, gigabytes=80.0)
    seen = set()
    for evaluation in list_evaluations():
        asked = evaluation.models, evaluation.cached_tokens
        places, needed = servers.place(*asked), memory_needed(*asked)
        if places is None:
            seen.add((evaluation.benchmark, evaluation.model.rpartition("/")[2]))
            enough = int(servers.explain(*asked).partition(" it needs ")[2].split()[0])
            assert enough > gpus
            assert place_servers(needed, enough, 80.0) is not None
            assert place_servers(needed, enough - 1, 80.0) is None
            continue
        used = [0.0] * gpus
        for model, place in places.items():
            for gpu in place.gpus:
                assert needed[model] / len(place.gpus) == pytest.approx(place.share * (80.0 - used[gpu]), rel=1e-9) or (
                    needed[model] / len(place.gpus) < place.share * (80.0 - used[gpu])
                )
                used[gpu] += needed[model] / len(place.gpus)
        assert max(used) <= USABLE * 80.0
    experts = {("questions", "Orchestrator-8B"), ("tau2", "Orchestrator-8B")}
    fitting = {("ruler", name) for name in RELEASED} | {("aime", name) for name in RELEASED}
    assert not (fitting & seen), "a checkpoint of 7B parameters and its frozen roles fit one GPU"
    assert (experts & seen) == {1: experts, 4: {("questions", "Orchestrator-8B")}, 8: experts & seen}[gpus]
    assert ("tau2", "Orchestrator-8B") not in seen or gpus == 1


def test_the_hours_of_a_plan_follow_from_its_calls() -> None:
    by_evaluation = command.group_rows(list_published(), Places(), command.BENCHMARKS)

    def estimate(name: str, length: int | None = None, tasks: int | None = None) -> Work:
        (found,) = [evaluation for evaluation in by_evaluation if evaluation.name == f"table-{name}"]
        rows = [row for row in by_evaluation[found] if length in (None, row.length)]
        return estimate_work(found, rows, tasks)

    # 7,000 tokens are two chunks. A memory of 1,024 tokens is read three times and written twice; then the answer.
    assert estimate("ruler-RL-MemoryAgent-7B-trained-ruler-hqa", 50) == Work(128 * 3, 128 * (7000 + 6 * 1024))
    assert estimate("ruler-RL-MemoryAgent-7B-trained-ruler-10", 16384, tasks=2) == Work(
        20 * 5, 20 * (16384 + 10 * 1024)
    )
    whole = estimate("ruler-Qwen2.5-14B-Instruct-1M-full-context-ruler-hqa-990K", 6400)
    assert whole == Work(128, 128 * (6400 * 140 + 10_000))
    assert estimate("aime-agentflow-planner-7b-agent-aime24").calls == 30 * 3 * CALLS["aime"].calls
    assert estimate("tau2-Orchestrator-8B-toolorchestra-compat-tau2").calls == 278 * CALLS["tau2"].calls
    assert estimate("questions-Orchestrator-8B-hle").calls == 2500 * CALLS["questions"].calls
    assert Work(36, 3_600_000).describe(500) == (
        "about 2.0 hours at 500 tokens a second: 36 calls, 100,000 tokens read and written in each"
    )


def save_scores(folder: RunFolder, count: int) -> None:
    """Save a cell of so many tasks; three of four are right."""
    scores = [1.0, 1.0, 1.0, 0.0] * (count // 4)
    folder.save_evaluation(
        EvalResult(
            "trained", "ruler-hqa", 50, 0, count, {"official": scores}, [3] * count, [7000] * count, 1.0,
            model="BytedTsinghua-SIA/RL-MemoryAgent-7B", notes={"protocol": "memagent recurrent"},
        )
    )  # fmt: skip


def test_what_a_folder_holds_is_no_longer_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell of four tasks is shown, and is missing yet beside a score of 128, unless no more were asked for."""

    def show(*more: str) -> tuple[str, int]:
        assert command.main(["--runs", str(tmp_path), "--dry-run", "--gpus", "1", *more]) == 0
        text = capsys.readouterr().out
        return text, int(text.partition(" published scores have none")[0].rpartition("\n")[2])

    _, before = show()
    folder = RunFolder.create(tmp_path / "ours", {"method": "memagent", "preset": "published"})
    save_scores(folder, 4)
    text, lacking = show()
    assert text.count(" tokens a second: ") == text.count(": tokentrue evaluate ") - text.count("does not fit")
    (row,) = [line for line in text.splitlines() if line.startswith("| RL-MemAgent-7B | ruler-hqa | 50 |")]
    assert "| 75.0 (" in row
    assert lacking == before
    assert "8 rows (RL-MemAgent-7B, ruler-hqa)" in text
    assert show("--tasks", "4")[1] == before - 1
    assert show("--tasks", "5")[1] == before

    save_scores(folder, 128)
    text, lacking = show()
    assert lacking == before - 1
    assert "7 rows (RL-MemAgent-7B, ruler-hqa)" in text
    assert "Comparisons of official scores in the tables: 1." in text


def test_a_server_that_does_not_start_is_a_reason_and_not_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "data" / "memagent-eval"
    files.mkdir(parents=True)
    for length in LENGTHS:
        (files / f"eval_{length}.json").write_text("[]")
    places = ["--runs", str(tmp_path / "runs"), "--data", str(tmp_path / "data"), "--only", "ruler"]
    servers = ["--gpus", "1", "--gpu-memory", "80", "--serve-python", "/bin/false"]
    assert command.main([*places, *servers]) == 1
    captured = capsys.readouterr()
    evaluations = [evaluation for evaluation in list_evaluations() if evaluation.benchmark == "ruler"]
    starts = captured.out.count("starting SGLang for")
    assert 1 < starts <= len(evaluations)
    assert captured.out.count("    the server ended before it was ready") == starts
    assert captured.err == ""
    assert (tmp_path / "runs" / "table.md").is_file()


def test_another_stand_in_gets_no_table_with_the_scores_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--runs", str(tmp_path), "--data", str(tmp_path), "--only", "ruler", "--stand-in"]
    command.link_models(tmp_path / "stand-in" / "models", tmp_path / "first", ["Qwen/Qwen3-8B"])
    command.main([*arguments, str(tmp_path / "first")])
    assert capsys.readouterr().err == ""
    assert command.main([*arguments, str(tmp_path / "second")]) == 1
    assert f"has the scores of {tmp_path / 'first'}; give another --runs" in capsys.readouterr().err


def test_essays_are_fetched_or_the_command_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    evaluation = next(each for each in list_evaluations() if each.data == ("essays",))
    places = Places(data=tmp_path)

    def fetch(name: str, out: Path) -> None:
        assert (name, out) == ("essays", tmp_path)
        raise DataError("no network")

    monkeypatch.setattr(data, "prepare", fetch)
    (line,) = data.get_data(evaluation, places, retrieval=False, hosted=False)
    assert "missing. Get it: tokentrue data download essays" in line
    assert "(no network)" in line
    (tmp_path / "essays").mkdir()
    assert "no .txt file" in data.get_data(evaluation, places, retrieval=False, hosted=False)[0]
    (tmp_path / "essays" / "a.txt").write_text("A long day.")
    assert data.get_data(evaluation, places, retrieval=False, hosted=False) == []


def test_a_link_to_a_file_that_has_gone_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = tmp_path / "cache.json"
    fetched.write_text("[]")
    monkeypatch.setattr(data, "fetch_hub_file", lambda hub, name: fetched)
    folder = tmp_path / "data" / "memagent-eval"
    folder.mkdir(parents=True)
    (folder / f"eval_{LENGTHS[0]}.json").symlink_to(tmp_path / "gone.json")
    evaluation = next(each for each in list_evaluations() if each.data == ("memagent-eval",))
    assert data.get_data(evaluation, Places(data=folder.parent), retrieval=False, hosted=False) == []
    assert all((folder / f"eval_{length}.json").resolve() == fetched for length in LENGTHS)
