"""Evaluate a model, or the models of a training run, on RULER or HotpotQA at any document length.

    python -m benchmarks.ruler.evaluate --run runs/memagent-tiny --lengths 7K 14K 28K 56K 112K 224K 448K
    python -m benchmarks.ruler.evaluate --model ID_OR_PATH --data hotpotqa --hotpotqa FILE --pool FILE

Arms are explained in arms.py. One result is saved per arm, length and seed; those that are there already are not run
again, so a call that was killed goes on with the cell it was in. Departures from MemAgent's official evaluation (arXiv
2507.02259, taskutils/memory_eval): answers are boxed (arms.py), failed tasks stay in the denominator, the strict score
stands beside the official one, and there is an interval over seeds instead of a single or a best run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import torch

from agentic.memagent.config import MemAgentRecipe, load_recipe
from agentic.memagent.tiny import TAGS
from benchmarks.ruler.arms import make_reader
from benchmarks.ruler.cells import Cell, EvaluationError, cell_result, failures_of, run_cell, sampling_record
from benchmarks.ruler.eval_data import EvalData, file_data, parse_length, ruler_data
from benchmarks.ruler.models import Models, ServerError, check_server
from benchmarks.ruler.sample import Metric
from benchmarks.ruler.tasks import OPTIONS, TASKS
from core.chat import encode_text
from core.config import RecipeError
from core.data.files import DataError
from core.engine import checkpoint
from core.hub import CheckpointError
from core.report.build import write_report
from core.report.console import print_summary
from core.report.evaluation import EvalResult, file_name
from core.report.files import jsonable
from core.report.run_folder import RunFolder, RunFolderError
from core.report.summary import ARMS
from core.types import Sampling, Task

LENGTHS = ("7K", "14K", "28K", "56K", "112K", "224K", "448K")
LONG = 112 * 1024
"""Above this many tokens `--tasks-long` says how many tasks."""

UNCAPPED = 1 << 30


@dataclass(frozen=True)
class Plan:
    """What is evaluated, on what, how. `models` gives each seed's model of each arm, by the name that is recorded."""

    recipe: MemAgentRecipe
    data: EvalData
    models: Mapping[int, Mapping[str, str]]
    tasks: int
    tasks_long: int
    sampling: Sampling
    concurrency: int
    deadline_s: float

    def count(self, length: int) -> int:
        wanted = self.tasks_long if length > LONG else self.tasks
        return int(min(wanted, self.data.available(length)))


async def evaluate(plan: Plan, models: Models, folder: RunFolder) -> None:
    """Run every cell that `folder` lacks and save it there.

    Raises:
        EvaluationError: a cell is there with other settings (checked before anything runs), or cannot be run.
    """
    for url in models.urls.values():
        await check_server(url)
    cells = {
        (seed, length): [_cell(plan, models, folder, arm, length, seed) for arm in plan.models[seed]]
        for seed in plan.models
        for length in plan.data.lengths
    }
    todo = {key: [cell for cell in row if not _is_saved(cell, folder)] for key, row in cells.items()}
    for (seed, length), missing in todo.items():
        if not missing:
            continue
        tasks = _tasks(plan, length, seed)
        counter = models.tokenizer(plan.models[seed][missing[0].arm])
        document_tokens = [_document_tokens(task, counter) for task in tasks]
        for cell in missing:
            result = await _run(cell, plan, models, tasks, document_tokens)
            folder.save_evaluation(result)


async def _run(
    cell: Cell, plan: Plan, models: Models, tasks: Sequence[Task], document_tokens: Sequence[int]
) -> EvalResult:
    model = plan.models[cell.seed][cell.arm]
    limit = models.limit(model)
    reader = make_reader(cell.arm, plan.recipe.memagent, models.tokenizer(model), limit)
    reader.prepare(tasks)
    context = reader.context(tasks)
    if context > limit:
        raise EvaluationError(
            f"{cell}: a turn may take {context} tokens, but {model} has a context of {limit}. Lower "
            "memagent.chunk_tokens (--set), or state a larger context with --context."
        )
    async with models.policy(model, context) as policy:
        trajectories, seconds = await run_cell(
            cell, reader, policy, tasks, concurrency=plan.concurrency, deadline_s=plan.deadline_s
        )
    read = [0] * len(tasks) if cell.arm == "empty-document" else document_tokens
    result = cell_result(cell, reader, tasks, read, trajectories, seconds)
    means = ", ".join(f"{name} {100 * sum(result.scores[name]) / result.n:.1f}" for name in ("official", "strict"))
    failed = f", failed: {failures_of(trajectories).describe()}" if result.failures else ""
    print(f"{cell}: {means} of {result.n} tasks in {seconds:.1f} s{failed}", flush=True)
    return result


