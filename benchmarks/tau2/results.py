"""The numbers of an evaluation as files: tau2.json, tau2.md, EvalResults for the report, and tau2's own result files.

official/ARM_DOMAIN.json is what `tau2 view` and `tau2 evaluate-trajs` read. A conversation that failed is in it as
tau2's `infrastructure_error`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

from agentic.toolorchestra.tau2.client import Workers
from benchmarks.tau2.statistics import Statistics, Trial, statistics
from core.report.stats import Estimate
from core.report.table import markdown
from core.runs.evaluation import EvalResult
from core.runs.files import Record, write_json, write_text
from core.runs.run_folder import RunFolder
from core.types import CALLS

PUBLISHED = (
    # name, our variant, data, per cent, source
    ("Orchestrator-8B", "toolorchestra-compat", "retail", 84.2, "tau2 leaderboard, 2025-12-02, 1 trial, tau2 0.1.3"),
    ("Orchestrator-8B", "toolorchestra-compat", "airline", 56.0, "tau2 leaderboard, 2025-12-02, 1 trial, tau2 0.1.3"),
    ("Orchestrator-8B", "toolorchestra-compat", "telecom", 88.6, "tau2 leaderboard, 2025-12-02, 1 trial, tau2 0.1.3"),
)
DEPARTURES = (
    "tau2 1.0.1: tasks of airline and retail were corrected and retail is graded otherwise than in 0.1.3",
    "the simulated user is the model named in config.yaml; published: gpt-5",
    "a malformed call, or one that breaks a tool's schema, is shown to the agent and does not reach tau2",
    "several calls in one completion are as many messages to tau2",
    "toolorchestra-compat: every expert is given tau2's own policy; there Qwen3-32B is given the orchestrator's",
    "toolorchestra-compat: nothing is added to what gpt-5 reads; there it is told that the last message may be wrong",
    "conversations that failed count as not solved; tau2's tool leaves them out",
)


def published_rows() -> list[dict[str, Any]]:
    """Rows for `RunFolder.save_published`."""
    return [
        {
            "name": name,
            "data": f"tau2-{domain}",
            "length": 0,
            "score": percent / 100,
            "source": source,
            "variant": variant,
        }
        for name, variant, domain, percent, source in PUBLISHED
    ]


def read_trial(record: Record) -> Trial:
    """What the statistics need of a record."""
    failed, metrics = record["status"] == "failed", record["metrics"]
    simulation = record["simulation"] or {}
    return Trial(
        domain=record["data"],
        task_id=record["task_id"],
        trial=record["step"],
        solved=not failed and abs(record["score"] - 1.0) < 1e-6,
        failure=record["failure"],
        termination=simulation.get("termination_reason", "infrastructure_error"),
        judged=not (simulation.get("info") or {}).get("assertions_not_judged", False),
        cost=metrics.get("cost", 0.0),
        calls={name.removeprefix(CALLS): n for name, n in metrics.items() if name.startswith(CALLS)},
    )


def eval_result(records: Sequence[Record], stats: Statistics, model: str) -> EvalResult:
    """Of one variant on one domain, about tasks: scores and measures are a task's means over its trials."""
    of: dict[str, list[Record]] = {}
    for record in records:
        of.setdefault(record["task_id"], []).append(record)
    held = list(of.values())
    lost = [trials[0]["failure"] for trials in held if all(record["status"] == "failed" for record in trials)]
    return EvalResult(
        variant=records[0]["variant"],
        data=f"tau2-{records[0]['data']}",
        length=0,
        seed=0,
        n=len(held),
        scores={"official": [sum(read_trial(record).solved for record in trials) / len(trials) for trials in held]},
        turns=[sum(len(record["turns"]) for record in trials) for trials in held],
        document_tokens=[0] * len(held),
        seconds=sum(record["seconds"] for record in records),
        failures={kind: lost.count(kind) for kind in lost},
        model=model,
        policy_tokens=[sum(record["policy_tokens"] for record in trials) for trials in held],
        measures={
            "cost": [fmean(read_trial(record).cost for record in trials) for trials in held],
            "turns": [fmean(len(record["turns"]) for record in trials) for trials in held],
            "policy_tokens": [fmean(record["policy_tokens"] for record in trials) for trials in held],
        },
        notes={
            "task_ids": list(of),
            "turns_and_policy_tokens_are": "of all trials of a task together",
            "seconds_are": "of all conversations together, however many ran at once",
            **summary(stats),
        },
    )


