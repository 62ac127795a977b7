"""Plans and runs the evaluators that play the tasks of one file and print published scores beside ours."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.command import (
    EvalPlan,
    create_folder,
    fill_defaults,
    make_evaluator_parser,
    sampling_fields,
)
from benchmarks.harness.models import EvalModels
from benchmarks.harness.plan import EvalCell, drop_ports, is_saved, tell_all_taken
from benchmarks.harness.published import Protocol, Settings, compare_cells, read_scores
from benchmarks.harness.run import Build, MakeResult, evaluate_cell, open_agent
from core.data.files import DataError, sha256
from core.data.tasks import read_tasks
from core.rollout.method import MethodSpec
from core.types import Task

Describe = Callable[[Any, EvalCell, str], tuple[Protocol, Settings]]
"""(recipe, cell, SHA-256 of the file) -> the published protocol and the cell's own settings."""


@dataclass(frozen=True)
class FilePlan(EvalPlan):
    """Holds what a call evaluates: the tasks of one file, in a cell for each seed or variant."""

    tasks: Sequence[Task]


def plan_file(
    benchmark: str,
    options: argparse.Namespace,
    spec: MethodSpec,
    describe: Describe,
    *,
    missing: str,
    sections: Collection[str],
) -> FilePlan:
    """Turn the options into a plan, checked as far as possible without running anything.

    `missing` says how to get a file that is not there. `sections` are those of the recipe that scores follow from.
    """
    recipe = spec.load(options.preset, [*options.overrides, f"model.path={options.model}"])
    fill_defaults(options, temperature=recipe.run.eval_temperature, top_p=recipe.run.eval_top_p)
    path = Path(options.data or f"data/{options.protocol}.jsonl")
    if not path.is_file():
        raise DataError(f"{path}: missing. Fix: {missing}.")
    tasks = read_tasks(path, limit=options.tasks, tell=True, distinct=True, **spec.reading_options(recipe))
    tell_all_taken(path, len(tasks), options.tasks)
    digest = sha256(path)
    settings = {
        "method": spec.name,
        "preset": recipe.preset,
        "protocol": options.protocol,
        "file": f"{path.name} sha256:{digest[:12]}",
        "recipe": drop_ports(recipe.model_dump(mode="json", include=set(sections))),
    }
    folder = create_folder(options, f"{options.protocol}-{Path(options.model).name}", settings)
    models = EvalModels.from_options(options, recipe, benchmark)
    cells = [
        models.make_cell(
            folder,
            options.model,
            settings=settings,
            variant="trained",
            data=options.protocol,
            seed=seed,
            n=len(tasks),
            **sampling_fields(options),
        )
        for seed in options.seeds or (0,)
    ]
    cells = compare_cells(
        folder,
        cells,
        lambda cell: describe(recipe, cell, digest),
        read_scores(benchmark, options.protocol),
        departures=recipe.fill_departures(),
        published_as=options.published_as,
    )
    return FilePlan(folder, models, cells, tasks)


async def evaluate_file(plan: FilePlan, build: Callable[[EvalCell], Build], make_result: MakeResult) -> None:
    """Run every cell that the folder lacks and save it there. `build` returns what makes a cell's method."""
    for cell in plan.cells:
        if not is_saved(cell, plan.folder):
            opener = partial(open_agent, build(cell), plan.models, cell)
            await evaluate_cell(cell, plan.tasks, plan.folder, opener, make_result)


def make_file_parser(
    name: str, description: str | None, protocols: Sequence[str], **changes: Mapping[str, Any]
) -> argparse.ArgumentParser:
    """Return the parser of a command that takes a protocol and its file; `changes` are those of its other options."""
    shared: dict[str, Mapping[str, Any]] = {
        "model": {"required": True, "help": "the policy"},
        "variants": {"choices": ("trained",), "metavar": None},
        "tasks": {"help": "only the first N tasks"},
        "seeds": {"help": "default: 0"},
        "temperature": {"default": None, "help": "default: run.eval_temperature of the recipe"},
        "top_p": {"default": None, "help": "default: run.eval_top_p of the recipe"},
    }
    parser = make_evaluator_parser(name, description, "published_as", "context", "kv_tokens", **{**shared, **changes})
    own = parser.add_argument_group(name)
    own.add_argument("--protocol", choices=protocols, required=True, help="whose published scores stand beside ours")
    own.add_argument("--data", metavar="FILE", help="the tasks (default: data/PROTOCOL.jsonl)")
    return parser
