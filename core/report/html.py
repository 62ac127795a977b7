"""This module renders report.html: one file with inline style and inline SVG, without scripts or anything to load."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from core.report.charts import (
    COLORS,
    HALF,
    WHOLE,
    Point,
    Series,
    bar_chart,
    legend,
    line_chart,
    seed_series,
    stacked_bars,
)
from core.report.table import (
    COMPARED,
    PublishedScore,
    Table,
    Variants,
    data_sections,
    describe_kept,
    describe_signs,
    format_data,
    format_failures,
    format_length,
    format_score,
    has_lengths,
    list_cells,
    list_lengths,
    list_notes,
    order_variants,
    published_table,
    section_tables,
)
from core.runs.files import Record
from core.runs.run_folder import VIEW_FILE, RunFolder
from core.types import CALLS, COUNTED_METRICS

HIDDEN_METRICS = {"stage", "step", "seed", "seconds", "time", "n", "length"}
"""These fields of a metrics record get no chart."""

MAX_SMALL_CHARTS = 12
MAX_ROWS = 12
"""Folds longer tables."""

Curves = Mapping[str, Mapping[int, Sequence[Point]]]
"""Maps a metric to its (step, value) points by seed."""


class SafeHtml(str):
    """Text that is HTML already; it is not escaped again."""


def read_style() -> str:
    return Path(__file__).with_name("style.css").read_text(encoding="utf-8")


def begin_page(title: str, style: str = "", policy: str = "") -> str:
    """Begin a page of a run, which loads nothing. `title` is HTML; `policy` allows more than the style sheets."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta http-equiv="Content-Security-Policy" '
        f"content=\"default-src 'none'; style-src 'unsafe-inline'{policy}\">"
        f"<title>{title}</title><style>{read_style()}{style}</style></head><body>"
    )


def render_page(folder: RunFolder, summary: Mapping[str, Any], published: Sequence[PublishedScore]) -> str:
    """Render the whole page; text that a model or a user wrote is escaped."""
    metrics = {seed: folder.read_metrics(seed) for seed in folder.seeds}
    sections = {
        "Evaluation": _render_evaluation(summary, published),
        "Training": _render_training(_read_curves(metrics, "train"), _read_curves(metrics, "eval")),
        "Warm start": _render_small_charts(_read_curves(metrics, "warm_start"), "step of the warm start"),
        "Failures and other events": _render_events(summary),
        "Published / ours": _render_published(summary, published),
        "Rollouts": _render_rollouts(folder),
        "Recipe and versions": _render_fold("config.yaml", folder.config)
        + _render_fold("versions.json", folder.versions),
    }
    links, body = "", ""
    for title, content in sections.items():
        if content:
            anchor = re.sub(r"[^a-z0-9]", "-", title.lower())
            links += f'<a href="#{anchor}">{title}</a>'
            body += f'<section id="{anchor}"><h2>{title}</h2>{content}</section>'
    method, preset = escape(str(summary["method"] or "run")), escape(str(summary["preset"] or "–"))
    versions = folder.versions
    machine = ", ".join(versions.get("gpu") or []) or f"{versions.get('cpus', '?')} CPU cores"
    commit = (versions.get("git") or "unknown")[:10]
    made_with = escape(f"{machine} · torch {versions.get('torch') or '?'} · commit {commit}")
    return (
        f"{begin_page(f'{method} · {preset}')}<main>"
        f'<header class="top"><p class="kicker">run report</p><h1>{method}</h1>'
        f'<p class="meta">preset <b>{preset}</b> · seeds <b>{", ".join(map(str, summary["seeds"])) or "–"}</b> · '
        f"{made_with}</p>{_render_seconds(summary)}<nav>{links}</nav></header>"
        f"{_render_overview(summary, metrics)}{body}</main></body></html>\n"
    )


