"""Evaluate an orchestrator on the real tau2-bench under one of three named protocols (protocols.py).

    tokentrue evaluate tau2 --protocol standard --model Qwen/Qwen3-8B --policy-url http://host:30000 \\
        --tau2-python TAU2/bin/python --tau2-data TAU2_DATA --trials 4 \\
        --set toolorchestra.models.user="{url: http://host:30001/v1, name: Qwen/Qwen3-32B}" --user user --judge user

README.md beside this file says how to get tau2-bench. Statistics are explained in results.py. Each conversation is
logged as it ends (benchmarks/harness/samples.py): the same command continues where a killed one stopped, and more
--trials add to what is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.environment import EnvironmentFault
from agentic.toolorchestra.rollout import SPEC
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import tau2_tasks
from benchmarks.harness.command import (
    EvalPlan,
    Evaluator,
    create_folder,
    make_evaluator_parser,
    positive,
    sampling_fields,
)
from benchmarks.harness.models import EvalModels
from benchmarks.harness.plan import EXPECTED_ERRORS, EvalCell, EvaluationError, drop_ports, tell_all_taken
from benchmarks.harness.published import compare_cells, read_scores, save_published
from benchmarks.harness.run import OpenVariant, evaluate_cell, open_agent, pool_results
from benchmarks.tau2.protocols import (
    ALL,
    COMPAT,
    NOTHING,
    PROTOCOLS,
    STANDARD,
    DoNothing,
    RecordedToolOrchestra,
    apply_protocol,
    our_settings,
    protocol,
)
from benchmarks.tau2.results import describe_results, read_statistics, tau2_result, write_official
from benchmarks.tau2.tasks import DOMAINS, list_departures
from core.runs.evaluation import EvalResult
from core.runs.files import Record, read_json, write_json
from core.runs.run_folder import RunFolder, flatten
from core.types import Task, Trajectory

LOCATION = ("python", "data", "processes")
"""Options of the world that no conversation follows from, so that a later call may change them."""
PLAYED = tuple(f"tau2-{domain}" for domain in DOMAINS[:3])
"""Names the data sets of the published scores."""
MARGIN = 3000
"""Tokens of the context that are left to what the chat template puts around messages and tools."""


@dataclass(frozen=True)
class Tau2Plan(EvalPlan):
    """Holds what a call evaluates. `cells` has a cell without tasks for each variant and domain."""

    recipe: ToolOrchestraRecipe
    split: str
    limit: int | None
    worlds: Mapping[str, Any]
    """Holds the options of Tau2EnvironmentFactory."""
    published_as: str | None = None
    """Names the published model that the plan's model stands for."""


def prepare(options: argparse.Namespace) -> Tau2Plan:
    """Turn the options into a plan, checked as far as possible without running anything."""
    variants = options.variants or [options.protocol, NOTHING]
    if options.temperature is None:
        options.temperature = 1.0 if options.protocol == COMPAT else 0.0
    if unknown := set(variants) - {options.protocol, NOTHING}:
        raise EvaluationError(
            f"variant {unknown.pop()!r}: the variants are the protocol, {options.protocol}, and {NOTHING}"
        )
    if options.protocol in variants and options.model is None:
        raise EvaluationError("no model: name it with --model (and --policy-url of a server that holds it)")
    if options.protocol in variants and options.user is None and set(options.domains) != {"telecom-solo"}:
        raise EvaluationError("nobody plays the user: --user NAME under toolorchestra.models, or `scripted` for tests")
    overrides = [*options.overrides, *([f"model.path={options.model}"] if options.model else [])]
    recipe = SPEC.load(options.preset, overrides)
    for role in (options.user, options.judge):
        if role not in (None, "scripted", *recipe.toolorchestra.models):
            raise EvaluationError(f"{role!r} is not under toolorchestra.models; add it with --set")
    worlds = {name: getattr(options, name) for name in ("processes", "user", "judge", "max_steps", "max_errors")}
    worlds |= {"python": options.tau2_python, "data": options.tau2_data}
    models = EvalModels.from_options(options, recipe, "tau2")
    if options.protocol in variants:
        context = models.limit(options.model) - recipe.toolorchestra.max_tokens - MARGIN
        if context < 1:
            raise EvaluationError(
                f"a context of {models.limit(options.model)} tokens leaves none for the conversation beside "
                f"toolorchestra.max_tokens and {MARGIN} for its template; lower it with --set, or give --context"
            )
        recipe = models.recipe = apply_protocol(options.protocol, recipe, worlds, context)
    settings = {
        "method": "toolorchestra",
        "preset": recipe.preset,
        "protocol": options.protocol,
        "split": options.split,
        "recipe": _without_location(recipe),
    }
    players = (options.model or NOTHING, _user(recipe, options.user))
    name = "-".join(["tau2", options.protocol, *(Path(player).name for player in players if player)])
    folder = create_folder(options, name, settings)
    cells = [
        models.make_cell(
            folder,
            NOTHING if variant == NOTHING else options.model,
            settings=settings,
            variant=variant,
            data=f"tau2-{domain}",
            repeats=1 if variant == NOTHING else options.trials,
            stream="tau2",
            **sampling_fields(options),
        )
        for variant in variants
        for domain in options.domains
    ]
    return Tau2Plan(folder, models, cells, recipe, options.split, options.tasks, worlds, options.published_as)


