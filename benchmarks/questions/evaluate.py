"""Evaluate an orchestrator on FRAMES or HLE as ToolOrchestra's released evaluation does.

    tokentrue evaluate questions --protocol frames --data data/frames.jsonl --model ID --policy-url http://host:30000

The preset `published` says where the experts, the judge and the retrieval service are; RESULTS.md of
agentic/toolorchestra says how to start them. Each question is logged as it ends (benchmarks/harness/samples.py): the
same command continues where a killed one stopped.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from agentic.toolorchestra.rollout import SPEC
from benchmarks.harness.command import EvalPlan, Evaluator, create_folder, fill_defaults, make_seed_cells
from benchmarks.harness.models import EvalModels
from benchmarks.harness.options import make_evaluator_parser
from benchmarks.harness.plan import EvalCell, drop_ports, is_saved
from benchmarks.harness.published import Protocol, Settings, compare_cells
from benchmarks.harness.run import build_result, evaluate_cell, open_agent
from benchmarks.harness.samples import Samples, flat
from benchmarks.questions.method import ReleasedQuestions
from benchmarks.questions.prompts import Data
from benchmarks.questions.published import DATA, our_settings, protocol, published_scores
from core.data.files import DataError
from core.data.sets import sha256
from core.data.tasks import read_tasks
from core.runs.evaluation import EvalResult
from core.types import CALLS, Task


@dataclass(frozen=True)
class QuestionsPlan(EvalPlan):
    """Holds what a call evaluates: one cell."""

    tasks: Sequence[Task]


def prepare(options: argparse.Namespace) -> QuestionsPlan:
    """Turn the options into a plan, checked as far as possible without running anything."""
    recipe = SPEC.load(options.preset, [*options.overrides, f"model.path={options.model}"])
    fill_defaults(options, temperature=recipe.run.eval_temperature, top_p=recipe.run.eval_top_p)
    path = Path(options.data or f"data/{options.protocol}.jsonl")
    if not path.is_file():
        raise DataError(
            f"{path}: missing. Fix: copy evaluation/{options.protocol}.jsonl of NVlabs/ToolOrchestra (git-lfs), or "
            f"tokentrue data download {options.protocol}."
        )
    tasks = read_tasks(path, limit=options.tasks, tell=True, require_context=False, short_answers=False, distinct=True)
    digest = sha256(path)
    settings = {
        "method": "toolorchestra",
        "preset": recipe.preset,
        "protocol": options.protocol,
        "file": f"{path.name} sha256:{digest[:12]}",
        "recipe": drop_ports(recipe.model_dump(mode="json", include={"toolorchestra", "roles"})),
    }
    folder = create_folder(options, f"{options.protocol}-{Path(options.model).name}", settings)
    models = EvalModels.from_options(options, recipe)
    cells = make_seed_cells(models, folder, options, settings, len(tasks))

    def describe(cell: EvalCell) -> tuple[Protocol, Settings]:
        return protocol(options.protocol), our_settings(options.protocol, recipe, cell.sampling, digest)

    rows = [row for row in published_scores() if row.data == options.protocol]
    cells = compare_cells(folder, cells, describe, rows, published_as=options.published_as)
    return QuestionsPlan(folder, models, cells, tasks)


async def evaluate(plan: QuestionsPlan) -> None:
    """Run every cell that the folder lacks and save it there."""
    for cell in plan.cells:
        if not is_saved(cell, plan.folder):
            build = partial(ReleasedQuestions, data=cast(Data, cell.data))
            opener = partial(open_agent, build, plan.models, cell)
            await evaluate_cell(cell, plan.tasks, plan.folder, opener, build_question_result)


def build_question_result(cell: EvalCell, samples: Samples) -> EvalResult:
    """Build a result with score, cost and calls of every question; a failed one scores 0 and has no measures."""
    every = flat(samples)
    names = dict.fromkeys(name for sample in every for name in sample.metrics)
    measures = {
        name: [None if sample.failed else sample.metrics.get(name, 0.0) for sample in every]
        for name in names
        if name.startswith(CALLS) or name in ("cost", "malformed", "expert_failures", "tool_failures")
    }
    return build_result(
        cell, samples, scores={"official": [sample.reward or 0.0 for sample in every]}, measures=measures
    )


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = make_evaluator_parser(
        "questions",
        __doc__,
        *("published_as", "context", "kv_tokens", "seeds", "retry_failed"),
        model={"required": True, "help": "the orchestrator"},
        preset={"default": "published", "help": "recipe of experts and their models (default: published)"},
        variants={"choices": ("trained",), "metavar": None},
        tasks={"help": "only the first N questions"},
        seeds={"help": "default: 0"},
        temperature={"default": None, "help": "default: 1, as in the preset published"},
        top_p={"default": None, "help": "default: run.eval_top_p of the recipe"},
        deadline={"default": 7200.0},
    )
    own = parser.add_argument_group("questions")
    own.add_argument("--protocol", choices=tuple(DATA), required=True, help="whose prompts and limits")
    own.add_argument("--data", metavar="FILE", help="the questions (default: data/PROTOCOL.jsonl)")
    return parser


EVALUATOR = Evaluator(make_parser, prepare, evaluate)
main = EVALUATOR.main
