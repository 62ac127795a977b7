"""This module draws line charts and bars as inline SVG. Colours are CSS variables, so they follow the page's theme."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

Point = tuple[float, float]
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 50, 16, 14, 40
MAX_POINTS = 400
"""A longer line is averaged down to about this many points."""

TINY = 1e-100
"""A range below it would round to nothing when it is divided."""

HALF, WHOLE = 470, 960
"""Sets the width of a chart that has another beside it, and of one that is alone, in pixels."""
ROW, THICK = 26, 16
"""Sets the height of a row and of its bar, in pixels."""
NAMES = 170
"""Sets the width of the names."""
MAX_NAME = 26
COLORS = 8


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a chart; `color` indexes the palette, a `faint` line is background, `band` holds (x, low, high)."""

    name: str
    points: Sequence[Point]
    color: int = 0
    faint: bool = False
    band: Sequence[tuple[float, float, float]] = ()
    markers: bool = False


def line_chart(
    series: Sequence[Series],
    x_label: str,
    *,
    y_range: tuple[float, float] | None = None,
    log_x: bool = False,
    x_ticks: Sequence[tuple[float, str]] | None = None,
    y_text: Callable[[float], str] | None = None,
    width: int = 720,
    height: int = 300,
) -> str:
    """Return an `<svg>` of all series, or an empty string when none has a point. `log_x` needs positive x."""
    thinned = [thin(line.points) for line in series]
    xs = [x for points in thinned for x, _ in points]
    if not xs:
        return ""
    ys = [y for points in thinned for _, y in points] + [y for line in series for _, *ends in line.band for y in ends]
    low, high = y_range or _pad_range(min(ys), max(ys))
    y_ticks = [tick for tick in choose_ticks(low, high) if low - 1e-12 <= tick <= high + 1e-12]
    scale_x: Callable[[float], float] = math.log if log_x else float
    first, last = scale_x(min(xs)), scale_x(max(xs))
    inner_width, inner_height = width - MARGIN_LEFT - MARGIN_RIGHT, height - MARGIN_TOP - MARGIN_BOTTOM
    show = y_text or format_tick

    def to_pixels(x: float, y: float) -> tuple[float, float]:
        share = (scale_x(x) - first) / (last - first) if last > first else 0.5
        return MARGIN_LEFT + share * inner_width, MARGIN_TOP + (high - y) / (high - low) * inner_height

    def path(points: Sequence[Point]) -> str:
        return " ".join("{:.1f},{:.1f}".format(*to_pixels(x, min(max(y, low), high))) for x, y in points)

    label = escape("Line chart: " + ", ".join(line.name for line in series if not line.faint))
    parts = [f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{label}">']
    for tick in y_ticks:
        y = to_pixels(min(xs), tick)[1]
        parts.append(f'<line class="grid" x1="{MARGIN_LEFT}" x2="{width - MARGIN_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{MARGIN_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{show(tick)}</text>')
    plain = [(tick, format_tick(tick)) for tick in choose_ticks(min(xs), max(xs), 6) if min(xs) <= tick <= max(xs)]
    for tick, text in x_ticks or plain:
        x, bottom = to_pixels(tick, low)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{bottom:.1f}" y2="{bottom + 4:.1f}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 17:.1f}" text-anchor="middle">{escape(text)}</text>')
    bottom = height - MARGIN_BOTTOM
    parts.append(f'<line class="axis" x1="{MARGIN_LEFT}" x2="{width - MARGIN_RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    parts.append(
        f'<text class="tick" x="{MARGIN_LEFT + inner_width / 2:.0f}" y="{height - 5}" text-anchor="middle">'
        f"{escape(x_label)}</text>"
    )
    for line in series:
        if len(line.band) > 1:
            edge = [(x, upper) for x, _, upper in line.band] + [(x, lower) for x, lower, _ in reversed(line.band)]
            parts.append(f'<polygon class="band c{line.color}" points="{path(edge)}"/>')
    for line, points in zip(series, thinned, strict=True):
        style = "faint" if line.faint else "line"
        if len(points) > 1:
            parts.append(f'<polyline class="{style} c{line.color}" points="{path(points)}"/>')
        if line.markers or len(points) == 1:
            for x, y in points:
                left, top = to_pixels(x, min(max(y, low), high))
                hint = escape(f"{line.name}: {show(y)} at {format_tick(x)}")
                circle = f'<circle class="dot c{line.color}" cx="{left:.1f}" cy="{top:.1f}" r="3.5">'
                parts.append(f"{circle}<title>{hint}</title></circle>")
    return "".join(parts) + "</svg>"


def legend(series: Sequence[Series]) -> str:
    """Return the names of the lines that are not background."""
    shown = [line for line in series if not line.faint]
    entries = [f'<span><i class="swatch c{line.color}"></i>{escape(line.name)}</span>' for line in shown]
    return f'<div class="legend">{"".join(entries)}</div>' if entries else ""


