"""This module builds summary.json: what a run folder holds, in one object that other programs can rely on.

    {"method", "preset", "seeds": [0, 1, 2], "score": "official", "data": "niah_multikey_2",
     "variants": {variant: {"7168": {
         "score": {"mean", "ci95": [low, high], "n"}, "official": {...}, "strict": {...}, "measures": {name: mean},
         "seeds", "models", "published_as", "protocol", "turns_per_task", "tokens_per_task", "policy_tokens_per_task",
         "policy_tokens_per_1k_tokens", "seconds_per_1k_tokens", "failures": {kind: count},
         "tasks", "by": {label: {value: {"tasks", "score", "official", "strict", "measures"}}}}}},
     "retention": {variant: r per turn}, "retention_fit": {variant: {...}},
     "changes": {variant: {"7168": {"official": {"mean", "ci95", "n"}, ..., "measures": {name: {...}}}}},
     "other_data": {data: {"variants", "retention", "retention_fit", "changes"}},
     "reward": {seed: {"first", "last", "steps"}}, "seconds": {part: s},
     "counts": {"failures": {kind: n}, "drift": {kind: n}},
     "health": {seed: [{"sign", "first": step, "last": step, "steps": n, "text", "fix"}]},
     "checkpoints": {seed: [paths inside the folder]}, "trained": {seed: path of the trained policy},
     "kept": {seed: {"step", "rewards": {step: held-out reward}}},
     "departures": [...]}

- `variants` belongs to the data set `data`; the other data sets of the run are under `other_data`.
- `score` repeats `official`. Data without lengths has the one length 0.
- `n` counts the scores of all seeds, `tasks` the tasks: one that seeds share once. Intervals take the tasks
  of one question together, such as those of a prompt at four prices.
- `changes` are those from a variant to `trained`, paired by seed and task.
- `models` has one model where seeds only sample, and several where each seed was trained. `published_as` is the
  published model that it stands for; `protocol` is the published protocol that all its results follow, or null.
- `seconds` are by the clock: what ran at the same time counts once. The evaluations of a training belong to `train`.
- `health` lists the signs that something was wrong with the training (core/runs/health.py). `text` is that of the last
  step; a seed without any has an empty list, and one that was not looked at is missing.
- `kept` has entries with `run.keep: best` alone: the step of the trained policy, and the evaluations that chose it.
- `counts` holds failures and every metric of `core.types.COUNTED_METRICS`.
- Turns and tokens are of all repeats of a task; a failed one counts as 0 of both.
- A measure is a mean over the tasks that have it. A failed task has none: its cost is not known. `cost_per_solved` is
  the known cost of all tasks, divided by the sum of the official scores.
- "Per 1K tokens" means per 1,000 tokens of documents. Policy tokens are prompts and completions.
- core/report/stats.py explains the intervals and the fit.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

from core.report.stats import difference_ci, fit_retention, mean_ci, paired_ci
from core.runs.evaluation import MODEL_VARIANTS, EvalResult
from core.runs.files import Record
from core.runs.health import FIXES
from core.runs.run_folder import RunFolder, flatten, list_checkpoints
from core.types import COUNTED_METRICS, PARTIAL_METRICS

REWARD_STEPS = 10
"""The first and the last reward are means over so many steps, or over half of a shorter training."""

WEIGHTS = ("weights", "role_weights")
OF_VARIANTS = ("tasks", "tokenizer", "dtype", "window.prompt_tokens", "window.answer_tokens")
"""Names conditions in which a variant may differ from `trained`: changes pair the tasks that both have."""

Selection = Sequence[tuple[EvalResult, Sequence[int]]]
"""Holds the results of several seeds, each with the indices of the tasks to count."""

Matched = tuple[EvalResult, EvalResult, Sequence[tuple[int, int]]]
"""Holds two results of one seed, and the places in them of each task that both have."""


def build_summary(folder: RunFolder, headline: str | None = None) -> dict[str, Any]:
    """Build the object that the module describes. `headline` names `data`; by default it is the one with most results.

    Raises ValueError when `headline` was not evaluated, or a file of the folder is broken.
    """
    by_data: dict[str, list[EvalResult]] = defaultdict(list)
    for result in folder.evaluations():
        by_data[result.data].append(result)
    if headline is not None and headline not in by_data:
        raise ValueError(f"{folder.path} has no evaluation of {headline!r}; it has: {', '.join(by_data) or 'none'}")
    data = headline or max(by_data, key=lambda name: len(by_data[name]), default=None)
    sections = {name: summarize(results) for name, results in by_data.items()}
    metrics = {seed: folder.read_metrics(seed) for seed in folder.seeds}
    steps = [record for records in metrics.values() for record in records]
    trained = {seed: folder.find_trained(seed) for seed in folder.seeds}
    results = list(chain(*by_data.values()))
    mixed = [f"{r.data}, {r.variant}: {text}" for r in results if (text := r.notes.get("mixed_weights"))]
    unfinished = [*folder.list_unfinished(), *list_uneven(by_data, trained), *list_older(folder, by_data, trained)]
    published = folder.published
    departures = join_departures(results)
    return {
        "method": folder.config.get("method"),
        "preset": folder.config.get("preset"),
        "seeds": folder.seeds or sorted({result.seed for results in by_data.values() for result in results}),
        "score": "official",
        "data": data,
        **(sections[data] if data else summarize(())),
        "other_data": {name: section for name, section in sections.items() if name != data},
        "reward": {str(seed): first_and_last_reward(records) for seed, records in metrics.items()},
        "seconds": measure_parts([*steps, *folder.clock]),
        "counts": {name: count_events(metrics.values(), name) for name in ("failures", *COUNTED_METRICS)},
        "health": {
            str(seed): list_signs(records) for seed, records in metrics.items() if any("health" in r for r in records)
        },
        "checkpoints": {
            str(seed): [str(path.relative_to(folder.path)) for path in list_checkpoints(folder.checkpoints_path(seed))]
            for seed in folder.seeds
        },
        "trained": {str(seed): path and str(path.relative_to(folder.path)) for seed, path in trained.items()},
        "kept": {str(seed): kept for seed, records in metrics.items() if (kept := _find_kept(folder, seed, records))},
        "departures": list(
            dict.fromkeys([*unfinished, *mixed, *published["of_recipe"], *published["departures"], *departures])
        ),
    }


def list_older(
    folder: RunFolder, by_data: Mapping[str, Sequence[EvalResult]], trained: Mapping[int, Path | None]
) -> Iterator[str]:
    """Say which results of `trained`, sampled or greedy, are of another checkpoint than the trained policy."""
    for result in (r for results in by_data.values() for r in results if r.variant in ("trained", "trained-greedy")):
        now, evaluated = trained.get(result.seed), Path(result.model)
        if now is not None and evaluated.parts[:1] == (f"seed-{result.seed}",) and folder.path / evaluated != now:
            name = f"{result.data}, {result.variant}: seed {result.seed}"
            yield f"{name} was evaluated at {evaluated.name}, and has {now.name} now"


def list_uneven(by_data: Mapping[str, Sequence[EvalResult]], trained: Mapping[int, Path | None]) -> Iterator[str]:
    """Say what results that stand for one number, or that a change compares, do not share: by what they were had.

    A seed that has trained should be in each of them. Variants may differ in weights, and greedy ones in sampling.
    """
    for data, results in by_data.items():
        seeds = {result.seed for result in results} | {seed for seed, path in trained.items() if path}
        cells: dict[tuple[str, int], list[EvalResult]] = defaultdict(list)
        for result in results:
            cells[result.variant, result.length].append(result)
        for (variant, length), own in cells.items():
            name = f"{data}, {variant}" + (f" at length {length}" if length else "")
            if missing := seeds - {result.seed for result in own}:
                yield f"{name}: seed {', '.join(map(str, sorted(missing)))} was not evaluated"
            uneven = _list_unlike(own)
            yield from (f"{name}: {key} is not the same for all seeds" for key in uneven)
            trained_here = cells.get(("trained", length), own)
            apart = {*uneven, *_list_unlike(trained_here), *OF_VARIANTS}
            for key in _list_unlike([*trained_here, *own]):
                if key not in apart and not (variant.endswith("-greedy") and key.startswith("sampling.")):
                    yield f"{name}: {key} is another than that of trained, or unknown"


def _list_unlike(results: Sequence[EvalResult]) -> dict[str, None]:
    """List the conditions, but for weights, that are not those of all these results; files of code are one."""
    had = [flatten({**r.settings, "sampling": r.sampling, "tasks": r.n}) for r in results]
    unlike = (key for key in dict.fromkeys(chain(*had)) if any(one.get(key) != had[0].get(key) for one in had))
    tops = {key: key.partition(".")[0] for key in unlike}
    told = (top if top.startswith("code") else key for key, top in tops.items() if top not in WEIGHTS)
    return dict.fromkeys(told)


def join_departures(results: Iterable[EvalResult]) -> Iterator[str]:
    """Yield every departure that the results note, once.

    One that not all compared variants of its data share begins with the variants that have it.
    """
    compared = [result for result in results if "departures" in result.notes]
    found: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
    for result in compared:
        for line in result.notes["departures"]:
            found[line][result.data, result.variant] = None
    for line, cells in found.items():
        data, variants = {name for name, _ in cells}, dict.fromkeys(variant for _, variant in cells)
        shared = cells.keys() == {(result.data, result.variant) for result in compared if result.data in data}
        yield line if shared else f"{', '.join(variants)}: {line}"


def summarize(results: Sequence[EvalResult]) -> dict[str, Any]:
    """Return `variants`, `retention`, `retention_fit` and `changes` for the results of one data set."""
    cells: dict[str, dict[int, list[EvalResult]]] = defaultdict(lambda: defaultdict(list))
    for result in results:
        cells[result.variant][result.length].append(result)
    variants = {
        variant: {str(length): _summarize_cell(cells[variant][length]) for length in sorted(cells[variant])}
        for variant in sorted(cells, key=lambda variant: (*(variant != first for first in MODEL_VARIANTS), variant))
    }
    fits = {}
    for variant, lengths in variants.items():
        points = ((cell["turns_per_task"], cell["score"]["mean"], cell["tasks"]) for cell in lengths.values())
        fits[variant] = asdict(fit_retention(*zip(*points, strict=True)))
    return {
        "variants": variants,
        "retention": {variant: fit["per_turn"] for variant, fit in fits.items()},
        "retention_fit": fits,
        "changes": compute_changes(results),
    }


def measure_parts(records: Iterable[Record]) -> dict[str, float]:
    """Measure how long each part of a run took by the clock: `seconds` until `time`; what overlaps counts once.

    A record without a time, of an earlier version, counts in full.
    """
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    total: dict[str, float] = defaultdict(float)
    for record in records:
        part = "train" if record.get("stage") == "eval" else record.get("stage") or record["part"]
        seconds, end = record.get("seconds") or 0.0, record.get("time")
        if end is None:
            total[part] += seconds
        else:
            spans[part].append((end - seconds, end))
    for part in spans:
        latest = -math.inf
        for begin, end in sorted(spans[part]):
            total[part] += max(0.0, end - max(begin, latest))
            latest = max(latest, end)
    return {part: value for part, value in total.items() if value}


def first_and_last_reward(records: Sequence[Record]) -> dict[str, float | None]:
    """Return the mean training reward of the first and of the last steps; both are None without any reward."""
    rewards = [r["reward"] for r in records if r["stage"] == "train" and r.get("reward") is not None]
    if not rewards:
        return {"first": None, "last": None, "steps": 0}
    steps = max(1, min(REWARD_STEPS, len(rewards) // 2))  # so that no step is in both, but an only one
    return {"first": math.fsum(rewards[:steps]) / steps, "last": math.fsum(rewards[-steps:]) / steps, "steps": steps}


def count_events(metrics: Iterable[Sequence[Record]], name: str) -> dict[str, int]:
    """Sum a counted metric by kind over the training steps; a plain number has the kind `total`."""
    counts: Counter[str] = Counter()
    for record in (record for records in metrics for record in records if record["stage"] == "train"):
        value = record.get(name) or 0
        counts.update(value if isinstance(value, Mapping) else {"total": value})
    return {kind: int(count) for kind, count in counts.items() if count}


def list_signs(records: Sequence[Record]) -> list[dict[str, Any]]:
    """List the signs of bad health of one training, in their order of appearance."""
    signs: dict[str, dict[str, Any]] = {}
    for record in records:
        for name, text in record.get("health", {}).items():
            step = record["step"]
            before = signs.get(name, {"first": step, "steps": 0})
            told = {"last": step, "steps": before["steps"] + 1, "text": text, "fix": FIXES.get(name, "")}
            signs[name] = {"sign": name, "first": before["first"], **told}
    return list(signs.values())


def _find_kept(folder: RunFolder, seed: int, records: Sequence[Record]) -> dict[str, Any] | None:
    """Return which step `run.keep: best` chose and by which rewards; None where it chose none."""
    path = folder.find_trained(seed)
    rewards = {r["step"]: r["reward"] for r in records if r["stage"] == "eval" and "reward" in r}
    step = None if path is None else int(path.name.removeprefix("step-"))
    if step not in rewards or folder.config.get("run", {}).get("keep") != "best":
        return None
    return {"step": step, "rewards": {str(step): reward for step, reward in rewards.items()}}


def _summarize_cell(results: Sequence[EvalResult]) -> dict[str, Any]:
    """Summarize one variant at one length over its seeds."""
    tasks = sum(result.n for result in results)
    tokens = sum(sum(result.document_tokens) for result in results)
    counts = [result.policy_tokens for result in results]
    policy_tokens = None if None in counts else sum(map(sum, counts))  # type: ignore[arg-type]
    failures: Counter[str] = Counter()
    for result in results:
        failures.update(result.failures)
    labels = dict.fromkeys(label for result in results for label in result.labels)
    return {
        **_summarize_tasks([(result, range(result.n)) for result in results]),
        "seeds": [result.seed for result in results],
        "models": list(dict.fromkeys(result.model for result in results)),
        "published_as": _common(result.notes.get("published_as") or Path(result.model).name for result in results),
        "protocol": _common(result.notes.get("protocol") for result in results),
        "turns_per_task": sum(sum(result.turns) for result in results) / tasks,
        "tokens_per_task": tokens / tasks,
        "policy_tokens_per_task": None if policy_tokens is None else policy_tokens / tasks,
        "policy_tokens_per_1k_tokens": 1000 * policy_tokens / tokens if tokens and policy_tokens is not None else None,
        "seconds_per_1k_tokens": 1000 * sum(result.seconds for result in results) / tokens if tokens else None,
        "failures": dict(failures),
        "by": {label: _split_by_label(results, label) for label in labels},
    }


def _summarize_tasks(selection: Selection) -> dict[str, Any]:
    """Return the scores of the selected tasks with their intervals, and the means of their measures."""
    ids = [[r.question_ids[i] for i in indices] for r, indices in selection if r.question_ids]
    tasks = ids if len(ids) == len(selection) else None
    scores = {}
    for metric in selection[0][0].scores:
        if all(metric in result.scores for result, _ in selection):
            by_seed = [[result.scores[metric][i] for i in indices] for result, indices in selection]
            scores[metric] = mean_ci(by_seed, tasks=tasks).to_json()
    measures: dict[str, list[float]] = defaultdict(list)
    names = dict.fromkeys(name for result, _ in selection for name in result.measures)
    for result, indices in selection:
        columns = result.measures.values()
        # What no task of a seed has, such as an end at a limit, is 0 for each that did not fail.
        absent = {i: 0.0 if any(column[i] is not None for column in columns) else None for i in indices}
        for name in names:
            none = dict.fromkeys(indices) if name.startswith(PARTIAL_METRICS) else absent
            values = result.measures.get(name, none)
            measures[name] += [value for i in indices if (value := values[i]) is not None]
    means = {name: math.fsum(values) / len(values) for name, values in measures.items() if values}
    solved = math.fsum(result.scores["official"][i] for result, indices in selection for i in indices)
    if "cost" in means and solved:
        means["cost_per_solved"] = math.fsum(measures["cost"]) / solved
    task_ids = {r.notes["task_ids"][i] for r, indices in selection for i in indices} if tasks else ()
    count = len(task_ids) or sum(len(indices) for _, indices in selection)
    return {"tasks": count, "score": scores["official"], **scores, "measures": means}


def _common(values: Iterable[Any]) -> Any:
    """Return the value that all have, or None."""
    different = set(values)
    return different.pop() if len(different) == 1 else None


def _split_by_label(results: Sequence[EvalResult], label: str) -> dict[str, Any]:
    """Map each value of a label to the numbers of the tasks that have it."""
    selections: dict[str, list[tuple[EvalResult, list[int]]]] = defaultdict(list)
    for result in results:
        values = result.labels.get(label, ())
        for value in dict.fromkeys(values):
            selections[value].append((result, [i for i, other in enumerate(values) if other == value]))
    return {value: _summarize_tasks(selections[value]) for value in sorted(selections)}


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
