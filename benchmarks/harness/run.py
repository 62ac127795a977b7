"""The loop that all evaluators share: sample what is missing of a cell, then build its result from the record alone.

Results of several data sets are pooled into one, where what was published is a mean over them.
"""

from __future__ import annotations

import asyncio
import re
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness.models import EvalModels
from benchmarks.harness.plan import EvalCell, EvaluationError, sampling_record
from benchmarks.harness.samples import SampleLog, Samples, describe_weights, flat, session_seconds
from core.config import HealthSection
from core.policy.base import Policy, Roles
from core.rollout.method import Method, RolloutError, check_roles
from core.rollout.roles import open_roles, open_trained_roles
from core.rollout.runner import Failures, Runner
from core.runs.evaluation import EvalResult
from core.runs.files import Record
from core.runs.health import Health, count_continued, share_recomputed
from core.runs.progress import Progress
from core.runs.record import record_rollout
from core.runs.run_folder import RunFolder
from core.text.tokenizer import Ids, Tokenizer
from core.train import open_frozen_model
from core.types import Sampling, Task, Trajectory, Turn


@dataclass(frozen=True)
class OpenVariant:
    """Holds what a variant's rollouts need while it is open."""

    method: Method
    policies: Mapping[str, Policy]
    """Names every role that the method asks."""
    tokenizer: Tokenizer | None


Grade = Callable[[Task, Trajectory], Awaitable[tuple[Trajectory, Record]]]
"""(task, trajectory) -> the trajectory as it is recorded, and what the benchmark adds to its line."""

Opener = Callable[[], AbstractAsyncContextManager[OpenVariant]]

MakeResult = Callable[[EvalCell, Samples], EvalResult]

SCORES = ("official", "strict")
"""Names the scores that are printed when a cell is complete. A metric of such a name is a score in [0, 1]."""

Build = Callable[[Any, Any], Method]
"""Makes the method of a variant from (recipe, tokenizer)."""


async def ask_once(
    task: Task, policy: Policy, role: str, prompt: Ids, sampling: Sampling, tokenizer: Tokenizer
) -> Trajectory:
    """Return the rollout that is one call, with reward 0 and the answer in its log.

    Raises:
        RolloutError: the engine aborted the call.
    """
    completion = await policy.generate(prompt, replace(sampling, stop_token_ids=(tokenizer.eos_token_id,)))
    if completion.finish_reason == "abort":
        raise RolloutError("aborted", f"the engine aborted task {task.task_id}")
    return Trajectory(
        task.task_id,
        turns=(Turn(role, prompt, completion, trained=False),),
        status="truncated" if completion.finish_reason == "length" else "completed",
        reward=0.0,
        log={"answer": str(tokenizer.decode(completion.token_ids, skip_special_tokens=True))},
    )


async def record_as_is(task: Task, trajectory: Trajectory) -> tuple[Trajectory, Record]:
    """Record the trajectory without further fields."""
    return trajectory, {}


@asynccontextmanager
async def open_agent(build: Build, models: EvalModels, cell: EvalCell) -> AsyncIterator[OpenVariant]:
    """Open a variant that runs a method, with the recipe's roles."""
    async with (
        open_roles(models.recipe, models.tokenizer(cell.model_path), open_frozen_model) as roles,
        open_method(build, models, cell, roles) as variant,
    ):
        yield variant


@asynccontextmanager
async def open_method(
    build: Build, models: EvalModels, cell: EvalCell, others: Mapping[str, Policy]
) -> AsyncIterator[OpenVariant]:
    """Open a variant that runs a method: `others` are its roles beside `policy`.

    Raises:
        RecipeError: the method asks a role that is not there.
        ServerError: the model's server does not answer.
    """
    await models.check_servers([cell])
    model = cell.model_path
    tokenizer = models.tokenizer(model)
    method = build(models.recipe, tokenizer)
    try:
        check_roles(method, {*others, *models.recipe.trained_roles})
        async with (
            models.policy(model, models.limit(model)) as policy,
            open_trained_roles(models.recipe, Path(model), open_frozen_model) as trained,
        ):
            yield OpenVariant(method, {**others, **trained, "policy": policy}, tokenizer)
    finally:
        await method.close()


async def evaluate_cell(
    cell: EvalCell,
    tasks: Sequence[Task],
    folder: RunFolder,
    opener: Opener,
    make_result: MakeResult,
    grade: Grade = record_as_is,
) -> EvalResult:
    """Run the samples of a cell that its record lacks, then build its result from the record alone and save it.

    Raises:
        EvaluationError: every sample failed, which says nothing about the model; these samples are not kept.
    """
    log = SampleLog(folder, cell)
    try:
        samples = log.load_samples(tasks)
        if pending := log.list_pending(tasks, samples):
            places = {task.task_id: place for place, task in enumerate(tasks)}
            async with opener() as variant:
                recomputed = await _run(cell, pending, places, log, variant, grade)
            samples = log.load_samples(tasks)
        failures = Failures(flat(samples))
        if failures.counts.total() == len(flat(samples)):
            log.drop_failed()
            raise EvaluationError(
                f"{cell}: every sample failed: {failures.describe()}. Correct the cause, then run the command again."
            )
        result = make_result(cell, samples)
        if mixed := describe_weights(samples):
            result = replace(result, notes={**result.notes, "mixed_weights": mixed})
            print(f"warning: {cell}: {mixed}", file=sys.stderr)
        log.sync()
        path, repeats = folder.evaluation_path / cell.file, cell.repeats or 1
        before = EvalResult.load(path) if path.is_file() else result
        if before.n > result.n or before.notes.get("repeats", 1) > repeats:
            size = f"{result.n} tasks" + f" x {repeats} samples" * (cell.repeats is not None)
            print(f"note: {cell}: this result of {size} replaces one of more, whose samples stay", flush=True)
        folder.save_evaluation(result)
    finally:
        log.close()
    if pending:
        means = ", ".join(f"{name} {100 * fmean(result.scores[name]):.1f}" for name in SCORES if name in result.scores)
        failed = f", failed: {failures.describe()}" if failures.counts else ""
        print(f"{cell}: {means} of {result.n} tasks in {result.seconds:.1f} s{failed}", flush=True)
        for warning in Health(HealthSection(patience=1)).update({"recomputed": recomputed}):
            print(f"{cell}: {warning}", flush=True)
    return result