def seed_series(by_seed: Mapping[int, Sequence[Point]], name: str, color: int = 0, window: int = 1) -> list[Series]:
    """Return one faint line per seed and a line of their mean.

    The mean covers the seeds that have a value at the step, and `window` neighbouring steps.
    """
    faint = len(by_seed) > 1 or window > 1
    lines = [Series(f"{name}, seed {seed}", points, color, faint=True) for seed, points in by_seed.items() if faint]
    at_step: dict[float, list[float]] = {}
    for points in by_seed.values():
        for x, y in points:
            at_step.setdefault(x, []).append(y)
    mean = [(x, sum(values) / len(values)) for x, values in sorted(at_step.items())]
    return [*lines, Series(name, smooth(mean, window), color)] if mean else []


def smooth(points: Sequence[Point], window: int) -> list[Point]:
    """Return the centred running mean; the window is narrower at the ends."""
    half = window // 2
    values = [y for _, y in points]
    smoothed = []
    for index, (x, _) in enumerate(points):
        reach = min(half, index, len(points) - 1 - index)
        near = values[index - reach : index + reach + 1]
        smoothed.append((x, sum(near) / len(near)))
    return smoothed


def thin(points: Sequence[Point]) -> list[Point]:
    """Reduce a line to about MAX_POINTS points, each the mean of its neighbours."""
    size = math.ceil(len(points) / MAX_POINTS)
    if size <= 1:
        return list(points)
    chunks = [points[start : start + size] for start in range(0, len(points), size)]
    return [(chunk[0][0], sum(y for _, y in chunk) / len(chunk)) for chunk in chunks]


def choose_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Return about `count` multiples of 1, 2 or 5 times a power of ten that span low to high."""
    if _is_flat(low, high):
        return [low]
    raw = (high - low) / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= 0.8 * raw)
    return [index * step for index in range(math.floor(low / step), math.ceil(high / step) + 1)]


def format_tick(value: float) -> str:
    """Format 1500 as 1,500, 0.25 as 0.25 and 0.00002 as 2e-05."""
    if value == 0:
        return "0"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _is_flat(low: float, high: float) -> bool:
    """Return whether a range is too narrow to be divided."""
    return high - low <= max(TINY, 1e-12 * max(abs(low), abs(high)))


def _pad_range(low: float, high: float) -> tuple[float, float]:
    """Widen a range of y a little; include 0 when it is near."""
    if _is_flat(low, high):
        margin = 0.5 * (max(abs(low), abs(high)) if abs(low) > TINY else 1.0)
        return low - margin, high + margin
    margin = 0.06 * (high - low)
    return 0.0 if 0 <= low < 0.5 * high else low - margin, high + margin


def bar_chart(scores: Mapping[str, Mapping[str, Any]]) -> str:
    """Return an `<svg>` of bars from 0 to the `mean` of each score, with its interval `ci95`; all are shares of 1."""
    room = HALF - NAMES - 56
    parts = [_begin(HALF, len(scores), "Bars: " + ", ".join(scores))]
    for place, (name, score) in enumerate(scores.items()):
        top, middle = ROW * place + (ROW - THICK) / 2, ROW * (place + 0.5)
        shares = score["mean"], *score["ci95"]
        value, low, high = (NAMES + room * min(max(x, 0.0), 1.0) for x in shares)
        hint = "{}: {:.1f}, 95% interval {:.1f} to {:.1f}".format(name, *(100 * share for share in shares))
        parts.append(_name(name, middle))
        parts.append(_box(NAMES, top, max(value - NAMES, 1.0), place % COLORS, hint))
        parts.append(f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>')
        place_of_text = f'x="{max(value, high) + 6:.1f}" y="{middle + 4:.1f}"'
        parts.append(f'<text class="value" {place_of_text}>{100 * shares[0]:.1f}</text>')
    return "".join(parts) + "</svg>"


def stacked_bars(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Return a legend and an `<svg>` of rows, each split by what it counts; empty if no row counts anything."""
    shown = [(name, counts, total) for name, counts in rows if (total := sum(counts.values())) > 0]
    if not shown:
        return ""
    kinds = list(dict.fromkeys(kind for _, counts, _ in shown for kind, count in counts.items() if count))
    room = WHOLE - NAMES - 8
    parts = [_begin(WHOLE, len(shown), "Stacked bars: " + ", ".join(name for name, _, _ in shown))]
    for place, (name, counts, total) in enumerate(shown):
        top, left = ROW * place + (ROW - THICK) / 2, float(NAMES)
        parts.append(_name(name, ROW * (place + 0.5)))
        for color, kind in enumerate(kinds):
            share = counts.get(kind, 0.0) / total
            if share:
                parts.append(_box(left, top, room * share, color % COLORS, f"{name}: {kind} {100 * share:.0f}%"))
                left += room * share
    names = legend([Series(kind, (), color % COLORS) for color, kind in enumerate(kinds)])
    return f"{names}{''.join(parts)}</svg>"


def _begin(width: int, rows: int, label: str) -> str:
    return f'<svg class="chart bars" viewBox="0 0 {width} {ROW * rows}" role="img" aria-label="{escape(label)}">'


def _name(name: str, middle: float) -> str:
    short = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    title = f"<title>{escape(name)}</title>" if short != name else ""
    return f'<text class="tick" x="{NAMES - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(short)}{title}</text>'


def _box(left: float, top: float, width: float, color: int, hint: str) -> str:
    shape = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{THICK}"'
    return f'<rect class="bar c{color}" {shape}><title>{escape(hint)}</title></rect>'
