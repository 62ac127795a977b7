from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import example, given
from hypothesis import strategies as st

from core.report.bars import Bar, bar_chart, stacked_bars
from core.report.charts import Series, legend, line_chart

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


def test_names_are_escaped(hostile: str) -> None:
    series = [Series(hostile, [(0, 1), (1, 2)], markers=True)]
    assert "<script>" not in line_chart(series, hostile) + legend(series)
    ElementTree.fromstring(line_chart(series, hostile))


def test_names_of_bars_are_escaped(hostile: str) -> None:
    for chart in (bar_chart([Bar(hostile, 0.5, 0.4, 0.6)]), stacked_bars([(hostile, {hostile: 1.0})])):
        assert "<script>" not in chart
