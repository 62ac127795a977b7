"""Evaluate how well a model finds the files and functions of SWE-bench's issues, beside CodeScout's published scores.

    tokentrue data codescout SWE-bench_Verified.parquet --repositories clones --checkouts checkouts \\
        --out data/swebench-verified.jsonl
    tokentrue evaluate localize --protocol swebench-verified --model ID --policy-url http://host:30000

The scores are file_f1, module_f1 and function_f1, each the mean over instances; `official` is the mean of the three. A
failed rollout, and one without an answer, score 0. Each task is logged as it ends (benchmarks/harness/samples.py): the
same command continues where a killed one stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from agentic.codescout.rollout import SPEC
from benchmarks.harness.command import EvalPlan, Evaluator, create_folder, fill_defaults, make_seed_cells
from benchmarks.harness.models import EvalModels
from benchmarks.harness.options import make_evaluator_parser
from benchmarks.harness.plan import EvalCell, is_saved
from benchmarks.harness.published import Protocol, Settings, compare_cells
from benchmarks.harness.run import build_result, evaluate_cell, open_agent
from benchmarks.harness.samples import Samples, flat
from benchmarks.localization.published import DATA, our_settings, protocol, published_scores
from core.data.files import DataError
from core.data.sets import sha256
from core.data.tasks import read_tasks
from core.runs.evaluation import EvalResult
from core.types import CALLS, Task

SCORES = ("official", "file_f1", "module_f1", "function_f1")


@dataclass(frozen=True)
class LocalizationPlan(EvalPlan):
    """Holds what a call evaluates: a cell for each seed."""

    tasks: Sequence[Task]


def prepare(options: argparse.Namespace) -> LocalizationPlan:
    """Turn the options into a plan, checked as far as possible without running anything."""
    recipe = SPEC.load(options.preset, [*options.overrides, f"model.path={options.model}"])
    fill_defaults(options, temperature=recipe.run.eval_temperature, top_p=recipe.run.eval_top_p)
    path = Path(options.data or f"data/{options.protocol}.jsonl")
    if not path.is_file():
        raise DataError(f"{path}: missing. Fix: make it, as benchmarks/localization/evaluate.py shows at its top.")
    reading = SPEC.reading_options(recipe)
    tasks = read_tasks(path, limit=options.tasks, tell=True, distinct=True, **reading)
    settings = {
        "method": SPEC.name,
        "preset": recipe.preset,
        "protocol": options.protocol,
        "file": f"{path.name} sha256:{sha256(path)[:12]}",
        "recipe": recipe.model_dump(mode="json", include={"codescout"}),
    }
    folder = create_folder(options, f"{options.protocol}-{Path(options.model).name}", settings)
    models = EvalModels.from_options(options, recipe)
    cells = make_seed_cells(models, folder, options, settings, len(tasks))

    def describe(cell: EvalCell) -> tuple[Protocol, Settings]:
        return protocol(options.protocol), our_settings(recipe, cell.sampling)

    rows = [row for row in published_scores() if row.data == options.protocol]
    cells = compare_cells(folder, cells, describe, rows, published_as=options.published_as)
    return LocalizationPlan(folder, models, cells, tasks)


async def evaluate(plan: LocalizationPlan) -> None:
    """Run every cell that the folder lacks and save it there."""
    for cell in plan.cells:
        if not is_saved(cell, plan.folder):
            opener = partial(open_agent, SPEC.build, plan.models, cell)
            await evaluate_cell(cell, plan.tasks, plan.folder, opener, build_localization_result)


def build_localization_result(cell: EvalCell, samples: Samples) -> EvalResult:
    """Build a result with the scores, calls and ends of every task; a failed one scores 0 and has no measures."""
    every = flat(samples)
    names = dict.fromkeys(name for sample in every if not sample.failed for name in sample.metrics)
    measures = {
        name: [None if sample.failed else float(sample.metrics.get(name, 0.0)) for sample in every]
        for name in names
        if name.startswith((CALLS, "end_", "malformed_"))
    }
    scores = {
        name: [0.0 if sample.failed else float(sample.metrics.get(name, 0.0)) for sample in every] for name in SCORES
    }
    return build_result(cell, samples, scores=scores, measures=measures)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = make_evaluator_parser(
        "localize",
        __doc__,
        *("published_as", "context", "kv_tokens", "seeds", "retry_failed"),
        model={"required": True, "help": "the policy"},
        preset={"default": "paper", "help": "recipe of the limits and prompts (default: paper)"},
        variants={"choices": ("trained",), "metavar": None},
        tasks={"help": "only the first N tasks"},
        seeds={"help": "default: 0"},
        temperature={"default": None, "help": "default: run.eval_temperature of the recipe"},
        top_p={"default": None, "help": "default: run.eval_top_p of the recipe"},
    )
    own = parser.add_argument_group("localization")
    own.add_argument("--protocol", choices=DATA, required=True, help="beside whose published scores")
    own.add_argument("--data", metavar="FILE", help="the records (default: data/PROTOCOL.jsonl)")
    return parser


EVALUATOR = Evaluator(make_parser, prepare, evaluate)
main = EVALUATOR.main
