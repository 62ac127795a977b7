"""Evaluate a model on the AIME: a single call and an agent, on the same questions, with the same sampling and budget.

    tokentrue evaluate aime --data aime24 --model CHECKPOINT --baseline ID --preset seed --k 64
    tokentrue evaluate aime --data problems.jsonl --model ID --policy-url http://host:30000 --variants single
    tokentrue evaluate aime --data aime25 --model ID --serve sglang --serve-args="--tp 2"

| variant | model | how |
|---|---|---|
| single | --baseline, or --model without one | one call |
| agent-untrained | --baseline | the method (AgentFlow) |
| agent | --model | the method |

Statistics are explained in statistics.py. Each sample is logged as it ends (benchmarks/harness/samples.py): the same
command continues where a killed one stopped, and a larger --k adds to what is there.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.aime.problems import MESSAGE, SingleCall, load_problems, make_grade
from benchmarks.aime.results import DEPARTURES, PUBLISHED, aime_result, write_results
from benchmarks.aime.statistics import AimeStatistics, aime_statistics, read_sample
from benchmarks.harness.models import EvalModels, check_model_options, set_threads, start_server, weights_digest
from benchmarks.harness.options import SERVER, add_options, positive, seed
from benchmarks.harness.plan import EXPECTED_ERRORS, EvalCell, EvaluationError
from benchmarks.harness.run import Build, OpenVariant, evaluate_cell, open_method
from benchmarks.harness.samples import drop_failed_samples, read_samples
from benchmarks.harness.tables import published_rows
from core.config import Recipe
from core.engine.policy import open_frozen_model
from core.hub import is_hub_id, resolve
from core.policy.base import Policy
from core.report import write_report
from core.rewards.math_grader import MathGrader
from core.rollout.method import MethodSpec, method_spec
from core.rollout.roles import open_roles
from core.runs.run_folder import RunFolder
from core.types import Sampling, Task

VARIANTS = ("single", "agent-untrained", "agent")
NOT_IN_CONFIG = {"model", "data", "rollout", "algorithm", "optimizer", "engine", "run"}
"""Sections of a recipe that do not change how a trajectory comes about, or are recorded elsewhere."""


@dataclass(frozen=True)
class AimePlan:
    """Holds what a call evaluates: a cell for each variant."""

    spec: MethodSpec
    recipe: Recipe
    tasks: Sequence[Task]
    cells: Sequence[EvalCell]
    budget: int


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        folder, plan, models = prepare(options)
        with folder.lock(), start_server(options, models, folder):
            if options.retry_failed:
                drop_failed_samples(folder, plan.cells)
            asyncio.run(evaluate(plan, models, folder))
            text = write_results(folder, read_statistics(folder, options.seed))
            write_report(folder)
    except EXPECTED_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(text)
    print(f"report: {folder.path / 'report.html'}, samples: {folder.evaluation_path}")
    return 0


def prepare(options: argparse.Namespace) -> tuple[RunFolder, AimePlan, EvalModels]:
    """Turn the options into a plan, checked as far as possible without running anything."""
    named = {
        "single": options.baseline or options.model,
        "agent-untrained": options.baseline,
        "agent": options.model,
    }
    variants = options.variants or [variant for variant in VARIANTS if named[variant] is not None]
    if "agent-untrained" in variants and options.baseline is None:
        raise EvaluationError(
            "variant agent-untrained: no model for it. Name the one that training started from: --baseline."
        )
    check_model_options(options)
    for variant in variants:
        if not is_hub_id(named[variant]):
            resolve(named[variant])  # before anything is downloaded
    spec = method_spec(options.method)
    recipe = spec.load(options.preset, [*options.overrides, f"model.path={options.model}"])
    recipe = type(recipe).model_validate(with_budget(recipe.dump(), options.budget))
    set_threads(options, recipe)
    data, tasks = load_problems(options.data, options.data_dir)
    tasks = tasks[: options.tasks]
    sampling = Sampling(temperature=options.temperature, top_p=options.top_p)
    settings = {
        "method": spec.name,
        "preset": recipe.preset,
        "budget": options.budget,
        "single": MESSAGE,
        "recipe": recipe.model_dump(mode="json", exclude=NOT_IN_CONFIG),
    }
    digests = {name: weights_digest(getattr(options, name)) for name in ("model", "baseline")}
    config = {
        **settings,
        "model": options.model,
        "baseline": options.baseline,
        "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p},
        **({"weights": weights} if (weights := {name: text for name, text in digests.items() if text}) else {}),
    }
    folder = RunFolder.create(options.out or Path("runs") / f"aime-{Path(options.model).name}", config)
    published = [(name, variant, "aime24", options.budget, score, source) for name, variant, score, source in PUBLISHED]
    folder.save_published(published_rows(published), DEPARTURES)
    models = EvalModels.from_options(options, recipe)
    cells = [
        models.make_cell(
            folder,
            named[variant],
            settings=settings,
            variant=variant,
            data=data,
            length=options.budget,
            seed=options.seed,
            n=len(tasks),
            sampling=sampling,
            concurrency=options.concurrency,
            deadline_s=options.deadline,
            repeats=options.k,
            stream="aime",
        )
        for variant in variants
    ]
    return folder, AimePlan(spec, recipe, tasks, cells, options.budget), models


def with_budget(section: Any, budget: int) -> Any:
    """Return a recipe's values with at most `budget` tokens for each call of the policy."""
    if not isinstance(section, dict):
        return section
    section = {name: with_budget(value, budget) for name, value in section.items()}
    return {**section, "max_tokens": budget} if section.get("engine") == "policy" else section


