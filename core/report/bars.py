"""This module draws horizontal bars as inline SVG: scores with their intervals, and shares that add up to a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

ROW, THICK = 26, 16
"""Sets the height of a row and of its bar, in pixels."""
NAMES = 170
"""Sets the width of the names."""
MAX_NAME = 26
COLORS = 8


class Bar(NamedTuple):
    """One bar from 0 to `value`, with the interval [low, high]; all are shares of 1."""

    name: str
    value: float
    low: float
    high: float
    color: int = 0


def bar_chart(bars: Sequence[Bar], width: int = 470) -> str:
    """Return an `<svg>` of bars, or an empty string without any."""
    if not bars:
        return ""
    room = width - NAMES - 56
    parts = [_begin(width, len(bars), "Bars: " + ", ".join(bar.name for bar in bars))]
    for place, bar in enumerate(bars):
        top, middle = ROW * place + (ROW - THICK) / 2, ROW * (place + 0.5)
        value, low, high = (NAMES + room * min(max(x, 0.0), 1.0) for x in (bar.value, bar.low, bar.high))
        hint = f"{bar.name}: {100 * bar.value:.1f}, 95% interval {100 * bar.low:.1f} to {100 * bar.high:.1f}"
        parts.append(_name(bar.name, middle))
        parts.append(_box(NAMES, top, max(value - NAMES, 1.0), bar.color, hint))
        parts.append(f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{middle:.1f}" y2="{middle:.1f}"/>')
        place_of_text = f'x="{max(value, high) + 6:.1f}" y="{middle + 4:.1f}"'
        parts.append(f'<text class="value" {place_of_text}>{100 * bar.value:.1f}</text>')
    return "".join(parts) + "</svg>"


def stacked_bars(rows: Sequence[tuple[str, Mapping[str, float]]], width: int = 960) -> str:
    """Return a legend and an `<svg>` of rows, each split by what it counts; empty if no row counts anything."""
    shown = [(name, counts, total) for name, counts in rows if (total := sum(counts.values())) > 0]
    if not shown:
        return ""
    kinds = list(dict.fromkeys(kind for _, counts, _ in shown for kind, count in counts.items() if count))
    room = width - NAMES - 8
    parts = [_begin(width, len(shown), "Stacked bars: " + ", ".join(name for name, _, _ in shown))]
    for place, (name, counts, total) in enumerate(shown):
        top, left = ROW * place + (ROW - THICK) / 2, float(NAMES)
        parts.append(_name(name, ROW * (place + 0.5)))
        for color, kind in enumerate(kinds):
            share = counts.get(kind, 0.0) / total
            if share:
                parts.append(_box(left, top, room * share, color % COLORS, f"{name}: {kind} {100 * share:.0f}%"))
                left += room * share
    entries = (f'<span><i class="swatch c{i % COLORS}"></i>{escape(kind)}</span>' for i, kind in enumerate(kinds))
    return f'<div class="legend">{"".join(entries)}</div>{"".join(parts)}</svg>'


def _begin(width: int, rows: int, label: str) -> str:
    return f'<svg class="chart bars" viewBox="0 0 {width} {ROW * rows}" role="img" aria-label="{escape(label)}">'


def _name(name: str, middle: float) -> str:
    short = name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 1]}…"
    title = f"<title>{escape(name)}</title>" if short != name else ""
    return f'<text class="tick" x="{NAMES - 8}" y="{middle + 4:.1f}" text-anchor="end">{escape(short)}{title}</text>'


def _box(left: float, top: float, width: float, color: int, hint: str) -> str:
    shape = f'x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{THICK}"'
    return f'<rect class="bar c{color}" {shape}><title>{escape(hint)}</title></rect>'