async def _run(
    cell: EvalCell,
    pending: Sequence[tuple[int, Task]],
    places: Mapping[str, int],
    log: SampleLog,
    variant: OpenVariant,
    grade: Grade,
) -> float | None:
    """Run samples; `places` numbers all tasks of the cell, as the record does. Return their `share_recomputed`."""
    counts = []
    with Progress(len(pending), label=str(cell)) as progress:
        finished, roles = 0, Roles(variant.policies)
        runner = Runner(variant.method, roles, concurrency=cell.concurrency, deadline_s=cell.deadline_s)
        began, cpu_began = time.perf_counter(), time.process_time()

        async def run_one(repeat: int, task: Task) -> None:
            nonlocal finished
            trajectory = await runner.run_one(task, replace(cell.sampling, seed=cell.sample_seed(task, repeat)))
            counts.append(count_continued(trajectory))
            recorded, graded = await grade(task, trajectory)
            log.append(
                record_rollout("eval", _training_step(cell.model), places[task.task_id], task, recorded),
                variant.tokenizer,
                repeat=repeat,
                graded=graded,
                elapsed=time.perf_counter() - began,
                cpu_elapsed=time.process_time() - cpu_began,
            )
            finished += 1
            progress.update(finished)

        await asyncio.gather(*(run_one(repeat, task) for repeat, task in pending))
    return share_recomputed(counts)


def build_result(
    cell: EvalCell,
    samples: Samples,
    *,
    scores: Mapping[str, list[float]],
    notes: Mapping[str, Any] | None = None,
    **fields: Any,
) -> EvalResult:
    """Build the result of a cell from its samples. `scores` has a value for each task, `fields` are further fields.

    A task's turns and tokens are those of all its repeats together, and it counts as failed if one of them has failed.
    `seconds` and the note `cpu_seconds`, which counts this process alone, are sums over the sessions that worked on the
    cell.

    Raises:
        ValueError: a score lies outside of [0, 1].
    """
    every = flat(samples)
    failed = [[str(sample.failure) for sample in of_task if sample.failed] for of_task in samples]
    repeated = {} if cell.repeats is None else {"repeats": cell.repeats}
    answers = [sample.log.get("answer") for sample in every]
    predictions = [None if answer is None else str(answer) for answer in answers]
    return EvalResult(
        variant=cell.variant,
        data=cell.data,
        length=cell.length,
        seed=cell.seed,
        n=len(samples),
        scores=scores,
        turns=[sum(sample.turns for sample in of_task) for of_task in samples],
        seconds=session_seconds(every),
        failures=dict(Counter(kinds[0] for kinds in failed if kinds)),
        model=cell.model,
        sampling=sampling_record(cell.sampling),
        predictions=predictions if cell.repeats is None else None,
        policy_tokens=[sum(sample.policy_tokens for sample in of_task) for of_task in samples],
        settings=cell.settings,
        notes={
            "concurrency": cell.concurrency,
            "task_ids": [of_task[0].task_id for of_task in samples],
            **repeated,
            **cell.notes,
            **(notes or {}),
            "cpu_seconds": round(session_seconds(every, cpu=True), 3),
        },
        **{"document_tokens": [0] * len(samples), **fields},
    )


def _training_step(model: str) -> int:
    """Return the training step of a checkpoint, 0 for any other model."""
    match = re.fullmatch(r"step-(\d+)", Path(model).name)
    return int(match[1]) if match else 0


def pool_results(results: Sequence[EvalResult], data: str) -> EvalResult:
    """Return the tasks of all `results` side by side, as the data set `data`, with the scores and measures of all.

    The pool follows a published protocol only if all `results` follow the same.
    """
    first = results[0]
    protocols = {result.notes.get("protocol") for result in results}
    counts = [result.policy_tokens for result in results]
    return EvalResult(
        variant=first.variant,
        data=data,
        length=first.length,
        seed=first.seed,
        n=sum(result.n for result in results),
        scores=_join([result.scores for result in results]),
        turns=_chain(result.turns for result in results),
        document_tokens=_chain(result.document_tokens for result in results),
        seconds=sum(result.seconds for result in results),
        failures=dict(sum((Counter(result.failures) for result in results), Counter())),
        model=first.model,
        sampling=first.sampling,
        policy_tokens=None if None in counts else _chain(count for count in counts if count is not None),
        measures=_join([result.measures for result in results]),
        settings={"pooled": [result.data for result in results]},
        notes={
            "published_as": first.notes.get("published_as"),
            "protocol": protocols.pop() if len(protocols) == 1 else None,
            "task_ids": _chain(result.notes["task_ids"] for result in results),
        },
    )


def _join(columns: Sequence[Mapping[str, Sequence[Any]]]) -> dict[str, list[Any]]:
    return {name: _chain(of[name] for of in columns) for name in columns[0] if all(name in of for of in columns)}


def _chain(columns: Iterable[Sequence[Any]]) -> list[Any]:
    return [value for column in columns for value in column]
