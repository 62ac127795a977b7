from __future__ import annotations

import pytest

from core.report.run_folder import RunFolder
from core.report.summary import build_summary
from core.report.table import Published, fit_text, markdown, published_table, render_table, score_text, short_length


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
    sections = {"niah": {"arms": {"trained": {"7000": {"official": cell(0.9), "strict": cell(0.5)}}}}}
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
    assert "| arm | 480 | 1.9K | 7.5K | 30K | 120K | r per turn |" in text
