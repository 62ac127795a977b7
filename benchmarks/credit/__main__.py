"""Train tiny worlds under credit rules side by side, and write the table.

    .venv/bin/python -m benchmarks.credit [--worlds NAME ...] [--rules NAME ...] [--out runs/credit]

table.yaml names rules, worlds, rates and seeds. A world's policy is warm-started once, and every cell starts from it.
Each cell trains one seed at each rate first; the rate with the highest dev reward, averaged over the thirds of the
budget, trains the seeds of the table. Their scores are of the test tasks, one rollout each, after each third. As many
cells train at a time as there are cores; what a run prints is in a file beside its folder. Killed at any moment, the
same command goes on.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from pydantic import PositiveInt

from benchmarks.harness.jobs import TOKENTRUE, call, run_all, show_score, train
from benchmarks.harness.statistics import score_seeds
from core.config import Section
from core.report.stats import Estimate, mean_ci
from core.report.table import markdown
from core.runs.files import write_text
from core.runs.record import read_rollouts
from core.runs.run_folder import RunFolder

THIRDS = 3
TEST_TASKS = 256
REJECTION_RATE = 5e-4


class TinyWorld(Section):
    """Names a tiny world: its preset, steps of a run, the file of test tasks, and rules that it has no room for.

    `keys` are keys of the recipe of every run, in which {out} stands for the run's folder.
    """

    method: str
    preset: str = "tiny"
    steps: PositiveInt
    test: str
    keys: Mapping[str, Any] = {}
    left_out: Mapping[str, str] = {}
    baselines: tuple[str, ...] = ()
    rules: dict[str, dict[str, Any]] | None = None

    def place_keys(self, out: Path) -> dict[str, Any]:
        """Return `keys` of the run in a folder."""
        placed: dict[str, Any] = json.loads(json.dumps(self.keys).replace("{out}", str(out)))
        return placed


class Plan(Section):
    """Holds table.yaml."""

    rates: list[float]
    tuning_seed: int
    seeds: list[int]
    rules: dict[str, dict[str, Any]]
    worlds: dict[str, TinyWorld]

    def list_rules(self, world: str) -> dict[str, dict[str, Any]]:
        return self.worlds[world].rules or self.rules


def main(arguments: Sequence[str] | None = None) -> int:
    plan = read_plan()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.credit", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--worlds", nargs="+", choices=plan.worlds, default=list(plan.worlds))
    parser.add_argument("--rules", nargs="+", default=[], metavar="NAME", help="default: all of a world")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/credit"), help="folder of the runs (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    for name in options.worlds:
        train_world(plan, name, options.rules, options.out / name)
    text = write_table(plan, options.out)
    write_text(options.out / "table.md", text)
    print(text)
    return 0


def read_plan() -> Plan:
    return Plan.model_validate(yaml.safe_load(Path(__file__).with_name("table.yaml").read_text(encoding="utf-8")))


def train_world(plan: Plan, name: str, rules: Sequence[str], out: Path) -> None:
    """Train the cells of a world that are not trained yet, and what they are compared with."""
    world = plan.worlds[name]
    start = out / "start"
    run(world, start, {"run.steps": 1, "run.seeds": [plan.tuning_seed]})  # it needs the warm start alone
    given = {"model.path": str(start / "warm_start"), "warm_start": None, "run.steps": world.steps}
    given |= {"run.eval_every": world.steps // THIRDS, "run.save_every": world.steps, "run.parallel_seeds": 1}

    def train_rule(rule: str, changes: Mapping[str, Any]) -> None:
        placed = {k: v.format(start=start / "warm_start") if isinstance(v, str) else v for k, v in changes.items()}
        cell = {**given, **placed}
        for rate in plan.rates:
            run(world, out / f"{rule}-{rate:g}", {**cell, "optimizer.lr": rate, "run.seeds": [plan.tuning_seed]})
        test = {"data.eval": world.test, "run.eval_tasks": TEST_TASKS, "run.seeds": plan.seeds}
        run(world, out / rule, {**cell, **test, "optimizer.lr": choose_rate(plan, out, rule)})

    def train_baselines() -> None:
        settings = {**given, "run.seeds": plan.seeds, "rejection.lr": REJECTION_RATE}
        for baseline in world.baselines:
            run(world, out / "baselines", settings, baseline)
        if world.baselines:
            evaluate_baselines(world, out / "baselines")

    wanted = {rule: changes for rule, changes in plan.list_rules(name).items() if not rules or rule in rules}
    rules_left = [rule for rule in wanted if rule not in world.left_out]
    run_all([*(partial(train_rule, rule, wanted[rule]) for rule in rules_left), train_baselines])  # one core each


def run(world: TinyWorld, out: Path, settings: Mapping[str, Any], baseline: str | None = None) -> None:
    """Train a run of a world's preset into a folder, unless it is done. `settings` are keys of the recipe."""
    train(world.method, world.preset, out, {**world.place_keys(out), **settings}, baseline)


