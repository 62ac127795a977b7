"""Evaluate an orchestrator on the real tau2-bench under one of three named protocols (protocols.py).

    tokentrue evaluate tau2 --protocol standard --model Qwen/Qwen3-8B --policy-url http://host:30000 \\
        --tau2-python TAU2/bin/python --tau2-data TAU2_DATA --trials 4 \\
        --set toolorchestra.models.user="{url: http://host:30001/v1, name: Qwen/Qwen3-32B}" --user user --judge user

README.md beside this file says how to get tau2-bench. Statistics are explained in statistics.py. Each conversation is
logged as it ends (benchmarks/harness/samples.py): the same command continues where a killed one stopped, and more
--trials add to what is there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.environment import EnvironmentFault
from agentic.toolorchestra.rollout import SPEC, ToolOrchestra
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import tau2_tasks
from benchmarks.harness.models import EvalModels, check_model_options, set_threads, start_server, weights_digest
from benchmarks.harness.options import SERVER, add_options, positive
from benchmarks.harness.plan import EXPECTED_ERRORS, EvalCell, EvaluationError
from benchmarks.harness.run import OpenVariant, evaluate_cell, open_method, without_prompts
from benchmarks.harness.samples import drop_failed_samples, read_samples
from benchmarks.harness.tables import published_rows
from benchmarks.tau2.protocols import NOTHING, PROTOCOLS, DoNothing, Recorded, apply_protocol
from benchmarks.tau2.results import (
    DEPARTURES,
    PUBLISHED,
    read_statistics,
    tau2_result,
    write_official,
    write_results,
)
from benchmarks.tau2.tasks import DOMAINS, list_departures
from core.engine.policy import open_frozen_model
from core.report import write_report
from core.rollout.roles import open_roles
from core.runs.files import Record, read_json, write_json
from core.runs.run_folder import RunFolder, flatten
from core.types import Sampling, Task, Trajectory

WORLD_OPTIONS = "recipe.toolorchestra.environment.options"
LOCATION = ("python", "data", "processes")
"""Options of the world that no conversation follows from, so that a later call may change them."""
MARGIN = 3000
"""Tokens of the context that are left to what the chat template puts around messages and tools."""


@dataclass(frozen=True)
class Tau2Plan:
    """Holds what a call evaluates. `cells` has a cell without tasks for each variant and domain."""

    recipe: ToolOrchestraRecipe
    split: str
    limit: int | None
    cells: Sequence[EvalCell]
    worlds: Mapping[str, Any]
    """Are the options of Tau2EnvironmentFactory."""


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        folder, plan, models = prepare(options)
        with folder.lock(), start_server(options, models, folder):
            if options.retry_failed:
                drop_failed_samples(folder, plan.cells)
            text = asyncio.run(evaluate(plan, models, folder))
            write_report(folder)
    except (*EXPECTED_ERRORS, EnvironmentFault) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    print(f"{folder.path}: tau2.md, tau2.json, report.html; official/ is read by tau2's own tools")
    return 0


def prepare(options: argparse.Namespace) -> tuple[RunFolder, Tau2Plan, EvalModels]:
    """Turn the options into a plan, checked as far as possible without running anything."""
    variants = options.variants or [options.protocol, NOTHING]
    if unknown := set(variants) - {options.protocol, NOTHING}:
        raise EvaluationError(
            f"variant {unknown.pop()!r}: the variants are the protocol, {options.protocol}, and {NOTHING}"
        )
    if options.protocol in variants and options.model is None:
        raise EvaluationError("no model: name it with --model (and --policy-url of a server that holds it)")
    check_model_options(options)
    if options.protocol in variants and options.user is None and set(options.domains) != {"telecom-solo"}:
        raise EvaluationError("nobody plays the user: --user NAME under toolorchestra.models, or `scripted` for tests")
    overrides = [*options.overrides, *([f"model.path={options.model}"] if options.model else [])]
    recipe = SPEC.load(options.preset, overrides)
    for role in (options.user, options.judge):
        if role not in (None, "scripted", *recipe.toolorchestra.models):
            raise EvaluationError(f"{role!r} is not under toolorchestra.models; add it with --set")
    worlds = {
        "python": options.tau2_python,
        "data": options.tau2_data,
        "processes": options.processes,
        "user": options.user,
        "judge": options.judge,
        "max_steps": options.max_steps,
        "max_errors": options.max_errors,
    }
    models = EvalModels.from_options(options, recipe)
    if options.protocol in variants:
        context = models.limit(options.model) - recipe.toolorchestra.max_tokens - MARGIN
        if context < 1:
            raise EvaluationError(
                f"a context of {models.limit(options.model)} tokens leaves none for the conversation beside "
                f"toolorchestra.max_tokens and {MARGIN} for its template; lower it with --set, or give --context"
            )
        recipe = apply_protocol(options.protocol, recipe, worlds, context)
    set_threads(options, recipe)
    sampling = Sampling(temperature=options.temperature, top_p=options.top_p)
    settings = {
        "method": "toolorchestra",
        "preset": recipe.preset,
        "protocol": options.protocol,
        "split": options.split,
        "recipe": recipe.model_dump(mode="json", include={"toolorchestra", "roles"}),
    }
    config = {
        **settings,
        "model": options.model,
        "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p},
        **({"weights": weights} if (weights := weights_digest(options.model)) else {}),
    }
    players = (options.model or NOTHING, _user(recipe, options.user))
    name = "-".join(["tau2", options.protocol, *(Path(player).name for player in players if player)])
    out = options.out or Path("runs") / name
    folder = RunFolder.create(out, config, may_differ=[f"{WORLD_OPTIONS}.{option}" for option in LOCATION])
    folder.save_published(published_rows(PUBLISHED), DEPARTURES)
    cells = [
        models.make_cell(
            folder,
            NOTHING if variant == NOTHING else options.model,
            settings={**settings, "recipe": _without_location(recipe)},
            variant=variant,
            data=f"tau2-{domain}",
            length=0,
            seed=0,
            n=0,
            sampling=sampling,
            concurrency=options.concurrency,
            deadline_s=options.deadline,
            repeats=1 if variant == NOTHING else options.trials,
            stream="tau2",
        )
        for variant in variants
        for domain in options.domains
    ]
    return folder, Tau2Plan(recipe, options.split, options.tasks, cells, worlds), models


def _without_location(recipe: ToolOrchestraRecipe) -> dict[str, Any]:
    """Return the recipe that conversations follow from; it does not matter where tau2 is installed."""
    dumped = recipe.model_dump(mode="json", include={"toolorchestra", "roles"})
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


async def evaluate(plan: Tau2Plan, models: EvalModels, folder: RunFolder) -> str:
    """Play what is missing, variant by variant and domain by domain, and return the text of tau2.md."""
    worlds = plan.worlds
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
                tasks[domain] = found[: plan.limit]
            opener = partial(open_variant, plan, models, cell, workers)
            played = replace(cell, n=len(tasks[domain]))
            result = await evaluate_cell(played, tasks[domain], folder, opener, tau2_result, grade)
            limits = {name: worlds[name] for name in ("max_steps", "max_errors")}
            who = _who(plan, cell, domain)
            await write_official(folder.path, workers, read_samples(folder, result), limits, who)
        statistics = read_statistics(folder)
        domains = dict.fromkeys(domain for stats in statistics.values() for domain in stats.tasks)
        departures = list_departures(about, [domain.removesuffix("-solo") for domain in domains])
        return write_results(folder.path, statistics, about, departures)
    finally:
        workers.close()


async def grade(task: Task, trajectory: Trajectory) -> tuple[Trajectory, Record]:
    """Take tau2's own record and grade; the log leaves out the prompts, which repeat the conversation."""
    log = dict(trajectory.log)
    simulation = log.pop("simulation", None)
    score = (simulation or {}).get("reward_info", {}).get("reward")
    fields = {"tau2_id": task.metadata["tau2_id"], "score": score, "simulation": simulation}
    return without_prompts(replace(trajectory, log=log)), fields


