"""Bars are as long as what they stand for, and names are text."""

from __future__ import annotations

import re

import pytest

from core.report.bars import Bar, bar_chart, stacked_bars

WIDTHS = re.compile(r'<rect class="bar c(\d)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"')


def test_a_bar_is_as_long_as_its_score_and_its_whisker_as_its_interval() -> None:
    chart = bar_chart([Bar("trained", 0.8, 0.7, 0.9), Bar("untrained", 0.2, 0.1, 0.3, color=1)])
    (_, _, long), (_, _, short) = WIDTHS.findall(chart)
    assert float(long) == pytest.approx(4 * float(short), rel=1e-2)
    (x1, x2), (y1, y2) = re.findall(r'class="whisker" x1="([\d.]+)" x2="([\d.]+)"', chart)
    assert float(x2) - float(x1) == pytest.approx(float(y2) - float(y1), abs=0.2)
    assert ">80.0</text>" in chart
    assert bar_chart([]) == ""


def test_stacked_shares_fill_the_row_and_keep_the_colour_of_their_kind() -> None:
    rows = [("before", {"search": 3.0, "expert": 1.0}), ("after", {"expert": 2.0}), ("none", {"search": 0.0})]
    chart = stacked_bars(rows)
    boxes = [(int(color), float(left), float(width)) for color, left, width in WIDTHS.findall(chart)]
    (search, x1, w1), (expert, x2, w2), (after, x3, w3) = boxes
    assert (search, expert, after) == (0, 1, 1)
    assert w1 == pytest.approx(3 * w2, rel=1e-2)
    assert x2 == pytest.approx(x1 + w1, abs=0.2)
    assert (x3, w3) == pytest.approx((x1, w1 + w2), abs=0.2)
    assert "before: search 75%" in chart
    assert stacked_bars([("none", {"search": 0.0})]) == ""


def test_hostile_names_are_text() -> None:
    hostile = '<script>alert("1")</script> and a name that is much too long'
    for chart in (bar_chart([Bar(hostile, 0.5, 0.4, 0.6)]), stacked_bars([(hostile, {hostile: 1.0})])):
        assert "<script>" not in chart
        assert "&lt;script&gt;" in chart
