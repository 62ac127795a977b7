"""All cells of an evaluation on held-out tasks, variant by seed: each is run unless it is saved already, then saved.

A cell leaves two files in the run folder's `evaluation/`: its EvalResult, and beside it `.jsonl` with every trajectory,
written as each ends. A cell that was interrupted has no result and starts anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.cells import (
    Cell,
    EvaluationError,
    Ran,
    failures_of,
    is_saved,
    model_name,
    result_of,
    run_cell,
    weights_of,
)
from benchmarks.models import Models, check_server
from core.config import Recipe
from core.engine.policy import open_frozen_model
from core.policy.base import Policy, Roles
from core.rollout.method import Method, check_roles
from core.rollout.roles import open_roles
from core.runs.evaluation import EvalResult
from core.runs.files import JsonlLog
from core.runs.progress import Progress
from core.runs.run_folder import RunFolder
from core.runs.trajectory import trajectory_record
from core.types import Sampling, Task, Trajectory

Build = Callable[[Any, Any], Method]
"""(recipe, tokenizer) -> the method of a variant."""

SCORES = ("official", "strict")
"""Metrics of these names are scores in [0, 1]; a trajectory without `official` scores its reward."""


@dataclass(frozen=True)
class Plan:
    """What is evaluated, on what, how. `models` gives each seed's model of each variant, by folder or hub id.

    `labels` names what tells tasks apart, in their metadata.
    """

    recipe: Recipe
    variants: Mapping[str, Build]
    models: Mapping[int, Mapping[str, str]]
    data: str
    tasks: Sequence[Task]
    settings: Mapping[str, Any]
    labels: Sequence[str]
    sampling: Sampling
    concurrency: int
    deadline_s: float


async def evaluate(plan: Plan, models: Models, folder: RunFolder) -> None:
    """Run every cell that `folder` lacks and save it there.

    Raises:
        EvaluationError: a cell is there with other settings (checked before anything runs), or cannot be run.
        RecipeError: a role that a variant asks is missing or cannot be opened.
    """
    cells = [_cell(plan, models, folder, variant, seed) for seed in plan.models for variant in plan.models[seed]]
    todo = []
    for cell in cells:
        if is_saved(cell, folder):
            _label(cell, plan, folder)
        else:
            todo.append(cell)
    if not todo:
        return
    for url in models.urls.values():
        await check_server(url)
    start = plan.models[todo[0].seed][todo[0].variant]
    async with open_roles(plan.recipe, models.tokenizer(start), open_frozen_model) as roles:
        for cell in todo:
            folder.save_evaluation(await _run(cell, plan, models, roles, folder))


def _label(cell: Cell, plan: Plan, folder: RunFolder) -> None:
    """Give a saved result the labels that this call asks for; they are the tasks', so nothing is run again."""
    path = folder.evaluation_path / cell.file
    saved = EvalResult.load(path)
    labels = {name: column for name, column in _labels(plan.labels, plan.tasks).items() if name not in saved.labels}
    if not labels:
        return
    if saved.notes["task_ids"] != [task.task_id for task in plan.tasks]:
        raise EvaluationError(
            f"{path}: is of {saved.n} tasks without {', '.join(labels)}; to label them give --tasks {saved.n}, "
            "or delete the file"
        )
    folder.save_evaluation(replace(saved, labels={**saved.labels, **labels}))


async def _run(cell: Cell, plan: Plan, models: Models, others: Mapping[str, Policy], folder: RunFolder) -> EvalResult:
    model = plan.models[cell.seed][cell.variant]
    tokenizer = models.tokenizer(model)
    method = plan.variants[cell.variant](plan.recipe, tokenizer)
    path = (folder.evaluation_path / cell.file).with_suffix(".jsonl")
    path.unlink(missing_ok=True)
    log = JsonlLog(path)
    ended = 0

    def keep(task: Task, trajectory: Trajectory) -> None:
        nonlocal ended
        record = trajectory_record("eval", _step(model), task, trajectory, tokenizer)
        log.append({"variant": cell.variant, "data": cell.data, "seed": cell.seed, **record})
        ended += 1
        progress.update(ended)

    try:
        check_roles(method, others)
        with Progress(len(plan.tasks), label=str(cell), interval=15.0) as progress:
            async with models.policy(model, models.limit(model)) as policy:
                ran = await run_cell(
                    cell,
                    method,
                    Roles({**others, "policy": policy}),
                    plan.tasks,
                    concurrency=plan.concurrency,
                    deadline_s=plan.deadline_s,
                    ended=keep,
                )
    finally:
        log.close()
        await method.close()
    result = cell_result(cell, plan.tasks, ran, plan.labels)
    means = ", ".join(f"{name} {100 * sum(values) / result.n:.1f}" for name, values in result.scores.items())
    failed = f", failed: {failures_of(ran.trajectories).describe()}" if result.failures else ""
    print(f"{cell}: {means} of {result.n} tasks in {ran.seconds:.1f} s{failed}", flush=True)
    return result


def cell_result(cell: Cell, tasks: Sequence[Task], ran: Ran, labels: Sequence[str]) -> EvalResult:
    """Scores, measures and labels of every task; a failed one scores 0 and has no measures.

    A metric that only some finished trajectories have is 0 in the others, as in training.

    Raises:
        EvaluationError: a score outside of [0, 1].
    """
    trajectories = ran.trajectories
    finished = [trajectory for trajectory in trajectories if trajectory.status != "failed"]
    names = dict.fromkeys(name for trajectory in finished for name in trajectory.metrics)
    values: dict[str, list[float | None]] = {
        name: [None if t.status == "failed" else float(t.metrics.get(name, 0.0)) for t in trajectories]
        for name in names
    }
    rewards = [t.reward for t in trajectories]
    if "official" in values:
        values["reward"] = rewards
    else:
        values["official"] = rewards
    try:
        return result_of(
            cell,
            ran,
            scores={name: [value or 0.0 for value in values[name]] for name in SCORES if name in values},
            notes={"task_ids": [task.task_id for task in tasks]},
            measures={name: column for name, column in values.items() if name not in SCORES},
            labels=_labels(labels, tasks),
        )
    except ValueError as error:
        raise EvaluationError(
            f"{cell}: {error}. A method whose reward is no score in [0, 1] gives one as trajectory.metrics['official']."
        ) from error


def _labels(names: Sequence[str], tasks: Sequence[Task]) -> dict[str, list[str]]:
    """The names that any task has; a task without gets a dash."""
    found = {name: [task.metadata.get(name) for task in tasks] for name in names}
    return {
        name: ["–" if value is None else str(value) for value in column]
        for name, column in found.items()
        if any(value is not None for value in column)
    }


def _step(model: str) -> int:
    """The training step of a checkpoint; 0 for any other model."""
    match = re.fullmatch(r"step-(\d+)", Path(model).name)
    return int(match[1]) if match else 0


def _cell(plan: Plan, models: Models, folder: RunFolder, variant: str, seed: int) -> Cell:
    model = plan.models[seed][variant]
    weights = weights_of(model, folder)
    return Cell(
        variant=variant,
        data=plan.data,
        length=0,
        seed=seed,
        n=len(plan.tasks),
        model=model_name(folder, model),
        sampling=plan.sampling,
        settings=plan.settings if weights is None else {**plan.settings, "weights": weights},
        notes={"concurrency": plan.concurrency, "served": model in models.urls},
    )
