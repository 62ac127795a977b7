"""All cells of an evaluation, variant by length by seed: each is run unless it is saved already, then saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic.memagent.config import MemAgentSection
from benchmarks.cells import Cell, EvaluationError, failures_of, is_saved, model_name, weights_of
from benchmarks.models import Models, check_server
from benchmarks.ruler.cells import cell_result, run_reader
from benchmarks.ruler.eval_data import EvalData
from benchmarks.ruler.variants import make_reader
from core.data.files import DataError
from core.runs.evaluation import EvalResult
from core.runs.files import jsonable
from core.runs.run_folder import RunFolder
from core.text.tokenizer import encode_text
from core.types import Sampling, Task

LONG = 112 * 1024
"""Above this many tokens a plan's `tasks_long` says how many tasks."""


@dataclass(frozen=True)
class Plan:
    """What is evaluated, on what, how. `models` gives each seed's model of each variant, by the name that is recorded."""

    method: MemAgentSection
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
    if uneven := [length for length in plan.data.lengths if plan.count(length) % plan.concurrency]:
        lengths = ", ".join(map(str, uneven))
        print(f"note: at length {lengths} tasks do not fill {plan.concurrency} slots evenly; their time compares badly")
    cells = {
        (seed, length): [_cell(plan, models, folder, variant, length, seed) for variant in plan.models[seed]]
        for seed in plan.models
        for length in plan.data.lengths
    }
    todo = {key: [cell for cell in row if not is_saved(cell, folder)] for key, row in cells.items()}
    for url in models.urls.values() if any(todo.values()) else ():
        await check_server(url)
    for (seed, length), missing in todo.items():
        if not missing:
            continue
        tasks = _tasks(plan, length, seed)
        counter = models.tokenizer(plan.models[seed][missing[0].variant])
        document_tokens = [_document_tokens(task, counter) for task in tasks]
        for cell in missing:
            result = await _run(cell, plan, models, tasks, document_tokens)
            folder.save_evaluation(result)


async def _run(
    cell: Cell, plan: Plan, models: Models, tasks: Sequence[Task], document_tokens: Sequence[int]
) -> EvalResult:
    model = plan.models[cell.seed][cell.variant]
    limit = models.limit(model)
    reader = make_reader(cell.variant, plan.method, models.tokenizer(model), limit)
    reader.prepare(tasks)
    context = reader.context(tasks)
    if context > limit:
        raise EvaluationError(
            f"{cell}: a turn may take {context} tokens, but {model} has a context of {limit}. Lower "
            "memagent.chunk_tokens with --set; where a server allows more, say so with --context."
        )
    async with models.policy(model, context) as policy:
        ran = await run_reader(cell, reader, policy, tasks, concurrency=plan.concurrency, deadline_s=plan.deadline_s)
    read = [0] * len(tasks) if cell.variant == "empty-document" else document_tokens
    result = cell_result(cell, reader, tasks, read, ran)
    means = ", ".join(f"{name} {100 * sum(result.scores[name]) / result.n:.1f}" for name in ("official", "strict"))
    failed = f", failed: {failures_of(ran.trajectories).describe()}" if result.failures else ""
    print(f"{cell}: {means} of {result.n} tasks in {ran.seconds:.1f} s{failed}", flush=True)
    return result


def _cell(plan: Plan, models: Models, folder: RunFolder, variant: str, length: int, seed: int) -> Cell:
    model = plan.models[seed][variant]
    settings: dict[str, Any] = {"data": plan.data.settings, "memagent": plan.method.model_dump(mode="json")}
    if (weights := weights_of(model, folder)) is not None:
        settings["weights"] = weights
    if variant == "full-context":
        settings["context"] = models.limit(model)
    return Cell(
        variant=variant,
        data=plan.data.name,
        length=length,
        seed=seed,
        n=plan.count(length),
        model=model_name(folder, model),
        sampling=plan.sampling,
        settings=jsonable(settings),
        notes={"concurrency": plan.concurrency, "served": model in models.urls},
    )


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
