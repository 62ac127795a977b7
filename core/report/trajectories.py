"""This module shows whole trajectories in the report, turn by turn: prompt, completion, and whether it was trained.

It shows texts; core/inspect/view.py shows the tokens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from html import escape
from itertools import groupby
from typing import Any, TypeVar

import yaml

from core.runs.files import Record
from core.runs.record import RecordedRollout

T = TypeVar("T", bound=Any)

MAX_TRAJECTORIES = 8
MAX_CHARACTERS = 8000
"""Limits the characters of a text; the page says how many it leaves out."""

MAX_TURNS = 100
"""Limits the turns that are shown of a trajectory."""

FIRST_SOURCES = ("trained", "untrained", "eval", "train", "warm_start")
"""These variants and stages come first; other variants follow by name."""


class _BlockDumper(yaml.SafeDumper):
    """Writes texts of several lines as such."""


_BlockDumper.add_representer(
    str,
    lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None),
)


def describe_extremes(rollouts: Iterable[RecordedRollout]) -> Iterator[Record]:
    """Yield the best and the worst rollout of each stage and step as texts; rollouts come in order of their steps."""
    for _, of_one_step in groupby(rollouts, key=lambda rollout: (rollout.stage, rollout.step)):
        yield from map(describe_rollout, best_and_worst(of_one_step, lambda rollout: rollout.reward))


def describe_rollout(rollout: RecordedRollout) -> Record:
    """Return a recorded rollout with texts instead of ids, as core/runs/trajectory.py describes it."""
    turns = [
        {
            "role": turn.role,
            "trained": turn.trained,
            "prompt": rollout.decode(prompt),
            "completion": rollout.decode(turn.sampled),
            "finish_reason": turn.finish_reason,
            "tokens": len(turn.sampled),
        }
        for turn, prompt in zip(rollout.turns, rollout.prompts, strict=True)
    ]
    shown = rollout.model_dump(exclude={"version", "group", "advantage", "turns", "rows", "pieces"})
    return {**shown, "turns": turns}


def choose_trajectories(trajectories: Iterable[Record], limit: int = MAX_TRAJECTORIES) -> list[Record]:
    """Choose the best and the worst trajectory of the last step of each source, then those of the first step.

    No more than these are in memory at a time.
    """
    by_source: dict[str, dict[int, list[Record]]] = defaultdict(dict)
    for record in trajectories:
        by_step, step = by_source[_source(record)], record["step"]
        # The worst goes first: it came first, unless it is worse than the best.
        by_step[step] = best_and_worst([*reversed(by_step.get(step, ())), record])
        for between in set(by_step) - {min(by_step), max(by_step)}:
            del by_step[between]
    chosen: dict[int, Record] = {}
    for choose_step in (max, min):
        for source in sorted(by_source, key=_source_order):
            for record in by_source[source][choose_step(by_source[source])]:
                chosen.setdefault(id(record), record)
    return list(chosen.values())[:limit]


def best_and_worst(
    records: Iterable[T], read_reward: Callable[[T], float | None] = lambda record: record.get("reward")
) -> list[T]:
    """Return the records with the highest and the lowest reward; it keeps no more than these two in memory."""

    def rank(record: T) -> float:
        reward = read_reward(record)
        return -math.inf if reward is None else float(reward)

    best = worst = None
    for record in records:
        if best is None or rank(record) >= rank(best):
            best = record
        if worst is None or rank(record) < rank(worst):
            worst = record
    return [] if best is None or worst is None else [best] if best is worst else [best, worst]


def render_trajectory(record: Record, opened: bool = False) -> str:
    """Render one trajectory as a collapsible block, without the fields that it lacks."""
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
        f"<dt>question</dt><dd>{escape(_shorten(question))}</dd>"
        f"<dt>answers</dt><dd>{escape(_shorten(answers)) or '–'}</dd></dl>"
        + "".join(_render_turn(number, turn) for number, turn in enumerate(turns[:MAX_TURNS], start=1))
        + (f'<p class="note">{len(turns) - MAX_TURNS:,} further turns.</p>' if len(turns) > MAX_TURNS else "")
        + _render_values("metrics", record.get("metrics"))
        + _render_values("log", record.get("log"))
        + "</details>"
    )


def _render_turn(number: int, turn: Record) -> str:
    trained = bool(turn.get("trained"))
    facts = [f"{turn['tokens']:,} tokens" if isinstance(turn.get("tokens"), int) else "", turn.get("finish_reason", "")]
    gradient = _badge("trained", "accent") if trained else _badge("frozen", "plain")
    prompt = str(turn.get("prompt", ""))
    return (
        f'<section class="turn{" trained" if trained else ""}"><header><b>turn {number}</b>'
        f"<span>{escape(str(turn.get('role', '')))}</span>{gradient}"
        f'<span class="muted">{escape(" · ".join(fact for fact in facts if fact))}</span></header>'
        f"<details><summary>prompt <span class='muted'>{len(prompt):,} characters</span></summary>"
        f"<pre>{escape(_shorten(prompt))}</pre></details>"
        f'<pre class="completion">{escape(_shorten(str(turn.get("completion", ""))))}</pre></section>'
    )


def _render_values(title: str, values: Any) -> str:
    if not values:
        return ""
    text = yaml.dump(values, Dumper=_BlockDumper, sort_keys=False, allow_unicode=True, width=110)
    return f"<details><summary>{title}</summary><pre>{escape(_shorten(text))}</pre></details>"


def _shorten(text: str) -> str:
    """Keep the beginning and the end of a long text."""
    half = MAX_CHARACTERS // 2
    left_out = len(text) - 2 * half
    return text if left_out <= 0 else f"{text[:half]} [… {left_out:,} characters left out …] {text[-half:]}"


def _badge(text: str, tone: str) -> str:
    return f'<span class="badge {tone}">{escape(text)}</span>'


def _tone(reward: Any) -> str:
    return "plain" if reward is None else "good" if reward > 0.5 else "bad"


def _source(record: Record) -> str:
    """Return the variant that an evaluator ran, or the stage of the run."""
    return str(record.get("variant") or record["stage"])


def _source_order(source: str) -> tuple[int, str]:
    return (FIRST_SOURCES.index(source) if source in FIRST_SOURCES else len(FIRST_SOURCES), source)
