"""Evaluate any method on held-out tasks: before and after training, and beside the method's own baselines.

    tokentrue evaluate heldout agentflow --run runs/agentflow-tiny
    tokentrue evaluate heldout toolorchestra --run RUN_DIR --data flipped.jsonl --by kind preference
    tokentrue evaluate heldout memagent --model ID_OR_PATH --baseline ID_OR_PATH --preset paper --data FILE

| variant | weights | method |
|---|---|---|
| trained | each seed's newest checkpoint, or --model | agentic.METHOD.rollout.SPEC |
| untrained | what training started from, or --baseline | the same |
| others | as untrained | BASELINES of agentic/METHOD/tiny/baselines.py: name -> (recipe, tokenizer) -> Method |

--run takes all variants and the first 256 tasks. --model takes `trained`, with --baseline `untrained` too, and all tasks: a
method's own variants are made for the tasks of its preset tiny, and run there only if --variants names them.

One rollout for each task and seed, sampled alike for all variants. A failed rollout scores 0 and is counted by kind. Cells
that are saved are not run again, so the same command goes on where a killed one stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks import kinds
from benchmarks.cells import EXPECTED_ERRORS, EvaluationError, described
from benchmarks.heldout.evaluation import Build, Plan, evaluate
from benchmarks.models import Models, start_model, trained_models
from benchmarks.serving import add_server_options, check_server_options, server
from core.config import Recipe
from core.data.tasks import read_tasks
from core.report import write_report
from core.report.console import print_summary
from core.rollout.method import MethodSpec, method_spec, tiny_module
from core.runs.run_folder import RunFolder
from core.types import Sampling, Task

ModelsOfSeed = dict[int, dict[str, str]]

TASKS_OF_A_RUN = 256


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        folder, plan, models = prepare(options)
        with server(options, folder.path) as urls:
            models.urls |= urls
            asyncio.run(evaluate(plan, models, folder))
        summary = write_report(folder)
    except EXPECTED_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print_summary(summary)
    print(f"report: {folder.path / 'report.html'}")
    return 0


def prepare(options: argparse.Namespace) -> tuple[RunFolder, Plan, Models]:
    """Options into what is to be done, checked as far as can be without running anything."""
    spec = method_spec(options.method)
    if (options.run is None) == (options.model is None):
        raise EvaluationError("give either --run RUN_DIR or --model ID_OR_PATH")
    builds = {"trained": spec.build, "untrained": spec.build, **own_baselines(options.method)}
    if unknown := [variant for variant in options.variants or () if variant not in builds]:
        raise EvaluationError(f"unknown variant {unknown[0]!r}; {spec.name} has: {', '.join(builds)}")
    with_model = ["trained", "untrained"] if options.baseline else ["trained"]
    variants = options.variants or (with_model if options.run is None else list(builds))
    folder, recipe, named = (_from_model if options.run is None else _from_run)(options, spec, variants)
    if threads := options.threads or recipe.engine.threads:
        torch.set_num_threads(threads)
    path = options.data or recipe.data.eval
    if path is None:
        raise EvaluationError("no held-out tasks: the recipe has no data.eval. Give a file with --data.")
    limit = options.tasks or (None if options.run is None else TASKS_OF_A_RUN)
    tasks = _first(limit, read_tasks(path, limit=limit and limit + 1, require_context=spec.needs_context), path)
    run, rollout = recipe.run, recipe.rollout
    plan = Plan(
        recipe=recipe,
        variants=builds,
        models=named,
        data=Path(path).stem,
        tasks=tasks,
        settings={"data": {"file": described(Path(path))}, **_own_sections(recipe)},
        labels=["kind"] if options.by is None else _labels(options.by, tasks, path),
        sampling=Sampling(
            temperature=run.eval_temperature if options.temperature is None else options.temperature,
            top_p=run.eval_top_p if options.top_p is None else options.top_p,
        ),
        concurrency=options.concurrency or rollout.concurrency,
        deadline_s=options.deadline or rollout.deadline_s,
    )
    models = Models(
        recipe,
        concurrency=plan.concurrency,
        urls={options.model: options.policy_url} if options.policy_url else {},
        kv_tokens=recipe.engine.kv_tokens,
        context=recipe.model.max_model_len,
    )
    published = folder.published
    departures = list(dict.fromkeys([*recipe.departures, *published["departures"]]))
    folder.save_published(published["rows"], departures)
    return folder, plan, models


def _first(limit: int | None, tasks: list[Task], path: str) -> list[Task]:
    """At most `limit` of the `tasks`, which are one more where the file has more; says so if they are not `limit`."""
    if limit is not None and len(tasks) > limit:
        print(f"note: of {path} the first {limit} tasks are taken, and it has more; see --tasks")
    elif limit is not None and len(tasks) < limit:
        print(f"note: {path} has {len(tasks)} tasks, which are all taken")
    return tasks[:limit]


def _labels(names: Sequence[str], tasks: Sequence[Task], path: str) -> Sequence[str]:
    """Raises EvaluationError for a name that no task has."""
    known = {name for task in tasks for name in task.metadata}
    if unknown := [name for name in names if name not in known]:
        there = ", ".join(sorted(known)) or "none"
        raise EvaluationError(f"--by {unknown[0]}: in the metadata of no task of {path}; there are: {there}")
    return names


def own_baselines(method: str) -> Mapping[str, Build]:
    """BASELINES of agentic/`method`/tiny/baselines.py; none without that file."""
    module = tiny_module(method, "baselines")
    return module.BASELINES if module else {}


def _own_sections(recipe: Recipe) -> dict[str, object]:
    """What a trajectory follows from beside model and sampling: the method's own sections, and who plays its roles."""
    shared = Recipe.model_fields.keys() - {"roles"}
    return recipe.model_dump(mode="json", exclude=set(shared))


