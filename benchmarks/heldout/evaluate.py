"""Evaluate any method on held-out tasks: before and after training, and beside the method's own baselines.

    tokentrue evaluate heldout agentflow --run runs/agentflow-tiny
    tokentrue evaluate heldout toolorchestra --run RUN_DIR --data flipped.jsonl --by kind preference
    tokentrue evaluate heldout memagent --model ID_OR_PATH --untrained ID_OR_PATH --preset paper --data FILE

| variant | weights | method |
|---|---|---|
| trained | each seed's checkpoint that `run.keep` says, or --model | agentic.METHOD.rollout.SPEC |
| untrained | what training started from, or --untrained | the same |
| untrained-greedy | the same, at temperature 0 | the same |
| rejection, supervised | what `tokentrue train --baseline` made of that in the run | the same |
| trained-, rejection-, supervised-greedy | the same, at temperature 0; only if --variants names them | the same |
| others | as untrained | the baselines of the recipe's `world` |

--run evaluates all variants that it has a model for, on the first 256 tasks. --model evaluates `trained`, and with
--untrained also `untrained` and `untrained-greedy`, on all tasks; it runs the baselines of the world, which are made
for the world's tasks, only if --variants names them.

Each task is sampled once per seed, with the same sampling seeds for all variants. A failed rollout scores 0 and is
counted by kind. Each sample is logged as it ends (benchmarks/harness/samples.py): the same command continues where a
killed one stopped, and more --tasks add to what is there.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import fmean

from pydantic import ValidationError

from benchmarks.harness.command import (
    EvalPlan,
    Evaluator,
    fill_defaults,
    make_evaluator_parser,
    open_target,
    sampling_fields,
)
from benchmarks.harness.models import EvalModels
from benchmarks.harness.plan import EvalCell, EvaluationError, file_fingerprint, is_saved, tell_all_taken
from benchmarks.harness.published import save_published
from benchmarks.harness.run import SCORES, Build, build_result, evaluate_cell, open_method
from benchmarks.harness.samples import Samples, flat, measure_columns
from core.config import Recipe
from core.data.tasks import read_tasks
from core.rollout.method import method_spec
from core.rollout.roles import open_roles
from core.runs.evaluation import MODEL_VARIANTS, EvalResult
from core.train import open_frozen_model
from core.types import Task
from core.worlds import World, find_world

Compare = Callable[[Sequence[EvalResult]], Sequence[EvalResult]]

TASKS_OF_A_RUN = 256


@dataclass(frozen=True)
class HeldoutPlan(EvalPlan):
    """Holds what a call evaluates. `labels` names what tells tasks apart, in their metadata; `left_out` is SPEC's.

    `chosen_by` says that these tasks have chosen the trained checkpoint; "" where they have not.
    """

    variants: Mapping[str, Build]
    tasks: Sequence[Task]
    labels: Sequence[str]
    left_out: Mapping[str, str] = field(default_factory=dict)
    compare: Compare | None = None
    chosen_by: str = ""


def prepare(options: argparse.Namespace) -> HeldoutPlan:
    """Turn the options into a plan, checked as far as possible without running anything."""
    spec = method_spec(options.method)
    target = open_target(options, spec, preset="paper", name=f"heldout-{spec.name}")
    world = find_world(options.method, target.recipe.world) or World()
    makes = {**dict.fromkeys(MODEL_VARIANTS, spec.make), **world.baselines}
    builds = {name: replace(spec, make=make).build for name, make in makes.items()}  # all have the recipe's `reward`
    if unknown := [variant for variant in options.variants or () if variant not in builds]:
        raise EvaluationError(f"unknown variant {unknown[0]!r}; {spec.name} has: {', '.join(builds)}")
    variants = options.variants or target.list_variants(MODEL_VARIANTS if options.run is None else builds)
    folder, recipe = target.folder, target.recipe
    own = "untrained" if options.run or options.untrained else "trained"  # whose weights the method's baselines have
    named = [(seed, variant, target.model(seed, variant, own)) for seed in target.models for variant in variants]
    path = options.data or recipe.data.eval
    if path is None:
        raise EvaluationError("no held-out tasks: the recipe has no data.eval. Give a file with --data.")
    name, path = name_data(path)
    limit = options.tasks or (None if options.run is None else TASKS_OF_A_RUN)
    reading = spec.reading_options(recipe)
    tasks = _take(limit, read_tasks(path, limit=limit and limit + 1, tell=True, distinct=True, **reading), path)
    fill_defaults(
        options,
        temperature=recipe.run.eval_temperature,
        top_p=recipe.run.eval_top_p,
        concurrency=recipe.rollout.concurrency,
        deadline=recipe.rollout.deadline_s,
    )
    models = EvalModels.from_options(
        options, recipe, kv_tokens=recipe.inference.kv_tokens, context=recipe.model.max_model_len
    )
    cells = [
        models.make_cell(
            folder,
            model,
            settings={"data": {"file": file_fingerprint(Path(path))}, **_find_settings(recipe)},
            variant=variant,
            data=name,
            seed=seed,
            n=len(tasks),
            **sampling_fields(options, variant),
        )
        for seed, variant, model in named
    ]
    labels = ["kind"] if options.by is None else _check_labels(options.by, tasks, path)
    save_published(folder, (), (), of_recipe=recipe.departures)
    chosen_by, chose = "", options.run is not None and recipe.run.keep == "best"
    if chose and Path(path).resolve() == Path(recipe.data.eval or "").resolve():
        first = f"its first {recipe.run.eval_tasks} tasks"
        chosen_by = f"{name}: {first} chose the checkpoint (run.keep=best), which flatters its score; test on others"
    return HeldoutPlan(folder, models, cells, builds, tasks, labels, spec.left_out, world.compare, chosen_by)


async def evaluate(plan: HeldoutPlan) -> None:
    """Run every cell that the folder lacks and save it there. Then compare the variants, if the world says how.

    Raises:
        EvaluationError: a cell is there with other settings (checked before anything runs), or cannot be run.
        RecipeError: a role that a variant asks is missing or cannot be opened.
    """
    missing, models = [], plan.models
    for cell in plan.cells:
        if is_saved(cell, plan.folder):
            add_labels(cell, plan)
        else:
            missing.append(cell)
    if missing:
        await models.check_servers(missing)
        async with open_roles(models.recipe, models.tokenizer(missing[0].model_path), open_frozen_model) as roles:
            for cell in missing:
                opener = partial(open_method, plan.variants[cell.variant], models, cell, roles)
                result = await evaluate_cell(cell, plan.tasks, plan.folder, opener, partial(heldout_result, plan))
                for line in result.notes["departures"]:
                    print(f"note: {result.variant}, {line}", flush=True)
    if plan.compare is not None:
        compare_variants(plan, plan.compare)


def name_data(given: str) -> tuple[str, str]:
    """Return the name of a data set and its file, from NAME=FILE, or from a file, whose name is that of the data."""
    name, equals, file = given.partition("=")
    return (Path(given).stem, given) if not equals or Path(given).exists() else (name, file)


def compare_variants(plan: HeldoutPlan, compare: Compare) -> None:
    """Save what a comparison adds to all results of the folder that are on the same tasks with the same seed."""
    names = {cell.data for cell in plan.cells}
    together: dict[object, list[EvalResult]] = defaultdict(list)
    for result in plan.folder.evaluations():
        if result.data in names:
            together[result.data, result.seed, *result.notes["task_ids"]].append(result)
    for results in together.values():
        for result in compare(results):
            plan.folder.save_evaluation(result)


def describe_left_out(
    data: str, measures: Mapping[str, Sequence[float | None]], left_out: Mapping[str, str]
) -> list[str]:
    """Say which share of the tasks lost a part: a departure (`MethodSpec.left_out`)."""
    columns = {told: measures.get(metric, ()) for metric, told in left_out.items()}
    return [
        f"{data}: {len(counts)} of {len(column)} tasks lost {fmean(counts):.0f} {told}"
        for told, column in columns.items()
        if (counts := [count for count in column if count])
    ]


def heldout_result(plan: HeldoutPlan, cell: EvalCell, samples: Samples) -> EvalResult:
    """Build a result with scores, measures and labels of every task; a failed one scores 0 and has no measures.

    Raises:
        EvaluationError: a score lies outside of [0, 1].
    """
    every, values = flat(samples), measure_columns(samples)
    known = [task.metadata.get("question_id") for task in plan.tasks]
    questions = [task.task_id if q is None else str(q) for q, task in zip(known, plan.tasks, strict=True)]
    if "official" in values:
        values["reward"] = [sample.reward for sample in every]
    # Of a method's kinds of tasks some may have `official`, and others none.
    values["official"] = [None if sample.failed else sample.metrics.get("official", sample.reward) for sample in every]
    try:
        return build_result(
            cell,
            samples,
            scores={name: [value or 0.0 for value in values[name]] for name in SCORES if name in values},
            measures={name: column for name, column in values.items() if name not in SCORES},
            labels=label_tasks(plan.labels, plan.tasks),
            notes={
                "departures": [
                    *([plan.chosen_by] if plan.chosen_by and cell.variant in ("trained", "trained-greedy") else []),
                    *describe_left_out(cell.data, values, plan.left_out),
                ],
                **({"question_ids": questions} if len(set(questions)) < len(questions) else {}),
            },
        )
    except ValidationError as error:
        problem = error.errors()[0]
        raise EvaluationError(
            f"{cell}: {'.'.join(map(str, problem['loc']))}: {problem['msg']}. Where a method has no `official`, the "
            "reward is the score: let the function that `reward` names return 0 to 1. A method of your own with "
            "another reward gives a score in trajectory.metrics['official']."
        ) from error


def add_labels(cell: EvalCell, plan: HeldoutPlan) -> None:
    """Add the labels that this call asks for to a saved result. They are the tasks' own, so nothing runs again."""
    path = plan.folder.evaluation_path / cell.file
    saved = EvalResult.load(path)
    labels = {name: column for name, column in label_tasks(plan.labels, plan.tasks).items() if name not in saved.labels}
    if not labels:
        return
    if saved.notes["task_ids"] != [task.task_id for task in plan.tasks]:
        raise EvaluationError(
            f"{path}: is of {saved.n} tasks without {', '.join(labels)}; to label them give --tasks {saved.n}, "
            "or delete the file"
        )
    plan.folder.save_evaluation(replace(saved, labels={**saved.labels, **labels}))


