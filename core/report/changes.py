"""This module computes what training changed: every variant beside the trained one, paired by seed and task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from core.report.stats import difference_ci, paired_ci
from core.runs.evaluation import EvalResult

Matched = tuple[EvalResult, EvalResult, Sequence[tuple[int, int]]]
"""Holds two results of one seed, and the places in them of each task that both have."""


def compute_changes(results: Sequence[EvalResult]) -> dict[str, dict[str, Any]]:
    """Map each variant but `trained` to its lengths, and each of these to the changes from it to `trained`.

    A change is the mean of `trained` minus the other over the seeds and tasks that both have.
    """
    trained = {(result.length, result.seed): result for result in results if result.variant == "trained"}
    matched: dict[tuple[str, int], list[Matched]] = defaultdict(list)
    for other in results:
        ours = trained.get((other.length, other.seed))
        if ours is not None and other is not ours and (places := match_tasks(ours, other)):
            matched[other.variant, other.length].append((ours, other, places))
    changes: dict[str, dict[str, Any]] = defaultdict(dict)
    for (variant, length), pairs in matched.items():
        changes[variant][str(length)] = _change(pairs)
    return dict(changes)


def match_tasks(first: EvalResult, second: EvalResult) -> list[tuple[int, int]]:
    """Return the places of the tasks that both have: by their ids, or by their order where a result has no ids."""
    if "task_ids" not in first.notes or "task_ids" not in second.notes:
        return [(place, place) for place in range(min(first.n, second.n))]
    there = {task_id: place for place, task_id in enumerate(second.notes["task_ids"])}
    return [(place, there[task_id]) for place, task_id in enumerate(first.notes["task_ids"]) if task_id in there]


def task_numbers(result: EvalResult) -> Mapping[str, Sequence[float | None]]:
    """Return the numbers by task beside the scores; a measure replaces our own number of the same name."""
    tokens = {} if result.policy_tokens is None else {"policy_tokens": result.policy_tokens}
    return {"turns": result.turns, **tokens, **result.measures}


def _change(pairs: Sequence[Matched]) -> dict[str, Any]:
    """Return the change of every score and, under `measures`, of every other number."""
    ids = [[ours.question_ids[i] for i, _ in places] for ours, _, places in pairs if ours.question_ids]
    tasks = ids if len(ids) == len(pairs) else None
    change: dict[str, Any] = {}
    for metric in pairs[0][0].scores:
        if all(metric in ours.scores and metric in other.scores for ours, other, _ in pairs):
            first = [[ours.scores[metric][i] for i, _ in places] for ours, _, places in pairs]
            second = [[other.scores[metric][j] for _, j in places] for _, other, places in pairs]
            change[metric] = difference_ci(first, second, tasks=tasks).to_json()
    change["measures"] = {}
    for name in task_numbers(pairs[0][0]):
        by_seed = [_differences(name, *pair) for pair in pairs]
        if all(by_seed):
            differences = [[*of_seed.values()] for of_seed in by_seed]
            known = tasks and [[named[k] for k in of_seed] for named, of_seed in zip(tasks, by_seed, strict=True)]
            change["measures"][name] = paired_ci(differences, tasks=known).to_json()
    return change


def _differences(name: str, ours: EvalResult, other: EvalResult, places: Sequence[tuple[int, int]]) -> dict[int, float]:
    """Return the differences of a number over the tasks for which both know it, by the number of their pair."""
    first, second = task_numbers(ours).get(name), task_numbers(other).get(name)
    if first is None or second is None:
        return {}
    known = ((number, first[i], second[j]) for number, (i, j) in enumerate(places))
    return {number: a - b for number, a, b in known if a is not None and b is not None}