async def evaluate(plan: AimePlan, models: EvalModels, folder: RunFolder) -> None:
    """Sample what is missing, variant by variant, and save each variant's result when it is complete."""
    grader = MathGrader()
    try:
        for cell in plan.cells:
            opener = partial(open_variant, plan, models, cell)
            await evaluate_cell(cell, plan.tasks, folder, opener, aime_result, make_grade(grader))
    finally:
        await grader.close()


@asynccontextmanager
async def open_variant(plan: AimePlan, models: EvalModels, cell: EvalCell) -> AsyncIterator[OpenVariant]:
    """Open the single call, or the method with the recipe's roles."""
    await models.check_servers([cell])
    async with AsyncExitStack() as stack:
        build: Build = partial(make_single_call, plan.budget)
        roles: Mapping[str, Policy] = {}
        if cell.variant != "single":
            build = plan.spec.build
            roles = await stack.enter_async_context(
                open_roles(plan.recipe, models.tokenizer(cell.model_path), open_frozen_model)
            )
        yield await stack.enter_async_context(open_method(build, plan.recipe, models, cell, roles))


def make_single_call(budget: int, recipe: Recipe, tokenizer: Any) -> SingleCall:
    return SingleCall(tokenizer, budget)


def read_statistics(folder: RunFolder, seed: int) -> dict[str, dict[str, AimeStatistics]]:
    """Return data set -> variant -> statistics of all results in the folder, of this call and earlier ones."""
    found: dict[str, dict[str, AimeStatistics]] = {}
    for result in folder.evaluations():
        if result.seed == seed:
            samples = [read_sample(record) for record in read_samples(folder, result)]
            found.setdefault(result.data, {})[result.variant] = aime_statistics(samples)
    return found


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    first, _, _ = (__doc__ or "").partition("\n")
    commands = argparse.ArgumentParser(prog="tokentrue evaluate aime", description=first)
    models = commands.add_argument_group("models")
    add_options(models, model={"required": True, "help": "the model evaluated"})
    add_options(models, *SERVER, baseline={"help": "the model it started from"})
    models.add_argument("--baseline-url", metavar="URL", help="a server that holds --baseline")
    add_options(models, "context", variants={"choices": VARIANTS, "metavar": None, "help": "default: all with a model"})
    models.add_argument("--method", default="agentflow", metavar="NAME", help="the agent: a folder of agentic/")
    add_options(models, "set", preset={"default": "paper", "help": "of the agent"})
    how = commands.add_argument_group("what and how")
    how.add_argument("--data", default="aime24", metavar="NAME|FILE|HUB", help="aime24, aime25, FILE, owner/name:split")
    how.add_argument(
        "--data-dir", type=Path, default=Path("data"), metavar="DIR", help="where named data is (default: data)"
    )
    how.add_argument("--k", type=positive, default=16, help="samples of each problem (default: 16)")
    how.add_argument("--budget", type=positive, default=4096, metavar="TOKENS", help="completion tokens of one call")
    how.add_argument("--seed", type=seed, default=0)
    add_options(
        how,
        "kv_tokens",
        "threads",
        "retry_failed",
        tasks={"help": "only the first N problems"},
        temperature={"default": 0.7},
        top_p={"default": 0.95},
        out={"help": "folder of the results (default: runs/aime-MODEL)"},
        concurrency={"default": 16},
        deadline={"default": 3600.0},
    )
    return commands


if __name__ == "__main__":
    sys.exit(main())