def evaluate_baselines(world: TinyWorld, out: Path) -> None:
    """Play the test tasks by the baselines of a run, beside the services of its world."""
    words = ["evaluate", "heldout", world.method, "--run", str(out), "--data", f"test={world.test}"]
    words += ["--tasks", str(TEST_TASKS), "--variants", *world.baselines]
    for services, logs in world.place_keys(out).get("experiment.services", {}).items():
        words = ["serve", "services", services, "--logs", logs, "--", str(TOKENTRUE), *words]
    call(out, "evaluate", words)


def choose_rate(plan: Plan, out: Path, rule: str) -> float:
    """Return the rate with the highest mean dev reward after the thirds; the lowest one of equals."""

    def score(rate: float) -> float:
        records = RunFolder(out / f"{rule}-{rate:g}").read_metrics(plan.tuning_seed)
        return fmean(
            record["reward"]
            for record in records
            if record["stage"] == "eval" and record["step"] and "reward" in record
        )

    return max(plan.rates, key=score)


def write_table(plan: Plan, out: Path) -> str:
    """Return the tables of all worlds that have results."""
    head = ["rule", "rate", "untrained", *(f"after {third} of {THIRDS}" for third in range(1, THIRDS + 1)), "s a step"]
    parts = []
    for name, world in plan.worlds.items():
        if lines := list(_list_rows(plan, name, out / name)) if (out / name).is_dir() else []:
            about = f"{name}: {world.steps} steps, {len(plan.seeds)} seeds, {TEST_TASKS} test tasks, %"
            parts.append(f"{about}\n\n{markdown(head, *lines)}")
    return "\n\n".join(parts) + "\n"


def _list_rows(plan: Plan, name: str, out: Path) -> Iterator[list[str]]:
    world = plan.worlds[name]
    for rule in plan.list_rules(name):
        if rule in world.left_out:
            yield [rule, world.left_out[rule], *[""] * (THIRDS + 2)]
        elif (out / rule / ".run-done").exists():
            found = _score(plan, out / rule)
            scores = [found[third * world.steps // THIRDS] for third in range(THIRDS + 1)]
            steps = [r for s in plan.seeds for r in RunFolder(out / rule).read_metrics(s) if r["stage"] == "train"]
            seconds = fmean(record["seconds"] for record in steps)
            yield [rule, f"{choose_rate(plan, out, rule):g}", *map(show_score, scores), f"{seconds:.1f}"]
    results = RunFolder(out / "baselines").evaluations() if (out / "baselines").exists() else []
    for variant in world.baselines:
        of_variant = [result for result in results if result.variant == variant]
        if of_variant:
            yield [variant, "", *[""] * THIRDS, show_score(score_seeds(of_variant)), ""]


def _score(plan: Plan, out: Path) -> dict[int, Estimate]:
    """Return the mean score on the test tasks at each evaluated step, over tasks and seeds; a failed rollout has 0.

    The score is the metric `official`, or the reward of a method without it.
    """
    by_step: defaultdict[int, list[dict[str, float]]] = defaultdict(list)
    for seed in plan.seeds:
        of_seed: defaultdict[int, dict[str, float]] = defaultdict(dict)
        for rollout in read_rollouts(RunFolder(out).rollouts_path(seed)):
            if rollout.stage == "eval":
                of_seed[rollout.step][rollout.task_id] = rollout.metrics.get("official", rollout.reward or 0.0)
        for step, scores in of_seed.items():
            by_step[step].append(scores)
    return {
        step: mean_ci([[*of_seed.values()] for of_seed in by_seed], tasks=[[*of_seed] for of_seed in by_seed])
        for step, by_seed in by_step.items()
    }


if __name__ == "__main__":
    sys.exit(main())
