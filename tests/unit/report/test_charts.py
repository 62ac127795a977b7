from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from core.report.charts import MAX_POINTS, Series, choose_ticks, legend, line_chart, seed_series, smooth, thin

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


def test_a_log_axis_spaces_doublings_evenly_and_higher_values_are_higher_up() -> None:
    chart = line_chart([Series("a", [(480, 0.2), (960, 0.8), (1920, 0.8)], markers=True)], "tokens", log_x=True)
    left, middle, right = (float(x) for x in re.findall(r'cx="([\d.]+)"', chart))
    assert middle - left == pytest.approx(right - middle, abs=0.2)
    low, high, _ = (float(y) for y in re.findall(r'cy="([\d.]+)"', chart))
    assert high < low


def test_names_are_escaped(hostile: str) -> None:
    series = [Series(hostile, [(0, 1), (1, 2)], markers=True)]
    assert "<script>" not in line_chart(series, hostile) + legend(series)
    ElementTree.fromstring(line_chart(series, hostile))


@given(low=number, span=st.floats(1e-6, 1e6))
def test_ticks_span_the_range(low: float, span: float) -> None:
    ticks = choose_ticks(low, low + span)
    assert 3 <= len(ticks) <= 10
    assert ticks[0] <= low + 1e-9 * (abs(low) + span)
    assert ticks[-1] >= low + span - 1e-9 * abs(low + span)


def test_the_mean_line_covers_the_seeds_that_have_a_value() -> None:
    lines = seed_series({0: [(1, 0.0), (2, 1.0)], 1: [(1, 1.0)]}, "reward")
    assert [line.faint for line in lines] == [True, True, False]
    assert lines[-1].points == [(1, 0.5), (2, 1.0)]
    assert seed_series({}, "reward") == []
    assert smooth([(0, 0.0), (1, 3.0), (2, 0.0)], 3) == [(0, 0.0), (1, 1.0), (2, 0.0)]


def test_a_long_line_is_thinned_without_changing_its_mean() -> None:
    line = thin([(float(x), float(x % 2)) for x in range(10 * MAX_POINTS)])
    assert len(line) == MAX_POINTS
    assert sum(y for _, y in line) / len(line) == pytest.approx(0.5)
