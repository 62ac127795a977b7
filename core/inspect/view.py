"""Write view.html into a run folder: the tokens of some of its rollouts, with mask, log-probs and advantages.

Without an option it shows the last recorded training step. A single record is a file, or the folder of a gateway,
where rollouts.jsonl.gz is one; the page then stands beside it.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import json
import math
import re
import sys
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from core.inspect.dumps import list_records, list_samples, read_dump
from core.options import show_errors
from core.report import begin_page
from core.rewards.answer_grader import is_accepted
from core.runs.files import is_newest, write_text
from core.runs.record import LOGGED_CALLS, RecordedRollout, RecordedTurn
from core.runs.run_folder import VIEW_FILE, RunFolder
from core.types import EDGE

MAX_ROLLOUTS = 64
MAX_PROMPT = 2000
"""Limits the ids of a prompt that no earlier turn has; the page says how many it leaves out in the middle."""
MAX_PIECE = 200
"""Limits the characters of one token."""
MAX_TEXT = 20_000
"""Limits the characters of a question, of the metrics and of the log."""
MAX_CALL = 2000
"""Limits the characters of what one call of a tool was asked and said."""

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"
    "\U000e0000-\U000e007f]"
)
"""Matches characters that are invisible or change the direction of text."""


class SeededRollout(NamedTuple):
    """A recorded rollout, and the seed of the training that sampled it."""

    seed: int
    rollout: RecordedRollout


def write_view(folder: RunFolder) -> int:
    """Write the viewer of a run and return how many rollouts it shows; without a recorded rollout it writes nothing.

    It shows the first groups of the last training step, and no more than MAX_ROLLOUTS, as many of each seed. It says
    how many it leaves out. A folder without a recorded training shows the samples of its evaluations.
    """
    return _write_page(folder.path / VIEW_FILE, folder.path)[0]


def refresh_view(folder: RunFolder) -> None:
    """Write the viewer of a run unless it is newer than every record: to read the records takes long."""
    records = list_records(folder.path) or list_samples(folder)
    if not is_newest(folder.path / VIEW_FILE, (file for _, file in records)):
        write_view(folder)


def write_record_view(record: Path, page: Path) -> int:
    """Write the viewer of one record, or of another framework's dump (core/inspect/dumps.py), as `write_view` does."""
    return _write_page(page, record)[0]