def _render_overview(summary: Mapping[str, Any], metrics: Mapping[int, Sequence[Record]]) -> str:
    """Render what a reader asks first: did it learn, against which baselines, and where did its calls go."""
    train, evaluation = _read_curves(metrics, "train"), _read_curves(metrics, "eval")
    rewards = {"training": train.get("reward", {}), "held-out tasks": evaluation.get("reward", {})}
    lines: list[Series] = []
    for color, (name, by_seed) in enumerate(rewards.items()):
        steps = max((len(points) for points in by_seed.values()), default=0)
        lines += seed_series(by_seed, name, color, max(1, steps // 25) | 1)
    mean = [line for line in lines if not line.faint]
    lengths = Counter(length for cells in summary["variants"].values() for length in cells)
    # Without an evaluation this chart is alone, as wide as the page.
    width, height = (HALF, 220) if lengths else (WHOLE, 300)
    learned = line_chart(mean, "training step", width=width, height=height)
    figures = _wrap_figure("Did it learn? The mean reward", legend(mean) + learned) if learned else ""
    if lengths:
        # The length that most variants have, of these the longest.
        length = max(lengths, key=lambda each: (lengths[each], int(each)))
        scores = {variant: cells[length]["score"] for variant, cells in summary["variants"].items() if length in cells}
        data = format_data(summary["data"])
        where = f"{data}, length {format_length(int(length))}" if int(length) else data
        figures += _wrap_figure(f"Against what? Scores in % on {where}", bar_chart(scores))
    routes = stacked_bars(_count_routes(summary["variants"]))
    more = _wrap_figure("Where its calls go", routes) if routes else ""
    return f'<div class="grid2 overview">{figures}</div>{more}' if figures or more else ""


def _wrap_figure(title: str, content: str) -> str:
    return f'<figure class="card"><figcaption>{escape(title)}</figcaption>{content}</figure>'


def _count_routes(variants: Variants, label: str | None = None) -> list[tuple[str, Mapping[str, float]]]:
    """Return the mean calls of tools and experts: of each variant, or by the values of a label before and after."""
    names = [variant for variant in order_variants(variants) if label is None or variant in COMPARED]
    rows: list[tuple[str, str, Mapping[str, float]]] = []
    for variant in names:
        (cell, *_) = variants[variant].values()
        parts = {"": cell} if label is None else cell["by"].get(label, {})
        for value, part in parts.items():
            calls = {k.removeprefix(CALLS): v for k, v in part["measures"].items() if k.startswith(CALLS)}
            rows.append((value, variant, calls))
    rows.sort(key=lambda row: row[0])
    return [(f"{variant} · {value}" if value else variant, calls) for value, variant, calls in rows]


def _render_seconds(summary: Mapping[str, Any]) -> str:
    parts = [f"{part.replace('_', ' ')} {value:,.0f} s" for part, value in summary["seconds"].items()]
    return f'<p class="meta">time by the clock: {escape(", ".join(parts))}</p>' if parts else ""


def _render_evaluation(summary: Mapping[str, Any], published: Sequence[PublishedScore]) -> str:
    content, sections = "", data_sections(summary)
    for data, section in sections.items():
        if has_lengths(section["variants"]):
            content += f"<h3>{escape(format_data(data))}</h3>{_render_length_chart(section['variants'])}"
        else:
            for label in dict.fromkeys(label for cell in list_cells(section["variants"]) for label in cell["by"]):
                routes = stacked_bars(_count_routes(section["variants"], label))
                content += (
                    _wrap_figure(f"{format_data(data)} · calls by {label}, before and after", routes) if routes else ""
                )
        for title, table in section_tables(data, section, show=_render_score):
            content += f"<h3>{escape(title)}</h3>{_render_table(table)}"
    note = (
        "Scores are means over seeds and tasks with their 95% interval; a failed task counts as 0. r per turn is the "
        "factor in score = a · r<sup>turns</sup>, fitted over the lengths that scored above 0. A column with the name "
        "of a tool or an expert shows its share of the calls."
    )
    more = escape(" ".join(list_notes(sections, published)))
    return f"{content}<p class='note'>{note} {more}</p>" if content else ""


def _render_length_chart(variants: Variants) -> str:
    series = _list_series(variants)
    chart = _draw_lengths(series, variants)
    return f'<figure class="card">{legend(series)}{chart}</figure>' if chart else ""


def _list_series(variants: Variants) -> list[Series]:
    """Return the scores by length of each variant, with their intervals."""
    series = []
    for index, (variant, cells) in enumerate(variants.items()):
        scores = [(float(length), cell["score"]) for length, cell in cells.items() if int(length) > 0]
        points = [(length, score["mean"]) for length, score in scores]
        band = [(length, *score["ci95"]) for length, score in scores]
        series.append(Series(variant, points, index % COLORS, band=band, markers=True))
    return series


def _draw_lengths(series: Sequence[Series], variants: Variants) -> str:
    return line_chart(
        series,
        "length (log scale)",
        y_range=(0, 1),
        log_x=True,
        x_ticks=[(float(length), format_length(length)) for length in list_lengths(variants) if length > 0],
        y_text=lambda y: f"{100 * y:.0f}%",
        width=WHOLE,
        height=340,
    )


def render_figure(summary: Mapping[str, Any]) -> str:
    """Render the scores by length of the headline's data as an SVG file; empty where they have no lengths."""
    series = _list_series(summary["variants"])
    chart = _draw_lengths(series, summary["variants"])
    names = "".join(
        f'<tspan dx="18" class="c{line.color}" fill="currentColor">●</tspan><tspan dx="5" class="tick">'
        f"{escape(line.name)}</tspan>"
        for line in series
    )
    return chart and (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 960 370" font-family="sans-serif" class="chart">'
        f'<style>{escape(read_style(), quote=False)}</style><rect width="960" height="370" fill="var(--card)"/>'
        f'<text x="32" y="20" font-size="13">{names}</text>'
        + chart.replace("<svg ", '<svg y="30" width="960" height="340" ', 1)
        + "</svg>\n"
    )


def _render_score(score: Mapping[str, Any] | None) -> str:
    mean, _, interval = format_score(score).partition(" ")
    return SafeHtml(f"<b>{mean}</b><small>{interval.strip('()')}</small>") if score else "–"


def _read_curves(metrics: Mapping[int, Sequence[Record]], stage: str) -> Curves:
    """Collect the numeric metrics of a stage, in their order of appearance."""
    curves: dict[str, dict[int, list[Point]]] = defaultdict(dict)
    for seed, records in metrics.items():
        for record in (record for record in records if record["stage"] == stage):
            for name, value in record.items():
                if isinstance(value, (int, float)) and not isinstance(value, bool) and name not in HIDDEN_METRICS:
                    curves[name].setdefault(seed, []).append((float(record["step"]), float(value)))
    return curves


def _render_training(train: Curves, evaluation: Curves) -> str:
    reward = train.get("reward", {})
    steps = max((len(points) for points in reward.values()), default=0)
    window = max(1, steps // 25) | 1  # odd, so that the mean is centred on its step
    label = "reward" if window == 1 else f"reward, mean over {window} steps"
    content = _render_figure("Training reward", seed_series(reward, label, 0, window), "training step", wide=True)
    scores = [name for name in evaluation if name.startswith(("reward", "score"))]
    series = [line for index, name in enumerate(scores) for line in seed_series(evaluation[name], name, index % COLORS)]
    content += _render_figure("Evaluation during training", series, "training step", wide=True)
    others = _render_small_charts({name: train[name] for name in train if name != "reward"}, "training step")
    return content + (f"<details><summary>Other training metrics</summary>{others}</details>" if others else "")


def _render_small_charts(curves: Curves, x_label: str) -> str:
    names = list(curves)
    charts = "".join(
        _render_figure(name, seed_series(curves[name], name), x_label) for name in names[:MAX_SMALL_CHARTS]
    )
    more = len(names) - MAX_SMALL_CHARTS
    note = f'<p class="note">{more} more in metrics.jsonl.</p>' if more > 0 else ""
    return f'<div class="grid2">{charts}</div>{note}' if charts else ""


def _render_figure(title: str, series: Sequence[Series], x_label: str, *, wide: bool = False) -> str:
    width, height = (WHOLE, 300) if wide else (HALF, 220)
    chart = line_chart(series, x_label, width=width, height=height)
    hint = "thin lines: one per seed" if sum(line.faint for line in series) > 1 else ""
    caption = f"<figcaption>{escape(title.replace('_', ' '))}<small>{hint}</small></figcaption>"
    return f'<figure class="card">{caption}{legend(series) if wide else ""}{chart}</figure>' if chart else ""


def _render_events(summary: Mapping[str, Any]) -> str:
    in_evaluation: Counter[str] = Counter()
    for section in data_sections(summary).values():
        for cell in list_cells(section["variants"]):
            in_evaluation.update(cell["failures"])
    table = [
        ["event", "count"],
        ["failed rollouts in training", format_failures(summary["counts"]["failures"])],
        ["failed tasks in evaluation", format_failures(in_evaluation)],
        *([f"{name} in training", format_failures(summary["counts"][name])] for name in COUNTED_METRICS),
    ]
    table += [["trained policy", line] for line in describe_kept(summary)]
    table += [["sign of bad health", line] for line in describe_signs(summary)]
    note = "Drift means that a prompt did not extend the token ids of the turn before it."
    return f'{_render_table(table)}<p class="note">{note}</p>'


def _render_published(summary: Mapping[str, Any], published: Sequence[PublishedScore]) -> str:
    table = _render_table(published_table(published, data_sections(summary))) if published else ""
    departures = "".join(f"<li>{escape(line)}</li>" for line in summary["departures"])
    return table + (f"<h3>Departures from the published setting</h3><ul>{departures}</ul>" if departures else "")


def _render_rollouts(folder: RunFolder) -> str:
    if not (folder.path / VIEW_FILE).is_file():
        return ""
    return (
        f'<p><a href="{VIEW_FILE}">The tokens of the rollouts</a>: mask, log-probs, advantages, groups. '
        "Those of one evaluation: tokentrue inspect view FILE, with a FILE of evaluation/*.jsonl.gz.</p>"
    )


def _render_fold(title: str, values: Mapping[str, Any]) -> str:
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    return f"<details><summary>{title}</summary><pre>{escape(text)}</pre></details>"


def _render_table(table: Table) -> str:
    header, *rows = table
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if isinstance(cell, SafeHtml) else escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    whole = f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    return f"<details><summary>{len(rows)} rows</summary>{whole}</details>" if len(rows) > MAX_ROWS else whole