def label_tasks(names: Sequence[str], tasks: Sequence[Task]) -> dict[str, list[str]]:
    """Return a column for each name that any task has in its metadata; a task without it gets a dash."""
    found = {name: [task.metadata.get(name) for task in tasks] for name in names}
    return {
        name: ["–" if value is None else str(value) for value in column]
        for name, column in found.items()
        if any(value is not None for value in column)
    }


def _check_labels(names: Sequence[str], tasks: Sequence[Task], path: str) -> Sequence[str]:
    """Raise EvaluationError for a name that no task has."""
    known = {name for task in tasks for name in task.metadata}
    if unknown := [name for name in names if name not in known]:
        known_names = ", ".join(sorted(known)) or "none"
        raise EvaluationError(f"--by {unknown[0]}: in the metadata of no task of {path}; there are: {known_names}")
    return names


def _take(limit: int | None, tasks: list[Task], path: str) -> list[Task]:
    """Return at most `limit` of the `tasks`, which are one more where the file has more; print what differs."""
    if limit is not None and len(tasks) > limit:
        print(f"note: of {path} the first {limit} tasks are taken, and it has more; see --tasks")
    tell_all_taken(path, len(tasks), limit)
    return tasks[:limit]


def _find_settings(recipe: Recipe) -> dict[str, object]:
    """Return the sections that a trajectory follows from: those of the method, its roles, and a user's reward."""
    shared = Recipe.model_fields.keys() - {"roles", "reward"}
    return recipe.model_dump(mode="json", exclude=set(shared))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    with_model = "with --model `trained`, and the untrained ones if --untrained names their model"
    parser = make_evaluator_parser(
        "heldout",
        __doc__,
        *("run", "untrained", "seeds"),
        variants={"help": f"default: with --run all; {with_model}"},
        tasks={"help": f"the first N (default: {TASKS_OF_A_RUN} with --run, all with --model)"},
        temperature={"default": None, "help": "default: run.eval_temperature of the recipe"},
        top_p={"default": None, "help": "default: run.eval_top_p of the recipe"},
        concurrency={"default": None, "help": "tasks at once (default: the recipe's)"},
        deadline={"default": None, "help": "for each task (default: the recipe's)"},
    )
    parser.add_argument("method", metavar="METHOD", help="a name in agentic/, or a folder of your own")
    parser.add_argument(
        "--data", metavar="[NAME=]FILE", help="the tasks, and their name in results (default: data.eval of the recipe)"
    )
    parser.add_argument("--by", nargs="*", metavar="LABEL", help="metadata that tells tasks apart (default: kind)")
    return parser


EVALUATOR = Evaluator(make_parser, prepare, evaluate)
main = EVALUATOR.main
