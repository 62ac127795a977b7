"""summary.json: what a run folder holds, in one object that other programs can rely on.

    {"method", "preset", "seeds": [0, 1, 2], "score": "official", "data": "niah_multikey_2",
     "variants": {variant: {"7168": {"score": {"mean", "ci95": [low, high], "n"}, "official": {...}, "strict": {...}, "seeds",
                             "turns_per_task", "tokens_per_task", "policy_tokens_per_1k_tokens",
                             "seconds_per_1k_tokens", "documents_cut", "failures": {kind: count},
                             "policy_tokens_per_task", "measures": {name: mean},
                             "by": {label: {value: {"score", "official", "strict", "measures"}}}}}},
     "retention": {variant: r per turn}, "retention_fit": {variant: {...}}, "other_data": {data: {"variants", "retention", ...}},
     "reward": {seed: {"first", "last"}}, "seconds": {stage: s}, "counts": {"failures": {kind: n}, "drift": {kind: n}},
     "checkpoints": {seed: [paths inside the folder]}, "departures": [...]}

`variants` is about the data set `data`; others of the same run are under `other_data`. `score` repeats `official`. Data
without lengths has the one length 0. Measures are means over the tasks that have them: failed ones have none, and what
they cost is not known; `cost_per_solved` is all known cost over the sum of the official scores.
"Per 1K tokens" counts tokens of documents: policy tokens are the prompts and completions spent on them.
Intervals and the fit are explained in core/report/stats.py.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from core.report.stats import mean_ci, retention
from core.runs.evaluation import EvalResult
from core.runs.files import Record
from core.runs.run_folder import RunFolder

FIRST_VARIANTS = ("trained", "untrained")
"""They come first; others follow by name."""

REWARD_WINDOW = 10
"""Steps averaged into the first and the last reward."""


def build_summary(folder: RunFolder, headline: str | None = None) -> dict[str, Any]:
    """Everything in the module docstring. `headline` names the data set of `variants`; by default the most evaluated one.

    Raises ValueError when `headline` was not evaluated, or a file of the folder is broken.
    """
    by_data: dict[str, list[EvalResult]] = defaultdict(list)
    for result in folder.evaluations():
        by_data[result.data].append(result)
    if headline is not None and headline not in by_data:
        raise ValueError(f"{folder.path} has no evaluation of {headline!r}; it has: {', '.join(by_data) or 'none'}")
    data = headline or max(by_data, key=lambda name: len(by_data[name]), default=None)
    sections = {name: summarize(results) for name, results in by_data.items()}
    empty: dict[str, Any] = {"variants": {}, "retention": {}, "retention_fit": {}}
    metrics = {seed: folder.read_metrics(seed) for seed in folder.seeds}
    seconds = stage_seconds(record for records in metrics.values() for record in records)
    if by_data:
        seconds["evaluation"] = sum(result.seconds for results in by_data.values() for result in results)
    return {
        "method": folder.config.get("method"),
        "preset": folder.config.get("preset"),
        "seeds": folder.seeds or sorted({result.seed for results in by_data.values() for result in results}),
        "score": "official",
        "data": data,
        **(sections[data] if data else empty),
        "other_data": {name: section for name, section in sections.items() if name != data},
        "reward": {str(seed): first_and_last_reward(records) for seed, records in metrics.items()},
        "seconds": seconds,
        "counts": {name: count_events(metrics.values(), name) for name in ("failures", "drift")},
        "checkpoints": {str(seed): checkpoint_paths(folder, seed) for seed in folder.seeds},
        "departures": folder.published["departures"],
    }


def summarize(results: Sequence[EvalResult]) -> dict[str, Any]:
    """`variants`, `retention` and `retention_fit` of the results of one data set."""
    cells: dict[str, dict[int, list[EvalResult]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        cells[result.variant][result.length].append(result)
    variants = {
        variant: {str(length): _cell(cells[variant][length]) for length in sorted(cells[variant])}
        for variant in sorted(cells, key=lambda variant: (*(variant != first for first in FIRST_VARIANTS), variant))
    }
    fits = {variant: _fit(lengths) for variant, lengths in variants.items()}
    return {
        "variants": variants,
        "retention": {variant: fit["per_turn"] for variant, fit in fits.items()},
        "retention_fit": fits,
    }


def stage_seconds(records: Iterable[Record]) -> dict[str, float]:
    """Sum of `seconds` by stage, over steps and seeds: time spent, whatever ran side by side or was repeated."""
    total: dict[str, float] = defaultdict(float)
    for record in records:
        total[record["stage"]] += record.get("seconds") or 0.0
    return {stage: value for stage, value in total.items() if value}


def first_and_last_reward(records: Sequence[Record]) -> dict[str, float | None]:
    """Mean training reward over the first and the last steps; None without any."""
    rewards = [r["reward"] for r in records if r["stage"] == "train" and r.get("reward") is not None]
    first, last = rewards[:REWARD_WINDOW], rewards[-REWARD_WINDOW:]
    if not rewards:
        return {"first": None, "last": None}
    return {"first": sum(first) / len(first), "last": sum(last) / len(last)}


def count_events(metrics: Iterable[Sequence[Record]], name: str) -> dict[str, int]:
    """Sum a counted metric by kind over the training steps; a plain number is of the kind `total`."""
    counts: Counter[str] = Counter()
    for record in (record for records in metrics for record in records if record["stage"] == "train"):
        value = record.get(name) or 0
        counts.update(value if isinstance(value, Mapping) else {"total": value})
    return {kind: int(count) for kind, count in counts.items() if count}


def checkpoint_paths(folder: RunFolder, seed: int) -> list[str]:
    """Checkpoint folders of a seed, relative to the run folder, step-9 before step-10."""
    base = folder.checkpoints_path(seed)
    entries = [entry for entry in base.iterdir() if entry.is_dir()] if base.is_dir() else []
    return [str(entry.relative_to(folder.path)) for entry in sorted(entries, key=_natural) if entry.name[0] != "."]


def _cell(results: Sequence[EvalResult]) -> dict[str, Any]:
    """One variant at one length, over its seeds."""
    tasks = sum(result.n for result in results)
    tokens = sum(sum(result.document_tokens) for result in results)
    counted = [result.policy_tokens for result in results]
    spent = None if None in counted else sum(map(sum, counted))  # type: ignore[arg-type]
    failures: Counter[str] = Counter()
    for result in results:
        failures.update(result.failures)
    return {
        **_over_tasks([(result, range(result.n)) for result in results]),
        "seeds": [result.seed for result in results],
        "turns_per_task": sum(sum(result.turns) for result in results) / tasks,
        "tokens_per_task": tokens / tasks,
        "policy_tokens_per_task": None if spent is None else spent / tasks,
        "policy_tokens_per_1k_tokens": 1000 * spent / tokens if tokens and spent is not None else None,
        "seconds_per_1k_tokens": 1000 * sum(result.seconds for result in results) / tokens if tokens else None,
        "documents_cut": sum(result.notes.get("documents_cut", 0) for result in results),
        "failures": dict(failures),
        "by": {label: _split(results, label) for label in dict.fromkeys(name for r in results for name in r.labels)},
    }


Picked = Sequence[tuple[EvalResult, Sequence[int]]]
"""Results of several seeds, each with the places of some of its tasks."""


def _over_tasks(picked: Picked) -> dict[str, Any]:
    """The scores with their intervals and the means of the measures."""
    ids = [[result.notes["task_ids"][i] for i in places] for result, places in picked if "task_ids" in result.notes]
    same_tasks = len(ids) == len(picked) and all(of_seed == ids[0] for of_seed in ids)
    scores = {}
    for metric in picked[0][0].scores:
        if all(metric in result.scores for result, _ in picked):
            by_seed = [[result.scores[metric][i] for i in places] for result, places in picked]
            estimate = mean_ci(by_seed, same_tasks=same_tasks)
            scores[metric] = {"mean": estimate.mean, "ci95": [estimate.low, estimate.high], "n": estimate.n}
    measured: dict[str, list[float]] = defaultdict(list)
    for result, places in picked:
        for name, values in result.measures.items():
            measured[name] += [value for i in places if (value := values[i]) is not None]
    means = {name: math.fsum(values) / len(values) for name, values in measured.items() if values}
    solved = math.fsum(result.scores["official"][i] for result, places in picked for i in places)
    if "cost" in means and solved:
        means["cost_per_solved"] = math.fsum(measured["cost"]) / solved
    return {"score": scores["official"], **scores, "measures": means}


def _split(results: Sequence[EvalResult], label: str) -> dict[str, Any]:
    """Value of the label -> the same numbers over the tasks that have it."""
    places: dict[str, list[tuple[EvalResult, list[int]]]] = defaultdict(list)
    for result in results:
        of_value: dict[str, list[int]] = defaultdict(list)
        for place, value in enumerate(result.labels.get(label, ())):
            of_value[value].append(place)
        for value, chosen in of_value.items():
            places[value].append((result, chosen))
    return {value: _over_tasks(places[value]) for value in sorted(places)}


def _fit(lengths: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    cells = list(lengths.values())
    return asdict(
        retention(
            [cell["turns_per_task"] for cell in cells],
            [cell["score"]["mean"] for cell in cells],
            [cell["score"]["n"] for cell in cells],
        )
    )


def _natural(path: Path) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", path.name)]