def _without_location(recipe: ToolOrchestraRecipe) -> dict[str, Any]:
    """Return the recipe that conversations follow from; it does not matter where tau2 is installed."""
    dumped: dict[str, Any] = drop_ports(recipe.model_dump(mode="json", include={"toolorchestra", "roles"}))
    for option in LOCATION:
        ((dumped["toolorchestra"]["environment"] or {}).get("options") or {}).pop(option, None)
    return dumped


def _check_version(folder: Path, about: Mapping[str, Any]) -> None:
    """Check that all conversations of a folder are played on one tau2-bench with one set of data files.

    Raises:
        EvaluationError: the folder's were played on another.
    """
    path, now = folder / "tau2_version.json", {name: about[name] for name in ("version", "commit", "blobs")}
    if path.is_file() and (before := read_json(path)) != now:
        changed = [f"{key} was {value!r}" for key, value in flatten(before).items() if flatten(now).get(key) != value]
        raise EvaluationError(
            f"{folder}: its conversations were played on another tau2-bench "
            f"({'; '.join(changed) or 'with fewer files'}). Give that one with --tau2-python and "
            "--tau2-data, or choose another folder with --out."
        )
    write_json(path, now)


async def evaluate(plan: Tau2Plan) -> str:
    """Play what is missing, variant by variant and domain by domain, and return the tables."""
    worlds, folder = plan.worlds, plan.folder
    workers = Workers(worlds["python"], worlds["data"], worlds["processes"])
    try:
        about = await workers.pick().call("about")
        _check_version(folder.path, about)
        tasks: dict[str, list[Task]] = {}
        for cell in plan.cells:
            domain = cell.data.removeprefix("tau2-")
            if domain not in tasks:
                solo = domain.endswith("-solo")
                found = await tau2_tasks(workers, domain.removesuffix("-solo"), split=plan.split, solo=solo)
                tell_all_taken(domain, len(found), plan.limit)
                tasks[domain] = found[: plan.limit]
            opener = partial(open_variant, plan, cell, workers)
            played = compare_with_published(plan, replace(cell, n=len(tasks[domain])), str(about["version"]))
            result = await evaluate_cell(played, tasks[domain], folder, opener, tau2_result, grade)
            limits = {name: worlds[name] for name in ("max_steps", "max_errors")}
            who = _who(plan, cell, domain)
            await write_official(folder, workers, result, limits, who)
        pool_domains(folder)
        statistics = read_statistics(folder)
        domains = dict.fromkeys(domain for stats in statistics.values() for domain in stats.tasks)
        departures = list_departures(about, [domain.removesuffix("-solo") for domain in domains])
        save_published(folder, (), departures)
        text = describe_results(statistics, str(about["version"]), departures)
        return f"{text}\n\n{folder.path}: table.md, report.html; official/ is read by tau2's own tools"
    finally:
        workers.close()