def _write_page(
    page: Path, path: Path, task_id: str | None = None, step: int | None = None, worst: int | None = None
) -> tuple[int, int]:
    """Write the page, and return how many rollouts it shows and how many it leaves out.

    It shows those of one task, of one step, or both, or else of the last training step; of these the `worst`, those
    whose reward looks wrong first, or the first groups.
    """
    records = list_records(path) or list_samples(RunFolder(path))
    chosen: list[SeededRollout] = []
    limit, found = None if worst is not None else max(1, MAX_ROLLOUTS // max(1, len(records))), 0
    for seed, file in records:
        of_seed, count = choose_rollouts(read_dump(file), task_id, step, limit)
        chosen += (SeededRollout(seed, rollout) for rollout in of_seed)
        found += count
    if worst is not None:
        chosen = sorted(chosen, key=lambda one: _rank(one.rollout))[:worst]
        found = len(chosen)
    shown = chosen[:MAX_ROLLOUTS]
    if shown:
        write_text(page, render_view(path.name, shown, found - len(shown)))
    return len(shown), found - len(shown)


def choose_rollouts(
    rollouts: Iterable[RecordedRollout], task_id: str | None, step: int | None, limit: int | None = None
) -> tuple[list[RecordedRollout], int]:
    """Return the rollouts of a task, of a step or of both; without either, those of the last training step.

    A record without training steps, such as that of an evaluation, gives those of its last step. No more than these
    are in memory at a time, and the first `limit` of them. The number is that of all.
    """
    chosen: list[RecordedRollout] = []
    count = 0
    for rollout in rollouts:
        if task_id is None and step is None:
            newest = chosen[0] if chosen else rollout
            rank = [(one.stage == "train", one.step) for one in (newest, rollout)]
            if rank[1] > rank[0]:
                chosen.clear()
                count = 0
            wanted = rank[1] >= rank[0]
        else:
            wanted = task_id in (None, rollout.task_id) and step in (None, rollout.step)
        count += wanted
        if wanted and (limit is None or len(chosen) < limit):
            chosen.append(rollout)
    return chosen, count


def render_view(name: str, rollouts: Sequence[SeededRollout], left_out: int = 0) -> str:
    """Render the page, one file that opens without a server; `name` is that of the run.

    The data are packed into it, and core/inspect/view.js shows them. A text from a model, a tool or a task is never
    markup: it is inside the packed data, the script only ever sets it as text, and the page's policy runs that one
    script by its hash and loads nothing. Characters that hide or turn text around are shown by their numbers.
    """
    data = base64.b64encode(gzip.compress(json.dumps(pack_rollouts(rollouts, left_out)).encode(), 6, mtime=0)).decode()
    script = _read("view.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    title = escape(show_text(f"{name}: rollouts"))
    return (
        begin_page(title, _read("view.css"), f"; script-src 'sha256-{digest}'")
        + f'<header><h1>{title}</h1> <span class="muted" id="count"></span>'
        '<div class="tools"><input id="search" placeholder="search ( / )" aria-label="search">'
        '<span id="tints"></span><small id="legend"></small><small>? shows the keys</small></div>'
        '<dl id="help" hidden></dl></header><nav id="list"></nav><main id="main"></main>'
        f'<footer id="status">Point at a token, or press → .</footer>'
        f'<script type="text/plain" id="data">{data}</script>'
        f"<script>{script}</script></body></html>\n"
    )


def pack_rollouts(rollouts: Sequence[SeededRollout], left_out: int = 0) -> dict[str, Any]:
    """Return the data of the page, with the texts of all ids as they are shown."""
    versions = [version for one in rollouts for turn in one.rollout.turns for version in turn.versions]
    packed = [_pack_rollout(*one) for one in rollouts]
    pieces: dict[int, str] = {}
    for one, record in zip(rollouts, packed, strict=True):
        for turn in record["turns"]:
            for token in (*turn["prompt"], *turn["sampled"]):
                if token >= 0 and token not in pieces:
                    pieces[token] = show_piece(one.rollout.piece(token))
    return {
        "rollouts": packed,
        "left_out": left_out,
        "pieces": pieces,
        "versions": list(dict.fromkeys(map(show_text, versions))),
        "largest_advantage": max((abs(x) for one in rollouts for x in _list_advantages(one.rollout)), default=0.0)
        or 1.0,
    }


def show_piece(content: bytes) -> str:
    """Return the bytes of a token as they are shown: a line break with a sign, a part of a character as its bytes."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"‹{content[:MAX_PIECE].hex(' ').upper()}›"
    return show_text(text, MAX_PIECE).replace("\n", "↵\n")


def show_text(text: str, limit: int = MAX_TEXT) -> str:
    """Return a text with its hidden characters as numbers, shortened to `limit` characters."""
    shown = _HIDDEN.sub(lambda match: f"‹U+{ord(match[0]):04X}›", text[:limit])
    return shown if len(text) <= limit else f"{shown}‹… {len(text) - limit:,} characters left out›"


def find_segments(rollout: RecordedRollout) -> list[dict[str, Any]]:
    """Cut the turns into segments, in which each prompt goes on from all ids of the turn before.

    Returns for each its `turns` by place and, if it begins like an earlier turn (a sub-agent, a compaction, a rewritten
    history), `base`: that turn, and how many ids they share. `labels` are what the agent itself says of its first turn.
    """
    told = [event for event in rollout.log.get("wire") or () if event["event"].startswith(EDGE) and "turn" in event]
    segments: list[dict[str, Any]] = []
    of_turn: list[int] = []
    whole: list[list[int]] = []
    for place, (prompt, turn) in enumerate(zip(rollout.prompts, rollout.turns, strict=True)):
        before = max((i for i in range(place) if _extends(prompt, whole[i])), key=lambda i: len(whole[i]), default=None)
        if before is not None and segments[of_turn[before]]["turns"][-1] == before:
            of_turn.append(of_turn[before])
            segments[of_turn[before]]["turns"].append(place)
        else:
            base = turn.base if before is None else (before, len(whole[before]))
            of_turn.append(len(segments))
            labels = [f"{e['event'].removeprefix(EDGE)} {e['source']}" for e in told if e["turn"] == place + 1]
            segments.append({"turns": [place], "base": base, "labels": labels})
        whole.append([*prompt, *turn.sampled])
    return segments


def _extends(prompt: Sequence[int], before: Sequence[int]) -> bool:
    # The last id differs mostly, and spares the comparison of all.
    return 0 < len(before) <= len(prompt) and prompt[len(before) - 1] == before[-1] and prompt[: len(before)] == before


def _pack_rollout(seed: int, rollout: RecordedRollout) -> dict[str, Any]:
    calls = rollout.calls
    return {
        "seed": seed,
        **rollout.model_dump(include={"stage", "step", "group", "status", "reward", "advantage"}),
        "task": show_text(rollout.task_id),
        "question": show_text(rollout.question),
        "answers": [show_text(answer) for answer in rollout.answers],
        "failure": None if rollout.failure is None else show_text(rollout.failure),
        "doubt": find_doubt(rollout),
        "turns": [_pack_turn(turn, rollout.advantage) for turn in rollout.turns],
        "segments": find_segments(rollout),
        "rows": [{"turns": row.turns, "length": row.length, "loss_scale": row.loss_scale} for row in rollout.rows],
        "calls": [_pack_call(name, call) for name, call in calls],
        "metrics": _show_values(rollout.metrics),
        "log": _show_values({key: value for key, value in rollout.log.items() if not calls or key not in LOGGED_CALLS}),
    }


def _pack_call(name: str, call: dict[str, Any]) -> dict[str, Any]:
    seconds = call.get("seconds")
    return {
        "name": show_text(name, MAX_PIECE),
        "seconds": round(seconds, 4) if isinstance(seconds, (int, float)) else None,
        "fields": _show_values(call, MAX_CALL),
    }


def _list_advantages(rollout: RecordedRollout) -> Iterable[float]:
    yield rollout.advantage or 0.0
    for turn in rollout.turns:
        own = turn.trained_advantage or 0.0
        yield from own if isinstance(own, tuple) else (own,)


def _pack_turn(turn: RecordedTurn, advantage: float | None) -> dict[str, Any]:
    prompt, half = turn.prompt, MAX_PROMPT // 2
    if len(prompt) > MAX_PROMPT:
        # An id below 0 stands for so many ids that are left out.
        prompt = [*prompt[:half], MAX_PROMPT - len(prompt), *prompt[-half:]]
    return {
        **turn.model_dump(include={"trained", "reward", "base", "finish_reason", "seconds"}),
        "role": show_text(turn.role),
        "advantage": advantage if turn.trained_advantage is None else turn.trained_advantage,
        "prompt": prompt,
        "sampled": turn.sampled,
        "logprobs": _round(turn.logprobs),
        "trainer_logprobs": None if turn.trainer_logprobs is None else _round(turn.trainer_logprobs),
        "weight_version": show_text(turn.weight_version),
        "earlier_versions": [(show_text(version), count) for version, count in turn.earlier_versions],
    }


def _round(values: Iterable[float | None]) -> list[float | None]:
    return [None if value is None else round(value, 4) for value in values]


def _show_values(values: dict[str, Any], limit: int = MAX_TEXT) -> str:
    return show_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=110), limit) if values else ""


def find_doubt(rollout: RecordedRollout) -> str:
    """Say what looks wrong with a reward; "" if nothing does."""
    answer, reward = rollout.log.get("answer"), rollout.reward
    if reward is None or reward > 0 or not isinstance(answer, str) or not is_accepted(answer, rollout.answers):
        return ""
    return f"the answer equals an accepted answer, reward {reward:g}"


def _rank(rollout: RecordedRollout) -> tuple[bool, float]:
    """Order rollouts from the worst: those whose reward looks wrong come first, then those without a reward."""
    return not find_doubt(rollout), -math.inf if rollout.reward is None else rollout.reward


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


@show_errors(ValueError, OSError, status=2)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    path = options.run_dir
    page = path.with_name(VIEW_FILE) if path.is_file() else path / VIEW_FILE
    count, left_out = _write_page(page, path, options.task, options.step, options.worst)
    if not count:
        print(
            f"error: {path} has no such rollout; seed-*/metrics.jsonl lists the tasks of each step, and "
            "run.record_every says which steps are recorded",
            file=sys.stderr,
        )
        return 1
    more = f"; {left_out} more are not on the page: choose by --task, --step or --worst" if left_out else ""
    print(f"{page}: {count} rollouts{more}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue inspect view", description=__doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="a folder that a run has left, or a record")
    parser.add_argument("--task", metavar="ID", help="the rollouts of this task, over all steps")
    parser.add_argument("--step", type=int, metavar="N", help="the rollouts of this step")
    parser.add_argument(
        "--worst",
        type=int,
        metavar="N",
        help=f"of these the N worst, first those whose reward looks wrong (at most {MAX_ROLLOUTS} are shown)",
    )
    return parser
