from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import example, given
from hypothesis import strategies as st

from core.report.charts import Series, line_chart

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