def compare_with_published(plan: Tau2Plan, cell: EvalCell, version: str) -> EvalCell:
    """Save the published scores and how the cell departs from their protocol, and note on the cell what it follows."""
    if cell.variant == NOTHING:
        return cell
    theirs = protocol(STANDARD if cell.variant == STANDARD else COMPAT)
    pair = theirs, our_settings(cell, plan.recipe, plan.worlds, version)
    (marked,) = compare_cells(
        plan.folder, [cell], lambda _: pair, read_scores("tau2"), published_as=plan.published_as, evaluated=cell.variant
    )
    return marked


def pool_domains(folder: RunFolder) -> None:
    """Save the result over all tasks of the three domains of each variant that has them."""
    by_variant: dict[str, list[EvalResult]] = {}
    for result in folder.evaluations():
        if result.data in PLAYED:
            by_variant.setdefault(result.variant, []).append(result)
    for results in by_variant.values():
        if len(results) == len(PLAYED):
            folder.save_evaluation(pool_results(results, ALL))


async def grade(task: Task, trajectory: Trajectory) -> tuple[Trajectory, Record]:
    """Take tau2's own record and grade."""
    log = dict(trajectory.log)
    simulation = log.pop("simulation", None)
    score = (simulation or {}).get("reward_info", {}).get("reward")
    fields = {"tau2_id": task.metadata["tau2_id"], "score": score, "simulation": simulation}
    return replace(trajectory, log=log), fields


def open_variant(plan: Tau2Plan, cell: EvalCell, workers: Workers) -> AbstractAsyncContextManager[OpenVariant]:
    """Open the agent that does nothing, or ToolOrchestra with the recipe's roles."""
    if cell.variant == NOTHING:
        return nullcontext(OpenVariant(DoNothing(workers), {}, None))
    return open_agent(RecordedToolOrchestra, plan.models, cell)


def _who(plan: Tau2Plan, cell: EvalCell, domain: str) -> dict[str, Any]:
    """Return the two sides as tau2's own files name them; it knows solo runs by these names."""
    solo = domain.endswith("-solo")
    user = "hangs_up" if cell.variant == NOTHING else _user(plan.recipe, plan.worlds["user"])
    return {
        "agent": {"implementation": "llm_agent_solo" if solo else cell.variant, "llm": cell.model},
        "user": {"implementation": "dummy_user" if solo else "user_simulator", "llm": user},
    }


def _user(recipe: ToolOrchestraRecipe, name: str | None) -> str | None:
    """Return the user by the name of its model, if it has one."""
    model = recipe.toolorchestra.models.get(name or "")
    return model.name or name if model else name


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = make_evaluator_parser(
        "tau2",
        __doc__,
        *("published_as", "kv_tokens"),
        model={"help": "the orchestrator"},
        context={"help": "its context, if not config.json's"},
        preset={"default": "paper", "help": "recipe of experts and their models (default: paper)"},
        variants={"help": f"default: the protocol and {NOTHING}"},
        tasks={"help": "only the first N of each domain"},
        temperature={"default": None, "help": "default: 0, or 1 under toolorchestra-compat"},
        top_p={"default": 1.0},
    )
    tau2 = parser.add_argument_group("tau2-bench")
    tau2.add_argument("--protocol", choices=PROTOCOLS, default="standard")
    tau2.add_argument("--domains", nargs="+", choices=DOMAINS, default=list(DOMAINS[:3]), metavar="DOMAIN")
    tau2.add_argument("--split", default="base", help="of tau2's tasks: base (all), train, test")
    tau2.add_argument("--trials", type=positive, default=4)
    tau2.add_argument("--user", metavar="NAME", help="who plays the user: a name under toolorchestra.models")
    tau2.add_argument("--judge", metavar="NAME", help="of assertions in words (40 tasks of retail): likewise")
    tau2.add_argument("--tau2-python", metavar="PYTHON", help="the interpreter that has it (default: this one)")
    tau2.add_argument("--tau2-data", metavar="DIR", help="its `data` folder (default: beside its sources)")
    tau2.add_argument("--processes", type=positive, default=2, help="of tau2, which play and grade (default: 2)")
    tau2.add_argument("--max-steps", type=positive, default=200)
    tau2.add_argument("--max-errors", type=positive, default=10)
    return parser


EVALUATOR = Evaluator(make_parser, prepare, evaluate, (*EXPECTED_ERRORS, EnvironmentFault))
main = EVALUATOR.main
