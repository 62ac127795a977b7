"""report.html: one file with inline style and inline SVG; no script, nothing loaded from elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import yaml

from core.report.charts import Series, legend, line_chart, seed_series, tick_text
from core.report.table import (
    Published,
    cost_table,
    failures_text,
    fit_text,
    flat_table,
    has_lengths,
    labels_of,
    lengths_of,
    metrics_of,
    published_table,
    sections_of,
    short_length,
    split_table,
)
from core.report.viewer import extremes, pick, render_trajectory
from core.runs.files import Record, read_jsonl
from core.runs.run_folder import RunFolder

HIDDEN_METRICS = {"stage", "step", "seed", "seconds", "time", "n", "length"}
"""Bookkeeping fields of a metrics record that get no chart."""

MAX_SMALL_CHARTS = 12

BySeed = Mapping[int, Sequence[tuple[float, float]]]


def render_page(folder: RunFolder, summary: Mapping[str, Any], published: Sequence[Published]) -> str:
    """The whole page. Text that a model or a user wrote is escaped."""
    metrics = {seed: folder.read_metrics(seed) for seed in folder.seeds}
    trajectories = [record for seed in folder.seeds for record in folder.read_trajectories(seed)]
    trajectories += [r for path in sorted(folder.evaluation_path.glob("*.jsonl")) for r in extremes(read_jsonl(path))]
    method, preset = str(summary["method"] or "run"), str(summary["preset"] or "–")
    sections = {
        "Evaluation": _evaluation(summary),
        "Training": _training(metrics),
        "Warm start": _small_charts(metrics, "warm_start", "step of the warm start"),
        "Failures and drift": _counts(summary),
        "Published / ours": _published(published, summary),
        "Trajectories": _trajectories(trajectories),
        "Recipe and versions": _setup(folder),
    }
    shown = {title: body for title, body in sections.items() if body}
    links = "".join(f'<a href="#{_anchor(title)}">{escape(title)}</a>' for title in shown)
    body = "".join(
        f'<section id="{_anchor(title)}"><h2>{escape(title)}</h2>{text}</section>' for title, text in shown.items()
    )
    style = Path(__file__).with_name("style.css").read_text(encoding="utf-8")
    seeds = ", ".join(map(str, summary["seeds"])) or "–"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{escape(method)} · {escape(preset)}</title><style>{style}</style></head><body><main>"
        f'<header class="top"><p class="kicker">run report</p><h1>{escape(method)}</h1>'
        f'<p class="meta">preset <b>{escape(preset)}</b> · seeds <b>{seeds}</b> · {escape(_made_with(folder))}</p>'
        f"<nav>{links}</nav></header>{_tiles(summary)}{body}</main></body></html>\n"
    )


def _tiles(summary: Mapping[str, Any]) -> str:
    """Headline numbers: the trained variant at the shortest and the longest length, reward, retention, time."""
    tiles: list[tuple[str, str, str]] = []
    variants = summary["variants"]
    main = "trained" if "trained" in variants else next(iter(variants), None)
    if main:
        lengths = list(variants[main])
        for length in dict.fromkeys((lengths[0], lengths[-1])):
            score = variants[main][length]["score"]
            low, high = score["ci95"]
            other = variants.get("untrained", {}).get(length)
            beside = f" · untrained {100 * other['score']['mean']:.1f}" if other and main != "untrained" else ""
            interval = f"{100 * low:.1f} to {100 * high:.1f}{beside}"
            name = f"{main} at {short_length(int(length))} tokens" if int(length) else f"{main} on {summary['data']}"
            tiles.append((name, f"{100 * score['mean']:.1f}%", interval))
    rewards = [reward for reward in summary["reward"].values() if reward["first"] is not None]
    if rewards:
        first, last = (sum(reward[key] for reward in rewards) / len(rewards) for key in ("first", "last"))
        note = f"from {first:.2f} · mean of {len(rewards)} seed{'s' if len(rewards) > 1 else ''}"
        tiles.append(("training reward", f"{last:.2f}", note))
    if main and summary["retention"][main] is not None:
        fit = summary["retention_fit"][main]
        zeros = f" · {fit['zeros']} at zero left out" if fit["zeros"] else ""
        tiles.append(("kept per turn", f"{fit['per_turn']:.4f}", f"fit over {fit['points']} lengths{zeros}"))
    if summary["seconds"]:
        spent = {stage.replace("_", " "): value for stage, value in summary["seconds"].items()}
        stages = " · ".join(f"{stage} {_duration(value)}" for stage, value in spent.items())
        tiles.append(("time spent", _duration(sum(spent.values())), stages))
    cards = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(note)}</small></div>'
        for name, value, note in tiles
    )
    return f'<div class="tiles">{cards}</div>' if cards else ""


def _evaluation(summary: Mapping[str, Any]) -> str:
    parts = []
    for data, section in sections_of(summary).items():
        variants = section["variants"]
        parts.append(f"<h3>{escape(data)}</h3>")
        if not has_lengths(variants):
            parts.append(_table(*flat_table(variants)))
            for label in labels_of(variants):
                parts.append(f"<h3>{escape(data)}, by {escape(label)}</h3>{_table(*split_table(variants, label))}")
            continue
        fits = section["retention_fit"]
        parts += [_length_chart(variants), *(_scores_table(variants, metric, fits) for metric in metrics_of(variants))]
        parts.append(f"<details><summary>Cost by variant and length</summary>{_table(*cost_table(variants))}</details>")
    note = (
        "Scores are means in per cent with their 95% interval over seeds and tasks; failed tasks count as 0. Kept per "
        "turn is r in score = a · r<sup>turns</sup>, fitted over the lengths that scored above 0. Under the name of a "
        "tool or an expert: its share of the calls, in per cent."
    )
    return f"{''.join(parts)}<p class='note'>{note}</p>" if parts else ""


def _length_chart(variants: Mapping[str, Any]) -> str:
    series = []
    for index, (variant, cells) in enumerate(variants.items()):
        scores = [(float(length), cell["score"]) for length, cell in cells.items() if int(length) > 0]
        points = [(length, score["mean"]) for length, score in scores]
        band = [(length, *score["ci95"]) for length, score in scores]
        series.append(Series(variant, points, index % 8, band=band, markers=True))
    ticks = [(float(length), short_length(length)) for length in lengths_of(variants) if length > 0]
    chart = line_chart(
        series,
        "document tokens (log scale)",
        y_range=(0, 1),
        log_x=True,
        x_ticks=ticks,
        y_text=lambda y: f"{100 * y:.0f}%",
        width=960,
        height=340,
    )
    return f'<figure class="card">{legend(series)}{chart}</figure>' if chart else ""


def _scores_table(variants: Mapping[str, Any], metric: str, fits: Mapping[str, Any]) -> str:
    lengths = lengths_of(variants)
    official = metric == "official"
    header = [f"{metric} score", *map(short_length, lengths), *(["kept per turn"] if official else [])]
    rows: list[list[str | Markup]] = []
    for variant, cells in variants.items():
        row = [variant, *(_score_cell(cells.get(str(length), {}).get(metric)) for length in lengths)]
        rows.append([*row, fit_text(fits[variant])] if official else row)
    return _table(header, *rows)


def _score_cell(cell: Mapping[str, Any] | None) -> str | Markup:
    if cell is None:
        return "–"
    low, high = cell["ci95"]
    return Markup(f"<b>{100 * cell['mean']:.1f}</b><small>{100 * low:.1f} to {100 * high:.1f}</small>")


def _training(metrics: Mapping[int, Sequence[Record]]) -> str:
    reward = _curve(metrics, "train", "reward")
    steps = max((len(points) for points in reward.values()), default=0)
    window = max(1, steps // 25) | 1
    label = "reward" if window == 1 else f"reward, mean over {window} steps"
    chart = _figure("Training reward", seed_series(reward, label, 0, window), "training step", wide=True)
    evaluated: list[Series] = []
    for index, name in enumerate(name for name in _names(metrics, "eval") if name.startswith(("reward", "score"))):
        evaluated += seed_series(_curve(metrics, "eval", name), name, index)
    evaluation = _figure("Evaluation during training", evaluated, "training step", wide=True)
    rest = _small_charts(metrics, "train", "training step", leave_out={"reward"})
    more = f"<details><summary>Other training metrics</summary>{rest}</details>" if rest else ""
    return chart + evaluation + more


def _small_charts(
    metrics: Mapping[int, Sequence[Record]], stage: str, x_label: str, leave_out: set[str] | None = None
) -> str:
    """One small chart for each number of a stage."""
    names = [name for name in _names(metrics, stage) if name not in (leave_out or set())]
    charts = [
        _figure(name, seed_series(_curve(metrics, stage, name), name, 0), x_label) for name in names[:MAX_SMALL_CHARTS]
    ]
    more = len(names) - MAX_SMALL_CHARTS
    left = f'<p class="note">{more} more in metrics.jsonl.</p>' if more > 0 else ""
    return f'<div class="grid2">{"".join(charts)}</div>{left}' if any(charts) else ""


def _figure(title: str, series: Sequence[Series], x_label: str, *, wide: bool = False) -> str:
    width, height = (960, 300) if wide else (470, 220)
    chart = line_chart(series, x_label, width=width, height=height, y_text=tick_text)
    seeds = sum(line.faint for line in series)
    hint = "thin lines: one per seed" if seeds > 1 else ""
    key = legend(series) if wide else ""
    caption = f"<figcaption>{escape(title.replace('_', ' '))}<small>{hint}</small></figcaption>"
    return f'<figure class="card">{caption}{key}{chart}</figure>' if chart else ""


def _curve(metrics: Mapping[int, Sequence[Record]], stage: str, name: str) -> BySeed:
    curves = {
        seed: [(float(r["step"]), float(r[name])) for r in records if r["stage"] == stage and _is_number(r.get(name))]
        for seed, records in metrics.items()
    }
    return {seed: points for seed, points in curves.items() if points}


def _names(metrics: Mapping[int, Sequence[Record]], stage: str) -> list[str]:
    """Numeric fields of the records of a stage, in order of appearance."""
    names: dict[str, None] = {}
    for records in metrics.values():
        for record in records:
            if record["stage"] == stage:
                names |= {name: None for name, value in record.items() if _is_number(value)}
    return [name for name in names if name not in HIDDEN_METRICS]


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _counts(summary: Mapping[str, Any]) -> str:
    evaluated: dict[str, int] = {}
    for section in sections_of(summary).values():
        for cells in section["variants"].values():
            for cell in cells.values():
                for kind, count in cell["failures"].items():
                    evaluated[kind] = evaluated.get(kind, 0) + count
    return _table(
        ["event", "count"],
        ["failed rollouts in training", failures_text(summary["counts"]["failures"])],
        ["failed tasks in evaluation", failures_text(evaluated)],
        ["drift: a prompt that no longer extended the ids held", failures_text(summary["counts"]["drift"])],
    )


def _published(published: Sequence[Published], summary: Mapping[str, Any]) -> str:
    listed = "".join(f"<li>{escape(line)}</li>" for line in summary["departures"])
    departures = f"<h3>Departures from the published setting</h3><ul>{listed}</ul>" if listed else ""
    table = _table(*published_table(published, sections_of(summary))) if published else ""
    return table + departures


def _trajectories(trajectories: Sequence[Record]) -> str:
    if not trajectories:
        return ""
    shown = pick(trajectories)
    note = (
        f'<p class="note">{len(shown)} of those that were kept: the best and the worst of each variant and stage, '
        'at its last step and at its first. A <span class="badge accent">trained</span> turn is tinted: its '
        "completion gets a gradient. Texts are decoded for showing only.</p>"
    )
    return note + "".join(render_trajectory(record, opened=index == 0) for index, record in enumerate(shown))


def _setup(folder: RunFolder) -> str:
    config = yaml.safe_dump(folder.config, sort_keys=False, allow_unicode=True)
    versions = yaml.safe_dump(folder.versions, sort_keys=False, allow_unicode=True)
    return (
        f"<details><summary>config.yaml</summary><pre>{escape(config)}</pre></details>"
        f"<details><summary>versions.json</summary><pre>{escape(versions)}</pre></details>"
    )


def _made_with(folder: RunFolder) -> str:
    versions = folder.versions
    machine = ", ".join(versions.get("gpu") or []) or f"{versions.get('cpus', '?')} CPU cores"
    return f"{machine} · torch {versions.get('torch') or '?'} · commit {(versions.get('git') or 'unknown')[:10]}"


class Markup(str):
    """Text that is HTML already and is not escaped again."""


def _table(header: Sequence[str], *rows: Sequence[str | Markup]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell if isinstance(cell, Markup) else escape(cell)}</td>" for cell in row) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _anchor(title: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in title.lower())


def _duration(seconds: float) -> str:
    """95 -> 1 min 35 s"""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
