"""Whole trajectories as HTML, turn by turn: what went in, what came out, which tokens were trained."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import yaml

from core.runs.files import Record

MAX_TRAJECTORIES = 8
MAX_CHARACTERS = 8000
"""Of one prompt or completion; the page says what it leaves out."""

SOURCES = ("trained", "untrained", "eval", "train", "warm_start")
"""What is shown first: evaluated variants, then stages; further variants follow."""


class _Readable(yaml.SafeDumper):
    """Texts of several lines are shown as such."""


_Readable.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def pick(trajectories: Sequence[Record], limit: int = MAX_TRAJECTORIES) -> list[Record]:
    """A few that tell the most: the best and the worst of the last step of each source, then of the first."""
    chosen: list[Record] = []
    sources = sorted({_source(record) for record in trajectories}, key=_source_order)
    steps = [(source, last) for last in (True, False) for source in sources]
    for source, last in steps:
        of_source = [record for record in trajectories if _source(record) == source]
        step = (max if last else min)(record["step"] for record in of_source)
        for record in extremes(r for r in of_source if r["step"] == step):
            if all(record is not other for other in chosen):
                chosen.append(record)
    return chosen[:limit]


def extremes(records: Iterable[Record]) -> list[Record]:
    """The record with the highest and the one with the lowest reward, holding no more than these at a time."""
    best = worst = None
    for record in records:
        if best is None or _reward(record) >= _reward(best):
            best = record
        if worst is None or _reward(record) < _reward(worst):
            worst = record
    return [] if best is None or worst is None else [best] if best is worst else [best, worst]


def render_trajectory(record: Record, opened: bool = False) -> str:
    """One collapsible trajectory. Fields as in core/runs/run_folder.py; what is absent is left out."""
    reward, status = record.get("reward"), str(record.get("status", ""))
    turns = record.get("turns", [])
    badges = [
        _badge(f"{_source(record).replace('_', ' ')} · step {record['step']}", "plain"),
        _badge("no reward" if reward is None else f"reward {reward:.3g}", _tone(reward)),
        _badge(status, "good" if status == "completed" else "bad") if status else "",
        _badge(f"{len(turns)} turn{'s' if len(turns) != 1 else ''}", "plain"),
    ]
    answers = ", ".join(str(answer) for answer in record.get("answers", []))
    question = str(record.get("question", ""))
    return (
        f'<details class="trajectory"{" open" if opened else ""}><summary>{"".join(badges)}'
        f'<span class="question">{escape(question[:200])}</span></summary>'
        f'<dl class="facts"><dt>task</dt><dd>{escape(str(record.get("task_id", "")))}</dd>'
        f"<dt>question</dt><dd>{escape(question)}</dd><dt>answers</dt><dd>{escape(answers) or '–'}</dd></dl>"
        + "".join(_turn(number, turn) for number, turn in enumerate(turns, start=1))
        + _notes("metrics", record.get("metrics"))
        + _notes("log", record.get("log"))
        + "</details>"
    )


def _turn(number: int, turn: Record) -> str:
    trained = bool(turn.get("trained"))
    facts = [f"{turn['tokens']:,} tokens" if isinstance(turn.get("tokens"), int) else "", turn.get("finish_reason", "")]
    gradient = _badge("trained", "accent") if trained else _badge("frozen", "plain")
    prompt = str(turn.get("prompt", ""))
    return (
        f'<section class="turn{" trained" if trained else ""}"><header><b>turn {number}</b>'
        f"<span>{escape(str(turn.get('role', '')))}</span>{gradient}"
        f'<span class="muted">{escape(" · ".join(fact for fact in facts if fact))}</span></header>'
        f"<details><summary>prompt <span class='muted'>{len(prompt):,} characters</span></summary>"
        f"<pre>{escape(_cut(prompt))}</pre></details>"
        f'<pre class="completion">{escape(_cut(str(turn.get("completion", ""))))}</pre></section>'
    )


def _notes(title: str, values: Any) -> str:
    if not values:
        return ""
    text = yaml.dump(values, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=110)
    return f"<details><summary>{title}</summary><pre>{escape(_cut(text))}</pre></details>"


def _cut(text: str) -> str:
    """The beginning and the end of a long text."""
    half = MAX_CHARACTERS // 2
    left_out = len(text) - 2 * half
    return text if left_out <= 0 else f"{text[:half]} [… {left_out:,} characters left out …] {text[-half:]}"


def _badge(text: str, tone: str) -> str:
    return f'<span class="badge {tone}">{escape(text)}</span>'


def _tone(reward: Any) -> str:
    return "plain" if reward is None else "good" if reward > 0.5 else "bad"


def _source(record: Record) -> str:
    return str(record.get("variant") or record["stage"])


def _source_order(source: str) -> tuple[int, str]:
    return (SOURCES.index(source) if source in SOURCES else len(SOURCES), source)


def _reward(record: Record) -> float:
    reward = record.get("reward")
    return float("-inf") if reward is None else float(reward)