@asynccontextmanager
async def open_variant(
    plan: Tau2Plan, models: EvalModels, cell: EvalCell, workers: Workers
) -> AsyncIterator[OpenVariant]:
    """Open the agent that does nothing, or ToolOrchestra with the recipe's roles."""
    if cell.variant == NOTHING:
        yield OpenVariant(DoNothing(workers), {}, None)
        return
    await models.check_servers([cell])
    async with (
        open_roles(plan.recipe, models.tokenizer(cell.model_path), open_frozen_model) as roles,
        open_method(_build, plan.recipe, models, cell, roles) as variant,
    ):
        yield variant


def _build(recipe: ToolOrchestraRecipe, tokenizer: Any) -> Recorded:
    return Recorded(ToolOrchestra(recipe, tokenizer))


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
    first, _, _ = (__doc__ or "").partition("\n")
    commands = argparse.ArgumentParser(prog="tokentrue evaluate tau2", description=first)
    models = commands.add_argument_group("models")
    add_options(
        models,
        *SERVER,
        "set",
        model={"help": "the orchestrator"},
        context={"help": "its context, if not config.json's"},
        preset={"default": "paper", "help": "recipe of experts and their models (default: paper)"},
    )
    models.add_argument("--user", metavar="NAME", help="who plays the user: a name under toolorchestra.models")
    models.add_argument("--judge", metavar="NAME", help="of assertions in words (40 tasks of retail): likewise")
    world = commands.add_argument_group("tau2-bench")
    world.add_argument("--tau2-python", metavar="PYTHON", help="the interpreter that has it (default: this one)")
    world.add_argument("--tau2-data", metavar="DIR", help="its `data` folder (default: beside its sources)")
    world.add_argument("--processes", type=positive, default=2, help="of tau2, which play and grade (default: 2)")
    world.add_argument("--max-steps", type=positive, default=200)
    world.add_argument("--max-errors", type=positive, default=10)
    how = commands.add_argument_group("what and how")
    how.add_argument("--protocol", choices=PROTOCOLS, default="standard")
    how.add_argument("--domains", nargs="+", choices=DOMAINS, default=list(DOMAINS[:3]), metavar="DOMAIN")
    how.add_argument("--split", default="base", help="of tau2's tasks: base (all), train, test")
    how.add_argument("--trials", type=positive, default=4)
    add_options(
        how,
        "kv_tokens",
        "threads",
        "retry_failed",
        variants={"help": f"default: the protocol and {NOTHING}"},
        tasks={"help": "only the first N of each domain"},
        temperature={"default": 0.0},
        top_p={"default": 1.0},
        out={"help": "default: runs/tau2-PROTOCOL-MODEL-USER"},
        concurrency={"default": 16, "help": "conversations at once"},
        deadline={"default": 3600.0, "help": "for each conversation"},
    )
    return commands


if __name__ == "__main__":
    sys.exit(main())