def _cell(plan: Plan, models: Models, folder: RunFolder, arm: str, length: int, seed: int) -> Cell:
    model = plan.models[seed][arm]
    path = Path(model)
    inside = path.is_absolute() and path.is_relative_to(folder.path.resolve())
    settings = {"data": plan.data.settings, "memagent": plan.recipe.memagent.model_dump(mode="json")}
    if arm == "full-context":
        settings["context"] = models.limit(model)
    return Cell(
        arm=arm,
        data=plan.data.name,
        length=length,
        seed=seed,
        n=plan.count(length),
        model=str(path.relative_to(folder.path.resolve())) if inside else model,
        sampling=plan.sampling,
        settings=jsonable(settings),
        notes={"concurrency": plan.concurrency, "served": model in models.urls},
    )


def _is_saved(cell: Cell, folder: RunFolder) -> bool:
    path = folder.evaluation_path / file_name(cell.arm, cell.data, cell.length, cell.seed)
    if not path.is_file():
        return False
    saved = EvalResult.load(path)
    held = {"n": saved.n, "model": saved.model, "sampling": saved.sampling, "settings": saved.settings}
    wanted = {**asdict(cell), "sampling": sampling_record(cell.sampling)}
    for name, value in held.items():
        if value != wanted[name]:
            raise EvaluationError(
                f"{path}: this cell was evaluated with another {name}: {value} there, {wanted[name]} now. "
                "Delete the file to evaluate it anew, or choose another folder with --out."
            )
    return True


def _tasks(plan: Plan, length: int, seed: int) -> list[Task]:
    try:
        return plan.data.tasks(length, seed, plan.count(length))
    except DataError:
        raise
    except ValueError as error:
        raise EvaluationError(f"length {length}: {error}. Change --lengths, --tasks or the task's options.") from error


def _document_tokens(task: Task, tokenizer: Any) -> int:
    if task.metadata.get("budget") == "document":
        return int(task.metadata["length"])
    return len(encode_text(tokenizer, task.context))


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        summary, path = asyncio.run(_main(options))
    except (
        EvaluationError, ServerError, RecipeError, RunFolderError, CheckpointError, DataError
    ) as error:  # fmt: skip
        print(f"error: {error}", file=sys.stderr)
        return 1
    print_summary(summary)
    print(f"report: {path / 'report.html'}")
    return 0


async def _main(options: argparse.Namespace) -> tuple[dict[str, Any], Path]:
    if (options.run is None) == (options.model is None):
        raise EvaluationError("give either --model ID_OR_PATH or --run RUN_DIR")
    if options.run is not None:
        folder = RunFolder(options.run)
        recipe = load_recipe(str(options.run / "config.yaml"), options.overrides)
        models_of = _models_of_run(folder, recipe, options.seeds or folder.seeds)
    else:
        models_of = {seed: _models_named(options) for seed in options.seeds or (0, 1, 2)}
    arms = options.arms or [arm for arm in ARMS if all(arm in named for named in models_of.values())]
    for seed, named in models_of.items():
        if absent := [arm for arm in arms if arm not in named]:
            raise EvaluationError(f"arm {', '.join(absent)}, seed {seed}: no model. Name it with --baseline.")
    models_of = {seed: {arm: named[arm] for arm in arms} for seed, named in models_of.items()}
    first = next(iter(models_of.values()))
    model = first.get("trained") or next(iter(first.values()))
    if options.run is None:
        recipe = _recipe_for(model, options)
        folder = RunFolder.create(
            options.out or Path("runs") / f"ruler-{Path(model).name}",
            {**recipe.dump(), "model": {**recipe.dump()["model"], "path": model}},
            may_differ=("data", "rollout", "algorithm", "optimizer", "engine", "run"),
        )
    if not any(override.startswith("memagent.max_chunks=") for override in options.overrides):
        recipe = recipe.model_copy(update={"memagent": recipe.memagent.model_copy(update={"max_chunks": UNCAPPED})})
    if threads := options.threads or recipe.engine.threads:
        torch.set_num_threads(threads)
    urls = {named["trained"]: options.policy_url for named in models_of.values() if options.policy_url}
    models = Models(
        recipe, concurrency=options.concurrency, urls=urls, kv_tokens=options.kv_tokens, context=options.context
    )
    tasks = options.tasks or (32 if options.data in ("ruler", "hotpotqa") else sys.maxsize)
    plan = Plan(
        recipe=recipe,
        data=_data(options, models.tokenizer(model)),
        models=models_of,
        tasks=tasks,
        tasks_long=min(tasks, options.tasks_long),
        sampling=Sampling(temperature=options.temperature, top_p=options.top_p),
        concurrency=options.concurrency,
        deadline_s=options.deadline,
    )
    await evaluate(plan, models, folder)
    return write_report(folder), folder.path
