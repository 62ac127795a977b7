from __future__ import annotations

from pathlib import Path

import pytest

from core.report.summary import build_summary
from core.report.table import (
    Published,
    fit_text,
    flat_table,
    markdown,
    published_table,
    render_table,
    score_text,
    short_length,
    split_table,
)
from core.runs.evaluation import EvalResult
from core.runs.run_folder import RunFolder


def cell(mean: float) -> dict:
    return {"mean": mean, "ci95": [mean - 0.1, mean + 0.05], "n": 10}


@pytest.mark.parametrize(
    ("length", "text"),
    [(0, "0"), (480, "480"), (1000, "1K"), (7000, "7K"), (7168, "7K"), (7680, "7.5K"), (458752, "448K"),
     (128000, "128K"), (896000, "896K"), (1048576, "1M"), (3_500_000, "3500K")],
)  # fmt: skip
def test_short_length(length: int, text: str) -> None:
    assert short_length(length) == text


def test_texts() -> None:
    assert score_text(cell(0.9)) == "90.0 (80.0 to 95.0)"
    assert score_text(None) == "–"
    assert fit_text({"per_turn": 0.99412, "zeros": 2}) == "0.9941 (2 at 0)"
    assert fit_text({"per_turn": None, "zeros": 2}) == "–"


def test_published_is_set_against_the_same_cell_of_ours() -> None:
    sections = {"niah": {"variants": {"trained": {"7000": {"official": cell(0.9), "strict": cell(0.5)}}}}}
    rows = [
        Published("M-14B", "niah", 7000, 0.95, "Table 3"),
        Published("M-14B", "niah", 7000, 0.45, "Table 3", metric="strict"),
        Published("M-14B", "niah", 14000, 0.95, "Table 3"),
        Published("M-14B", "hotpotqa", 7000, 0.95, "Table 2"),
    ]
    header, *table = published_table(rows, sections)
    column = header.index("difference")
    assert [row[column] for row in table] == ["-5.0", "+5.0", "–", "–"]
    assert table[0][header.index("ours")] == "90.0 (80.0 to 95.0)"
    assert all(len(row) == len(header) for row in table)


def test_an_unknown_field_of_a_published_row_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown field.*scroe"):
        Published.from_json({"name": "x", "scroe": 1})


def test_markdown_stays_a_table_whatever_the_text(hostile: str) -> None:
    lines = markdown(["a", "b"], [hostile, "x\ny"]).splitlines()
    assert len(lines) == 3
    assert lines[2].replace("\\|", "").count("|") == 3


def test_the_whole_table(run: RunFolder) -> None:
    published = [Published.from_json(row) for row in run.published["rows"]]
    text = render_table(build_summary(run), published)
    for part in ("official score", "strict score", "| trained |", "RL-MemAgent-14B", "- chunks of 96 tokens", "cost"):
        assert part in text
    assert "| variant | 480 | 1.9K | 7.5K | 30K | 120K | r per turn |" in text


def held_out(variant: str, seed: int, right: list[int], calls: list[tuple[int, int]], **more: object) -> EvalResult:
    """Four tasks, two of each kind; `calls` are those of search and of expert-1 for each task."""
    measures = {"cost": [10.0 * a + b for a, b in calls], "calls_search": [a for a, _ in calls]}
    measures["calls_expert-1"] = [b for _, b in calls]
    labels = {"kind": ["fact", "fact", "sum", "sum"]}
    fields = {"measures": measures, "labels": labels, **more}
    return EvalResult(variant, "dev", 0, seed, 4, {"official": right}, [3] * 4, [0] * 4, 1.0, **fields)  # type: ignore[arg-type]


@pytest.fixture
def flat(tmp_path: Path, config: dict) -> RunFolder:
    folder = RunFolder.create(tmp_path / "run", config)
    folder.save_evaluation(held_out("untrained", 0, [1, 0, 0, 0], [(1, 1)] * 4))
    folder.save_evaluation(held_out("trained", 0, [1, 1, 1, 0], [(2, 0), (2, 0), (0, 1), (0, 4)]))
    folder.save_evaluation(held_out("always", 0, [0, 0, 1, 1], [(0, 0)] * 4, failures={"timeout": 1}))
    return folder


def test_data_without_lengths_has_before_after_and_change_side_by_side(flat: RunFolder) -> None:
    header, *rows = flat_table(build_summary(flat)["variants"])
    assert header == ["", "untrained", "trained", "change", "always"]
    by_name = {row[0]: row[1:] for row in rows}
    assert by_name["official score"][0].startswith("25.0 (")
    assert by_name["official score"][2] == "+50.0"
    assert by_name["cost"] == ["11", "11.2", "+0.25", "0"]
    assert by_name["calls search"] == ["1", "1", "+0", "0"]
    assert by_name["turns"] == ["3", "3", "+0", "3"]
    assert by_name["failures"] == ["0", "0", "", "1 timeout"]
    assert all(len(row) == len(header) for row in rows)


def test_without_both_sides_there_is_no_change(flat: RunFolder) -> None:
    variants = build_summary(flat)["variants"]
    header, *rows = flat_table({"trained": variants["trained"], "always": variants["always"]})
    assert header == ["", "trained", "always"]
    assert all(len(row) == 3 for row in rows)


def test_calls_are_shared_out_by_label_and_arm(flat: RunFolder) -> None:
    header, *rows = split_table(build_summary(flat)["variants"], "kind")
    assert header == ["kind", "variant", "tasks", "official", "search", "expert-1"]
    shares = {(row[0], row[1]): row[4:] for row in rows}
    assert shares["all", "trained"] == ["44", "56"]
    assert (shares["fact", "trained"], shares["sum", "trained"]) == (["100", "0"], ["0", "100"])
    assert (shares["sum", "untrained"], shares["sum", "always"]) == (["50", "50"], ["–", "–"])
    assert [row[:3] for row in rows[3:6]] == [["fact", variant, "2"] for variant in ("untrained", "trained", "always")]


def test_the_table_of_data_without_lengths(flat: RunFolder) -> None:
    published = [Published("M-7B", "dev", 0, 0.9, "Table 1")]
    text = render_table(build_summary(flat), published)
    assert "| sum | trained | 2 |" in text
    assert "| M-7B | dev | – | official | 90.0 | 75.0" in text
    assert "r per turn" not in text
