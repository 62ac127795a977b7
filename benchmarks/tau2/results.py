"""The results of an evaluation as files: tau2.json, tau2.md, EvalResults for the report, and tau2's own result files.

`tau2 view` and `tau2 evaluate-trajs` read official/VARIANT_DOMAIN.json. A conversation that failed is in it as tau2's
`infrastructure_error`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from agentic.toolorchestra.tau2.client import Workers
from benchmarks.harness.plan import EvalCell
from benchmarks.harness.run import Samples, build_result
from benchmarks.harness.samples import flat, read_samples
from benchmarks.harness.tables import counts_text, estimate_text
from benchmarks.tau2.published import ALL
from benchmarks.tau2.statistics import Tau2Statistics, read_trial, tau2_statistics
from benchmarks.tau2.tasks import DOMAINS
from core.report.table import markdown
from core.runs.evaluation import EvalResult
from core.runs.files import Record, write_json, write_text
from core.runs.run_folder import RunFolder


def tau2_result(cell: EvalCell, samples: Samples) -> EvalResult:
    """Build the result of one variant on one domain: scores and measures are a task's means over its trials."""

    def means(value: Callable[[Record], float]) -> list[float]:
        return [fmean(map(value, trials)) for trials in samples]

    stats = tau2_statistics([read_trial(record) for record in flat(samples)])
    return build_result(
        cell,
        samples,
        scores={"official": means(lambda record: read_trial(record).solved)},
        measures={
            "cost": means(lambda record: read_trial(record).cost),
            "turns": means(lambda record: len(record["turns"])),
            "policy_tokens": means(lambda record: record["policy_tokens"]),
        },
        notes=summarize_variant(stats),
    )


def read_statistics(folder: RunFolder) -> dict[str, Tau2Statistics]:
    """Return variant -> statistics over all its complete domains in the folder, of this call and earlier ones.

    Where one domain has fewer trials than another, so many are taken of each.
    """
    by_variant: dict[str, list[EvalResult]] = {}
    played = [result for result in folder.evaluations() if result.data != ALL]
    for result in sorted(played, key=lambda result: DOMAINS.index(result.data.removeprefix("tau2-"))):
        by_variant.setdefault(result.variant, []).append(result)
    found = {}
    for variant, results in by_variant.items():
        trials = min(result.notes["repeats"] for result in results)
        records = [record for result in results for record in read_samples(folder, result, trials)]
        found[variant] = tau2_statistics([read_trial(record) for record in records])
    return found


def summarize_variant(stats: Tau2Statistics) -> dict[str, Any]:
    """Return all numbers of one variant, as JSON."""
    passes = {
        f"pass^{k}": {name: estimate.to_json() for name, estimate in by_group.items()}
        for k, by_group in stats.pass_hat.items()
    }
    return {**{name: value for name, value in asdict(stats).items() if name != "pass_hat"}, **passes}


def write_results(
    folder: Path, variants: Mapping[str, Tau2Statistics], about: Mapping[str, Any], notes: Sequence[str]
) -> str:
    """Write tau2.json and tau2.md, and return the text of tau2.md.

    `about` is tau2's version, `notes` say how the installation differs from the pinned one.
    """
    write_json(
        folder / "tau2.json",
        {
            "tau2": dict(about),
            "departures": list(notes),
            "variants": {variant: summarize_variant(stats) for variant, stats in variants.items()},
        },
    )
    parts = ["# tau2-bench " + str(about["version"])]
    for variant, stats in variants.items():
        header = ["", *(f"pass^{k}" for k in stats.pass_hat), "tasks"]
        sizes = {**stats.tasks, "micro": sum(stats.tasks.values()), "macro": sum(stats.tasks.values())}
        rows = [
            [name, *(estimate_text(stats.pass_hat[k][name]) for k in stats.pass_hat), str(size)]
            for name, size in sizes.items()
        ]
        calls = ", ".join(f"{name} {n:.2f}" for name, n in stats.calls.items()) or "none"
        parts += [
            f"## {variant}: % with 95% intervals over tasks, {stats.trials} trial(s)",
            markdown(header, *rows),
            f"Infrastructure errors: {counts_text(stats.errors)}. Ended by: {counts_text(stats.terminations)}. "
            f"Graded without a judge of assertions: {stats.not_judged}. Per conversation ${stats.cost:.4f}; experts "
            f"called: {calls}; conversations by number of such calls: {counts_text(stats.histogram)}.",
        ]
    if notes:
        parts += ["Departures:", "\n".join(f"- {note}" for note in notes)]
    text = "\n\n".join(parts) + "\n"
    write_text(folder / "tau2.md", text)
    return text


async def write_official(
    folder: Path, workers: Workers, records: Sequence[Record], limits: Mapping[str, int], who: Mapping[str, Any]
) -> Path:
    """Write tau2's own results file of one variant on one domain. `who` has `agent` and `user`, as in tau2's info."""
    domain = records[0]["data"].removeprefix("tau2-")
    path = folder / "official" / f"{records[0]['variant']}_{domain}.json"
    path.parent.mkdir(exist_ok=True)
    info = {
        **limits,
        **who,
        "domain": domain.removesuffix("-solo"),
        "num_trials": len({record["repeat"] for record in records}),
        "seed": None,
        "git_commit": (await workers.pick().call("about"))["commit"] or "unknown",
    }
    tasks = list(dict.fromkeys(record["tau2_id"] for record in records))
    simulations = [_simulation(record) for record in records]
    await workers.pick().call("save", path=str(path), info=info, tasks=tasks, simulations=simulations)
    return path


def _simulation(record: Record) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    failed = {
        "id": f"failed-{record['step']}-{record['tau2_id']}",
        "task_id": record["tau2_id"],
        "start_time": now,
        "end_time": now,
        "duration": 0.0,
        "termination_reason": "infrastructure_error",
        "messages": [],
        "info": {"error": record["failure"]},
    }
    simulation = dict(record["simulation"] or failed)
    return {**simulation, "trial": record["repeat"], "agent_cost": record["metrics"].get("cost")}
