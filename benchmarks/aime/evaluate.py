"""Evaluate a model on the AIME: a single call and an agent, on the same questions, with the same sampling and budget.

    tokentrue evaluate aime --data aime24 --model CHECKPOINT --untrained ID --preset seed --k 64
    tokentrue evaluate aime --data problems.jsonl --model ID --policy-url http://host:30000 --variants single
    tokentrue evaluate aime --data aime25 --model ID --serve sglang --serve-args="--tp 2"

| variant | model | how |
|---|---|---|
| single | --untrained, or --model without one | one call |
| agent-untrained | --untrained | AgentFlow |
| agent | --model | AgentFlow |

Statistics are explained in results.py. Each sample is logged as it ends (benchmarks/harness/samples.py): the same
command continues where a killed one stopped, and a larger --k adds to what is there.
"""

from __future__ import annotations

import argparse
import hashlib
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from agentic.agentflow.config import AgentFlowRecipe
from agentic.agentflow.rollout import SPEC
from benchmarks.aime.problems import MESSAGE, SingleCall, keep_verdict, load_problems, make_grade
from benchmarks.aime.published import agent_settings, protocol, published_scores, single_settings
from benchmarks.aime.results import aime_result, describe_results
from benchmarks.harness.command import (
    Evaluator,
    create_folder,
    fill_defaults,
    lack_untrained,
    make_evaluator_parser,
    positive,
    sampling_fields,
    seed,
)
from benchmarks.harness.models import EvalModels
from benchmarks.harness.one_file import FilePlan
from benchmarks.harness.plan import EvalCell, drop_ports, tell_all_taken
from benchmarks.harness.published import Protocol, Settings, compare_cells
from benchmarks.harness.run import evaluate_cell, open_agent, open_method
from core.hub import is_hub_id, resolve
from core.rewards.math_grader import MathGrader

VARIANTS = ("single", "agent-untrained", "agent")
NOT_IN_CONFIG = {"model", "data", "rollout", "algorithm", "optimizer", "inference", "run", "experiment"}
"""Sections of a recipe that do not change how a trajectory comes about, or are recorded elsewhere."""


def prepare(options: argparse.Namespace) -> FilePlan:
    """Turn the options into a plan, checked as far as possible without running anything."""
    named = {"single": options.untrained or options.model, "agent-untrained": options.untrained, "agent": options.model}
    variants = options.variants or [variant for variant in VARIANTS if named[variant] is not None]
    if "agent-untrained" in variants and options.untrained is None:
        raise lack_untrained("agent-untrained")
    for variant in variants:
        if not is_hub_id(named[variant]):
            resolve(named[variant])  # before anything is downloaded
    recipe = SPEC.load(options.preset, [*options.overrides, f"model.path={options.model}"])
    as_published = recipe.preset == "published"
    fill_defaults(
        options,
        budget=recipe.agentflow.planner.next_step.max_tokens if as_published else 4096,
        temperature=recipe.run.eval_temperature if as_published else 0.7,
        top_p=recipe.run.eval_top_p if as_published else 0.95,
    )
    recipe = type(recipe).model_validate(with_budget(recipe.dump(), options.budget))
    data, tasks = load_problems(options.data, Path("data"))
    tell_all_taken(options.data, len(tasks), options.tasks)
    texts = repr([(task.task_id, task.question, task.answers) for task in tasks])
    problems = {"problems": f"sha256:{hashlib.sha256(texts.encode()).hexdigest()[:12]}"}  # two files may have one name
    tasks = tasks[: options.tasks]
    settings = {
        "method": SPEC.name,
        "preset": recipe.preset,
        "budget": options.budget,
        "single": MESSAGE,
        "recipe": drop_ports(recipe.model_dump(mode="json", exclude=NOT_IN_CONFIG)),
    }
    folder = create_folder(options, f"aime-{Path(options.model).name}", settings)
    models = EvalModels.from_options(options, recipe, "aime")
    cells = [
        models.make_cell(
            folder,
            named[variant],
            settings={**settings, **problems},
            variant=variant,
            data=data,
            length=options.budget,
            seed=options.seed,
            n=len(tasks),
            repeats=options.k,
            stream="aime",
            **sampling_fields(options),
        )
        for variant in variants
    ]
    return compare_with_published(FilePlan(folder, models, cells, tasks), recipe, options.published_as)


def compare_with_published(plan: FilePlan, recipe: AgentFlowRecipe, published_as: str | None) -> FilePlan:
    """Save the published scores and how the plan departs from their protocols.

    Returns the plan whose cells say which protocol they follow.
    """

    def describe(cell: EvalCell) -> tuple[Protocol, Settings]:
        samples = cell.repeats or 1
        if cell.variant == "single":
            return protocol(cell.variant, recipe.preset), single_settings(MESSAGE, samples)
        return protocol(cell.variant, recipe.preset), agent_settings(recipe, cell.length, cell.sampling, samples)

    first, departures = plan.cells[0], recipe.fill_departures()
    cells = compare_cells(
        plan.folder,
        plan.cells,
        describe,
        published_scores(first.data, first.length),
        departures=departures,
        published_as=published_as,
        evaluated="agent",
    )
    return replace(plan, cells=cells)


def with_budget(section: Any, budget: int) -> Any:
    """Return a recipe's values with at most `budget` tokens for each call of the policy."""
    if not isinstance(section, dict):
        return section
    section = {name: with_budget(value, budget) for name, value in section.items()}
    return {**section, "max_tokens": budget} if section.get("role") == "policy" else section


async def evaluate(plan: FilePlan) -> str:
    """Sample what is missing, variant by variant, and save each variant's result when it is complete."""
    grader, folder, budget = MathGrader(), plan.folder, plan.cells[0].length
    try:
        for cell in plan.cells:
            opener = partial(open_agent, SPEC.build, plan.models, cell)
            if cell.variant == "single":
                build = lambda recipe, tokenizer: SingleCall(tokenizer, budget)  # noqa: E731
                opener = partial(open_method, build, plan.models, cell, {})
            judged = cell.variant != "single" and plan.models.recipe.preset == "published"
            grade = keep_verdict if judged else make_grade(grader)
            await evaluate_cell(cell, plan.tasks, folder, opener, aime_result, grade)
    finally:
        await grader.close()
    text = describe_results([result for result in folder.evaluations() if result.seed == plan.cells[0].seed])
    return f"{text}\n\nreport: {folder.path / 'report.html'}, samples: {folder.evaluation_path}"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = make_evaluator_parser(
        "aime",
        __doc__,
        *("published_as", "context", "kv_tokens"),
        model={"required": True, "help": "the model evaluated"},
        untrained={"help": "the model it started from"},
        preset={"default": "paper", "help": "of the agent"},
        variants={"choices": VARIANTS, "metavar": None},
        tasks={"help": "only the first N problems"},
        temperature={"default": None, "help": "default: 0.7"},
        top_p={"default": None, "help": "default: 0.95, or 0.99 with the preset published"},
    )
    own = parser.add_argument_group("aime")
    own.add_argument("--data", default="aime24", metavar="NAME|FILE|HUB", help="aime24, aime25, FILE, owner/name:split")
    own.add_argument("--k", type=positive, default=16, help="samples of each problem (default: 16)")
    own.add_argument(
        "--budget",
        type=positive,
        metavar="TOKENS",
        help="completion tokens of one call (default: 4096, or 2048 with the preset published)",
    )
    own.add_argument("--seed", type=seed, default=0)
    return parser


EVALUATOR = Evaluator(make_parser, prepare, evaluate)
main = EVALUATOR.main
