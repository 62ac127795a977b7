"""This module shows whole trajectories in the report, turn by turn: prompt, completion, and whether it was trained.

It shows texts; core/inspect/view.py shows the tokens.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from html import escape
from typing import Any

import yaml

from core.runs.record import RecordedRollout, RecordedTurn

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


def choose_trajectories(rollouts: Iterable[RecordedRollout], limit: int = MAX_TRAJECTORIES) -> list[RecordedRollout]:
    """Choose the best and the worst trajectory of the last step of each source, then those of the first step.

    No more than these are in memory at a time.
    """
    by_source: dict[str, dict[int, list[RecordedRollout]]] = defaultdict(dict)
    for rollout in rollouts:
        by_step, step = by_source[rollout.source], rollout.step
        # The worst goes first: it came first, unless it is worse than the best.
        by_step[step] = best_and_worst([*reversed(by_step.get(step, ())), rollout])
        for between in set(by_step) - {min(by_step), max(by_step)}:
            del by_step[between]
    chosen: list[RecordedRollout] = []
    for last in (True, False):
        for source in sorted(by_source, key=lambda source: (*(source != first for first in FIRST_SOURCES), source)):
            steps = by_source[source]
            if last or len(steps) > 1:
                chosen += steps[max(steps) if last else min(steps)]
    return chosen[:limit]


def best_and_worst(rollouts: Iterable[RecordedRollout]) -> list[RecordedRollout]:
    """Return the rollouts with the highest and the lowest reward; it keeps no more than these two in memory."""

    def rank(rollout: RecordedRollout) -> float:
        return -math.inf if rollout.reward is None else rollout.reward

    best = worst = None
    for rollout in rollouts:
        if best is None or rank(rollout) >= rank(best):
            best = rollout
        if worst is None or rank(rollout) < rank(worst):
            worst = rollout
    return [] if best is None or worst is None else [best] if best is worst else [best, worst]


def render_trajectory(rollout: RecordedRollout, opened: bool = False) -> str:
    """Render one trajectory as a collapsible block."""
    reward, turns = rollout.reward, rollout.turns
    badges = [
        _badge(f"{rollout.source.replace('_', ' ')} · step {rollout.step}", "plain"),
        _badge("no reward", "plain")
        if reward is None
        else _badge(f"reward {reward:.3g}", "good" if reward > 0.5 else "bad"),
        _badge(rollout.status, "good" if rollout.status == "completed" else "bad"),
        _badge(f"{len(turns)} turn{'s' if len(turns) != 1 else ''}", "plain"),
    ]
    answers, question = ", ".join(rollout.answers), rollout.question
    shown = [
        _render_turn(number, turn, rollout.decode(prompt), rollout.decode(turn.sampled))
        for number, (turn, prompt) in enumerate(zip(turns[:MAX_TURNS], rollout.prompts, strict=False), start=1)
    ]
    return (
        f'<details class="trajectory"{" open" if opened else ""}><summary>{"".join(badges)}'
        f'<span class="question">{escape(question[:200])}</span></summary>'
        f'<dl class="facts"><dt>task</dt><dd>{escape(rollout.task_id)}</dd>'
        f"<dt>question</dt><dd>{escape(_shorten(question))}</dd>"
        f"<dt>answers</dt><dd>{escape(_shorten(answers)) or '–'}</dd></dl>"
        + "".join(shown)
        + (f'<p class="note">{len(turns) - MAX_TURNS:,} further turns.</p>' if len(turns) > MAX_TURNS else "")
        + _render_values("metrics", rollout.metrics)
        + _render_values("log", rollout.log)
        + "</details>"
    )


def _render_turn(number: int, turn: RecordedTurn, prompt: str, completion: str) -> str:
    gradient = _badge("trained", "accent") if turn.trained else _badge("frozen", "plain")
    return (
        f'<section class="turn{" trained" if turn.trained else ""}"><header><b>turn {number}</b>'
        f"<span>{escape(turn.role)}</span>{gradient}"
        f'<span class="muted">{len(turn.sampled):,} tokens · {turn.finish_reason}</span></header>'
        f"<details><summary>prompt <span class='muted'>{len(prompt):,} characters</span></summary>"
        f"<pre>{escape(_shorten(prompt))}</pre></details>"
        f'<pre class="completion">{escape(_shorten(completion))}</pre></section>'
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