def all_statistics(folder: RunFolder, records: Sequence[Record]) -> dict[str, Statistics]:
    """Variant -> statistics of every domain in the folder that is complete, this call's and earlier ones'; where one had
    fewer trials than another, of so many trials."""
    domains: dict[str, dict[str, EvalResult]] = {}
    for result in folder.evaluations():
        domains.setdefault(result.variant, {})[result.data.removeprefix("tau2-")] = result
    found = {}
    for variant, of_domain in domains.items():
        trials = min(result.notes["trials"] for result in of_domain.values())
        task_ids = {domain: set(result.notes["task_ids"]) for domain, result in of_domain.items()}
        found[variant] = statistics(
            [
                read_trial(record)
                for record in records
                if record["variant"] == variant
                and record["task_id"] in task_ids.get(record["data"], ())
                and record["step"] < trials
            ]
        )
    return found


def summary(stats: Statistics) -> dict[str, Any]:
    """All numbers of one variant, as JSON."""
    passes = {f"pass^{k}": {name: _json(e) for name, e in of.items()} for k, of in stats.pass_hat.items()}
    return {**{name: value for name, value in asdict(stats).items() if name != "pass_hat"}, **passes}


def write_results(
    folder: Path, variants: Mapping[str, Statistics], about: Mapping[str, Any], notes: Sequence[str]
) -> str:
    """Write tau2.json and tau2.md; the text of the latter. `about` is tau2's version, `notes` what differs from it."""
    write_json(
        folder / "tau2.json",
        {
            "tau2": dict(about),
            "departures": list(notes),
            "variants": {variant: summary(stats) for variant, stats in variants.items()},
        },
    )
    parts = ["# tau2-bench " + str(about["version"])]
    for variant, stats in variants.items():
        header = ["", *(f"pass^{k}" for k in stats.pass_hat), "tasks"]
        sizes = {**stats.tasks, "micro": sum(stats.tasks.values()), "macro": sum(stats.tasks.values())}
        rows = [
            [name, *(_interval(stats.pass_hat[k][name]) for k in stats.pass_hat), str(size)]
            for name, size in sizes.items()
        ]
        calls = ", ".join(f"{name} {n:.2f}" for name, n in stats.calls.items()) or "none"
        parts += [
            f"## {variant}: % with 95% intervals over tasks, {stats.trials} trial(s)",
            markdown(header, *rows),
            f"Infrastructure errors: {_counts(stats.errors)}. Ended by: {_counts(stats.terminations)}. "
            f"Graded without a judge of assertions: {stats.not_judged}. Per conversation ${stats.cost:.4f}; experts "
            f"called: {calls}; conversations by number of such calls: {_counts(stats.histogram)}.",
        ]
    if notes:
        parts += ["Departures:", "\n".join(f"- {note}" for note in notes)]
    text = "\n\n".join(parts) + "\n"
    write_text(folder / "tau2.md", text)
    return text


async def write_official(
    folder: Path, workers: Workers, records: Sequence[Record], limits: Mapping[str, int], who: Mapping[str, Any]
) -> Path:
    """tau2's own results file of one variant on one domain. `who` has `agent` and `user`, as tau2's info has them."""
    domain = records[0]["data"]
    path = folder / "official" / f"{records[0]['variant']}_{domain}.json"
    path.parent.mkdir(exist_ok=True)
    info = {
        **limits,
        **who,
        "domain": domain.removesuffix("-solo"),
        "num_trials": len({record["step"] for record in records}),
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
    return {**simulation, "trial": record["step"], "agent_cost": record["metrics"].get("cost")}


def _json(estimate: Estimate) -> dict[str, Any]:
    return {"mean": estimate.mean, "ci95": [estimate.low, estimate.high]}


def _interval(estimate: Estimate) -> str:
    return f"{100 * estimate.mean:.1f} ({100 * estimate.low:.1f} to {100 * estimate.high:.1f})"


def _counts(counts: Mapping[Any, int]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"