def _from_run(
    options: argparse.Namespace, spec: MethodSpec, variants: list[str]
) -> tuple[RunFolder, Recipe, ModelsOfSeed]:
    for name in ("baseline", "preset", "policy_url", "serve", "out"):
        if getattr(options, name) is not None:
            raise EvaluationError(
                f"--{name.replace('_', '-')} goes with --model; --run brings recipe, models and folder"
            )
    folder = RunFolder(options.run)
    recipe = spec.load(str(folder.path / "config.yaml"), options.overrides)
    seeds = options.seeds or folder.seeds or recipe.run.seeds
    untrained = start_model(folder, recipe)
    trained = trained_models(folder, recipe, seeds) if "trained" in variants else {}
    return (
        folder,
        recipe,
        {
            seed: {variant: trained[seed] if variant == "trained" else untrained for variant in variants}
            for seed in seeds
        },
    )


def _from_model(
    options: argparse.Namespace, spec: MethodSpec, variants: list[str]
) -> tuple[RunFolder, Recipe, ModelsOfSeed]:
    check_server_options(options)
    if "untrained" in variants and options.baseline is None:
        raise EvaluationError(
            "variant untrained: no model for it. Name the one that training started from: --baseline."
        )
    recipe = spec.load(options.preset or "paper", [*options.overrides, f"model.path={options.model}"])
    folder = RunFolder.create(
        options.out or Path("runs") / f"heldout-{spec.name}-{Path(options.model).name}",
        recipe.dump(),
        may_differ=("data", "rollout", "algorithm", "optimizer", "engine", "run"),
    )
    start = options.baseline or options.model
    models = {variant: options.model if variant == "trained" else start for variant in variants}
    return folder, recipe, dict.fromkeys(options.seeds or (0, 1, 2), models)


def make_parser() -> argparse.ArgumentParser:
    first, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="tokentrue evaluate heldout", description=first)
    parser.add_argument("method", metavar="METHOD", help="a folder of agentic/")
    models = parser.add_argument_group("models")
    models.add_argument("--run", type=Path, metavar="RUN_DIR", help="a training run: its seeds, its recipe, its folder")
    models.add_argument("--model", metavar="ID_OR_PATH", help="a model by folder or hub id")
    models.add_argument("--baseline", metavar="ID_OR_PATH", help="the model it started from: the variant `untrained`")
    add_server_options(models)
    models.add_argument("--preset", help="recipe of --model (default: paper)")
    models.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    models.add_argument("--out", type=Path, metavar="DIR", help="folder of the results of --model")
    how = parser.add_argument_group("what and how")
    how.add_argument(
        "--variants",
        nargs="+",
        metavar="ARM",
        help="default: with --run all; with --model `trained`, and `untrained` if --baseline names it",
    )
    how.add_argument("--data", metavar="FILE", help="the tasks (default: data.eval of the recipe)")
    how.add_argument(
        "--tasks",
        type=kinds.positive,
        metavar="N",
        help=f"the first N (default: {TASKS_OF_A_RUN} with --run, all with --model)",
    )
    how.add_argument("--by", nargs="*", metavar="LABEL", help="metadata that tells tasks apart (default: kind)")
    how.add_argument("--seeds", nargs="+", type=kinds.seed, metavar="N", help="default: those of the run, or 0 1 2")
    how.add_argument("--temperature", type=kinds.temperature, help="default: run.eval_temperature of the recipe")
    how.add_argument("--top-p", type=kinds.share, help="default: run.eval_top_p of the recipe")
    how.add_argument("--concurrency", type=kinds.positive, metavar="N", help="tasks at once (default: the recipe's)")
    how.add_argument("--deadline", type=kinds.seconds, metavar="SECONDS", help="for each task (default: the recipe's)")
    how.add_argument("--threads", type=kinds.positive, metavar="N", help="of PyTorch")
    return parser


if __name__ == "__main__":
    sys.exit(main())
