"""Tables of scores, charts, and the command that writes them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.ruler.generate import parse_length
from core.report.charts import Series, line_chart
from core.report.stats import wilson
from core.report.summary import build_summary
from core.report.table import (
    PublishedScore,
    format_change,
    format_length,
    list_notes,
    markdown,
    means_table,
    published_table,
    section_tables,
    split_table,
)
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder
from scripts.report import main


def cell(mean: float) -> dict:
    return {"mean": mean, "ci95": [mean - 0.1, mean + 0.05], "n": 10}


def test_a_published_score_stands_beside_ours_of_the_same_model_under_the_same_protocol() -> None:
    ours = {"official": cell(0.9), "strict": cell(0.5), "published_as": "M-14B", "protocol": "recurrent"}
    ours["tasks"] = 10
    sections = {"niah": {"variants": {"trained": {"7000": ours}}, "changes": {}}}
    shared = {"protocol": "recurrent", "model": "M-14B"}
    rows = [
        PublishedScore("M, 14B", "niah", 7000, 0.95, "Table 3", **shared),
        PublishedScore("M, 14B", "niah", 7000, 0.45, "Table 3", metric="strict", **shared),
        PublishedScore("M, 14B", "niah", 14000, 0.95, "Table 3", **shared),
        PublishedScore("M, 14B", "hotpotqa", 7000, 0.95, "Table 2", **shared),
        PublishedScore("M, 7B", "niah", 7000, 0.95, "Table 3", model="M-7B", protocol="recurrent"),
        PublishedScore("M, 14B", "niah", 7000, 0.95, "Table 3", model="M-14B", protocol="boxed"),
        PublishedScore("M-14B", "niah", 7000, 0.95, "Table 3"),
    ]
    header, *table = published_table(rows, sections)
    column = header.index("difference")
    assert [row[column] for row in table] == ["-5.0", "+5.0", "–", "–", "–", "–", "–"]
    assert table[0][header.index("ours")] == "90.0 (80.0 to 95.0)"
    assert all(len(row) == len(header) for row in table)


def test_a_published_score_has_an_interval_where_its_tasks_are_counted() -> None:
    ours = {"official": {"mean": 0.5, "ci95": [0.4, 0.6], "n": 300}, "published_as": "M", "protocol": None}
    ours["tasks"] = 100  # with three seeds
    sections = {"niah": {"variants": {"trained": {"0": ours}}, "changes": {}}}
    header, row = published_table([PublishedScore("M", "niah", 0, 0.75, "Table 3", n=128)], sections)
    low, high = wilson(96, 128)
    assert row[header.index("published")] == f"75.0 ({100 * low:.1f} to {100 * high:.1f})"
    assert [text for name, text in zip(header, row, strict=True) if name == "n"] == ["128", "100"]
    below, above = -0.25 - math.hypot(0.1, high - 0.75), -0.25 + math.hypot(0.1, 0.75 - low)
    assert row[header.index("difference")] == f"-25.0 ({100 * below:+.1f} to {100 * above:+.1f})"


def test_notes_tell_training_from_sampling_seeds_and_count_the_comparisons() -> None:
    def seeds(models: list[str]) -> dict:
        return {"0": {"seeds": [0, 1], "models": models, "published_as": "M", "protocol": None, "official": cell(0.5)}}

    variants = {"trained": seeds(["step-1", "step-2"]), "untrained": seeds(["start"])}
    sections = {"dev": {"variants": variants, "changes": {"untrained": {"0": {}}}}}
    training, sampling, comparisons = list_notes(sections, [PublishedScore("M", "dev", 0, 0.5, "Table 1")])
    assert training == "Each seed of trained is a training run of its own."
    assert sampling.startswith("The seeds of untrained sample one model again")
    assert comparisons.startswith("Comparisons of official scores in the tables: 2. ")
    assert list_notes({}) == []


def test_a_length_is_written_as_it_is_asked_for() -> None:
    """500K is 512,000 tokens, and 512K 524,288; a document count such as 6,400 is no multiple."""
    for text in ("448", "7K", "7.5K", "128K", "500K", "512K", "1M", "3.5M"):
        assert format_length(parse_length(text)) == text
    assert [format_length(length) for length in (50, 6400, 7000)] == ["50", "6,400", "7,000"]


def test_an_unknown_field_of_a_published_row_is_named() -> None:
    with pytest.raises(ValueError, match="scroe"):
        PublishedScore(**{"name": "x", "scroe": 1})


def test_markdown_stays_a_table_whatever_the_text(hostile: str) -> None:
    lines = markdown(["a", "b"], [hostile, "x\ny"]).splitlines()
    assert len(lines) == 3
    assert lines[2].replace("\\|", "").count("|") == 3


def heldout_result(variant: str, scores: list[int], calls: list[tuple[int, int]], **fields: object) -> EvalResult:
    """Return a result of four tasks, two of each kind; `calls` counts search and expert-1 for each task."""
    search, expert = [a for a, _ in calls], [b for _, b in calls]
    measures = {"cost": [10.0 * a + b for a, b in calls], "calls_search": search, "calls_expert-1": expert}
    fields |= {"measures": measures, "labels": {"kind": ["fact", "fact", "sum", "sum"]}}
    return EvalResult(variant, "dev", 0, 0, 4, {"official": scores}, [3] * 4, [0] * 4, 1.0, **fields)  # type: ignore[arg-type]


@pytest.fixture
def flat(empty: RunFolder) -> RunFolder:
    """Return a run with data without lengths."""
    empty.save_evaluation(heldout_result("untrained", [1, 0, 0, 0], [(1, 1)] * 4))
    empty.save_evaluation(heldout_result("trained", [1, 1, 1, 0], [(2, 0), (2, 0), (0, 1), (0, 4)]))
    empty.save_evaluation(heldout_result("always", [0, 0, 1, 1], [(0, 0)] * 4, failures={"timeout": 1}))
    return empty


def test_data_without_lengths_has_before_after_and_change_side_by_side(flat: RunFolder) -> None:
    summary = build_summary(flat)
    header, *rows = means_table(summary)
    assert header == ["", "untrained", "trained", "change", "always"]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["official score"][0].startswith("25.0 (")
    assert by_name["official score"][2] == format_change(summary["changes"]["untrained"]["0"]["official"], 100, "+.1f")
    assert by_name["official score"][2].startswith("+50.0 (")
    assert by_name["cost"][2].startswith("+0.25 (-")
    assert [text for i, text in enumerate(by_name["cost"]) if i != 2] == ["11", "11.2", "0"]
    assert by_name["calls search"][2].startswith("+0 (-1 to +1")
    assert by_name["turns"] == ["3", "3", "+0 (+0 to +0)", "3"]
    assert by_name["failures"] == ["0", "0", "", "1 timeout"]
    assert all(len(row) == len(header) for row in rows)


def test_shares_of_the_calls_are_split_by_label(flat: RunFolder) -> None:
    header, *rows = split_table(build_summary(flat)["variants"], "kind")
    assert header == ["kind", "variant", "tasks", "official", "search", "expert-1"]
    shares = {(row[0], row[1]): row[4:] for row in rows}
    assert shares["all", "trained"] == ["44", "56"]
    assert (shares["fact", "trained"], shares["sum", "trained"]) == (["100", "0"], ["0", "100"])
    assert (shares["sum", "untrained"], shares["sum", "always"]) == (["50", "50"], ["–", "–"])
    assert [row[:3] for row in rows[3:6]] == [["fact", variant, "2"] for variant in ("untrained", "trained", "always")]


def test_a_split_counts_tasks_once_and_a_value_that_is_named_all_is_one_of_them(empty: RunFolder) -> None:
    result = heldout_result("trained", [1, 0, 0, 0], [(1, 1)] * 4)
    result = replace(result, labels={"kind": ["all", "sum", "sum", "sum"]}, notes={"task_ids": ["a", "b", "c", "d"]})
    for seed in range(3):
        empty.save_evaluation(replace(result, seed=seed))
    rows = [row[:4] for row in split_table(build_summary(empty)["variants"], "kind")[1:]]
    found = [(row[0], row[2], row[3].partition(" ")[0]) for row in rows]
    assert found == [("all", "4", "25.0"), ("all", "1", "100.0"), ("sum", "3", "0.0")]


def test_titles_are_words_and_scores_that_are_the_same_have_one_table(empty: RunFolder) -> None:
    for variant, scores in (("trained", [1.0, 0.0]), ("untrained", [0.0, 0.0])):
        name = "niah+bare-question=True+num-k=4"
        for length in (448, 896):
            every = {"official": scores, "strict": scores, "other": [0.0, 1.0]}
            empty.save_evaluation(EvalResult(variant, name, length, 0, 2, every, [1, 1], [length] * 2, 1.0))
    summary = build_summary(empty)
    titles = [title for title, _ in section_tables(summary["data"], summary)]
    assert titles == [
        "niah (bare question, num k 4) · official, strict score, mean and 95% CI in %",
        "niah (bare question, num k 4) · other score, mean and 95% CI in %",
        "niah (bare question, num k 4) · trained minus each other variant, in points, paired by task, 95% CI",
        "niah (bare question, num k 4) · cost",
    ]


number = st.floats(-1e6, 1e6)


@given(points=st.lists(st.tuples(number, number), min_size=1, max_size=30))
@example(points=[(0.0, 5e-324)])
@example(points=[(0.0, 0.0), (5e-324, 5e-324)])
@example(points=[(1e6, 1.0), (1e6 + 1e-9, 1.0 + 1e-15)])
def test_any_points_make_a_well_formed_chart_inside_its_frame(points: list[tuple[float, float]]) -> None:
    root = ElementTree.fromstring(line_chart([Series("a", sorted(points), markers=True)], "step"))
    width, height = (float(side) for side in root.attrib["viewBox"].split()[2:])
    for circle in root.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
        assert 0 <= float(circle.attrib["cy"]) <= height


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
    assert "metrics.jsonl: no `stage` or no `step`" in capsys.readouterr().err
