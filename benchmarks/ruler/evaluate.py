"""Evaluate a model, or the models of a training run, on RULER or HotpotQA at any document length.

    tokentrue evaluate ruler --run runs/memagent-tiny --lengths 7K 14K 28K 56K 112K 224K 448K
    tokentrue evaluate ruler --model ID_OR_PATH --data hotpotqa --hotpotqa FILE --pool FILE
    tokentrue evaluate ruler --model ID_OR_PATH --serve sglang --serve-args="--tp 2"
    tokentrue evaluate ruler --preset published --model ID_OR_PATH --data FOLDER     # MemAgent's eval_N.json
    tokentrue evaluate ruler --preset published --model ID_OR_PATH --task ruler-10 --essays FOLDER

Variants are explained in variants.py. There is one result per variant, length and seed. Each call and each sample is
kept as it ends (benchmarks/harness/calls.py, samples.py): the same command continues where a killed one stopped, and
more --tasks add to what is there. The preset `published` is MemAgent's own evaluation (arXiv 2507.02259,
taskutils/memory_eval). A score stands beside the published one of the same model only under it;
benchmarks/ruler/published.py computes what differs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentic.memagent.config import MemAgentRecipe, MemAgentSection
from agentic.memagent.rollout import SPEC
from benchmarks.harness.calls import KeptCalls, calls_path
from benchmarks.harness.command import (
    EvalPlan,
    Evaluator,
    make_evaluator_parser,
    open_target,
    positive,
    sampling_fields,
)
from benchmarks.harness.models import EvalModels
from benchmarks.harness.plan import EvalCell, EvaluationError, is_saved, tell_all_taken
from benchmarks.harness.published import Protocol, Settings, compare_cells, read_scores, save_published
from benchmarks.harness.run import OpenVariant, build_result, evaluate_cell, pool_results
from benchmarks.harness.samples import Samples, flat
from benchmarks.ruler.eval_data import EvalData, file_data, official_data, ruler_data
from benchmarks.ruler.generate import parse_length
from benchmarks.ruler.hqa import read_hotpotqa
from benchmarks.ruler.published import AVERAGE, WINDOW, our_settings, protocol
from benchmarks.ruler.score import score
from benchmarks.ruler.tasks import TASKS, TEN_TASKS, add_task_options, allowed_options, read_task_options
from benchmarks.ruler.variants import VARIANTS, Reader, Window, make_reader
from core.data import iter_tasks
from core.data.files import DataError
from core.runs.evaluation import EvalResult, file_name
from core.runs.files import JsonlLog, Record
from core.runs.progress import Progress
from core.runs.run_folder import RunFolder
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Task, Trajectory

LENGTHS = ("7K", "14K", "28K", "56K", "112K", "224K", "448K")
DAY = 86400.0
LONG = 112 * 1024
"""Above this many tokens fewer tasks are taken, where --tasks says nothing."""

RULER_LENGTHS = ("8K", "16K", "32K", "64K", "128K", "256K", "512K")
"""Lists the lengths of the published average over ten tasks."""


@dataclass(frozen=True)
class RulerPlan(EvalPlan):
    """Holds what a call evaluates."""

    method: MemAgentSection
    data: Mapping[str, EvalData]
    """Maps the names of data sets to them."""
    window: Window | None = None
    """Limits what full-context reads; None: it reads whole documents."""


def prepare(options: argparse.Namespace) -> RulerPlan:
    """Turn the options into a plan, checked as far as possible without running anything."""
    target = open_target(options, SPEC, preset="paper", name="ruler")
    variants = options.variants or target.list_variants(VARIANTS)
    folder, recipe = target.folder, target.recipe
    if not any(override.startswith("memagent.max_chunks=") for override in options.overrides):
        # The official evaluation has no limit on chunks either.
        section = recipe.memagent.model_copy(update={"max_chunks": 10**9})
        recipe = recipe.model_copy(update={"memagent": section})
    models = EvalModels.from_options(options, recipe, "ruler")
    named = {seed: {variant: target.model(seed, variant) for variant in variants} for seed in target.models}
    published = recipe.preset == "published"
    tasks = options.tasks or (recipe.run.eval_tasks if published else None)
    # The compact prompts are those of models whose words are the tiny world's.
    tiny = recipe.memagent.prompt_style == "compact"
    chosen = _make_data(options, models.tokenizer(next(iter(named.values()))[variants[0]]), published, tiny)
    if options.run is not None and (changed := [o for o in options.overrides if o.startswith("memagent.")]):
        # The same run read otherwise has cells of its own beside those of its recipe.
        suffix = "".join(f"+{override.removeprefix('memagent.')}" for override in changed)
        chosen = [replace(data, name=data.name + suffix) for data in chosen]
    for each, length in ((data, length) for data in chosen for length in data.lengths):
        if math.isfinite(most := each.available(length)):
            tell_all_taken(f"{each.name} at length {length}", int(most), options.tasks)
    if options.run is not None:
        for line in list_trained(recipe, options, chosen, tasks):
            print(f"note: {line}")
            save_published(folder, (), [line])
    if options.window and "full-context" not in variants:
        raise EvaluationError(f"--window is for the variant full-context; the variants are {', '.join(variants)}")
    window = Window(*options.window) if options.window else WINDOW if published else None
    cells = [
        cell
        for data in chosen
        for cell in make_cells(
            models,
            folder,
            named,
            data,
            recipe.memagent,
            count=partial(count_tasks, data, tasks),
            sampling=partial(sampling_fields, options),
            window=window,
        )
    ]
    plan = RulerPlan(folder, models, cells, recipe.memagent, {data.name: data for data in chosen}, window)
    return compare_with_published(plan, options.published_as)


def list_trained(
    recipe: MemAgentRecipe, options: argparse.Namespace, chosen: Sequence[EvalData], tasks: int | None
) -> Iterator[str]:
    """Say how many evaluated questions of a file, or of those whose paragraphs may be distractors, a run trains on."""
    found = {
        path: {(item.source_id, item.question) for item in read_hotpotqa(path)} for path in [options.hotpotqa] if path
    }
    for data in chosen if Path(options.data).is_file() else ():
        taken = (data.tasks(length, 0, count_tasks(data, tasks, length)) for length in data.lengths)
        found[options.data] = {(task.task_id, task.question) for each in taken for task in each}
    train = recipe.data.train
    if not found or not Path(train).is_file():
        return
    trained = {(task.task_id, task.question) for task in iter_tasks(train, **SPEC.reading_options(recipe))}
    for path, asked in found.items():
        if known := len(asked & trained):
            what = "evaluated questions" if path == options.data else "questions whose paragraphs may be distractors"
            yield f"{path}: {known:,} of {len(asked):,} {what} are in the run's data.train"


def compare_with_published(plan: RulerPlan, published_as: str | None) -> RulerPlan:
    """Save the published scores of the plan's data and how the plan departs from their protocol.

    Returns the plan whose cells say which protocol they follow.
    """
    tasks = {data.settings.get("task") for data in plan.data.values()}
    published = {"hqa": "ruler-hqa"} if "hqa" in tasks else {}
    published |= dict.fromkeys(TEN_TASKS, AVERAGE) if tasks >= set(TEN_TASKS) else {}

    def describe(cell: EvalCell) -> tuple[Protocol, Settings] | None:
        data = plan.data[cell.data]
        task = data.settings.get("task")
        if task not in published:
            return None
        theirs = protocol(cell.variant, "hqa" if task == "hqa" else "ruler", plan.window)
        return theirs, our_settings(cell.variant, data, plan.method, cell.n, cell.sampling, plan.window)

    rows = [row for name in dict.fromkeys(published.values()) for row in read_scores("ruler", name)]
    departures = plan.models.recipe.departures
    cells = compare_cells(plan.folder, plan.cells, describe, rows, departures=departures, published_as=published_as)
    return replace(plan, cells=cells)


def count_tasks(data: EvalData, tasks: int | None, length: int) -> int:
    """Return how many tasks of a length are taken: by default all of a file, and else 32, or 16 above LONG."""
    most = data.available(length)
    default = most if math.isfinite(most) else 16 if length > LONG else 32
    return int(min(tasks or default, most))


def make_cells(
    models: EvalModels,
    folder: RunFolder,
    named: Mapping[int, Mapping[str, str]],
    data: EvalData,
    method: MemAgentSection,
    *,
    count: Callable[[int], int],
    sampling: Callable[[str], dict[str, Any]],
    window: Window | None = None,
) -> list[EvalCell]:
    """Return the cells by seed, then by length, then by variant. `named` maps seed -> variant -> model.

    `count` returns the number of tasks of a length, `sampling` the fields of a variant's cell that say how it samples.
    """
    shared = {"memagent": method.model_dump(mode="json")}
    chosen = {length: data.settings_at(length) for length in data.lengths}
    limits = {"full-context": {"window": asdict(window)}} if window else {}
    return [
        models.make_cell(
            folder,
            model,
            settings={"data": chosen[length], **shared, **limits.get(variant, {})},
            variant=variant,
            data=data.name,
            length=length,
            seed=seed,
            n=count(length),
            **sampling(variant),
        )
        for seed, of_seed in named.items()
        for length in data.lengths
        for variant, model in of_seed.items()
    ]


async def evaluate(plan: RulerPlan) -> None:
    """Run every cell that the folder lacks and save it there.

    Raises:
        EvaluationError: a cell is there with other settings (checked before anything runs), or cannot be run.
    """
    folder, models = plan.folder, plan.models
    if uneven := dict.fromkeys(cell.length for cell in plan.cells if cell.n % cell.concurrency):
        lengths, slots = ", ".join(map(str, uneven)), models.concurrency
        print(f"note: at length {lengths} tasks do not fill {slots} slots evenly; their time compares badly")
    missing = [cell for cell in plan.cells if not is_saved(cell, folder)]
    await models.check_servers(missing)
    # What has no score is found again below.
    save_published(folder, (), (), [lack_score(cell) for cell in plan.cells])
    task_key: tuple[str, int, int] | None = None
    for cell in missing:
        if task_key != (cell.data, cell.seed, cell.length):  # the variants of one seed and length share their tasks
            task_key = cell.data, cell.seed, cell.length
            tasks, document_tokens = _make_tasks(plan.data[cell.data], cell, models.tokenizer(cell.model_path))
        reader = make_reader(cell.variant, plan.method, models.tokenizer(cell.model_path), plan.window)
        reader.prepare(tasks)
        context, limit = reader.context(tasks), models.limit(cell.model_path)
        if context > limit and cell.variant == "full-context":
            # An answer to a document without its middle tells little; --window asks for that all the same.
            takes = f"prompt and answer take up to {context:,} tokens, and the model has a context of {limit:,}"
            reason = f"{lack_score(cell)} {takes}"
            print(f"note: {reason}", flush=True)
            save_published(folder, (), [reason])
            continue
        if context > limit:
            raise EvaluationError(
                f"{cell}: a turn may take {context} tokens, but {cell.model_path} has a context of {limit}. Lower "
                "memagent.chunk_tokens with --set; where a server allows more, say so with --context."
            )
        read = [0] * len(tasks) if cell.variant == "empty-document" else document_tokens
        await evaluate_cell(
            cell,
            tasks,
            folder,
            partial(open_reader, reader, models, cell, context, folder),
            partial(ruler_result, tasks, read),
            partial(grade, reader),
        )
        calls_path(folder, cell).unlink(missing_ok=True)
    save_averages(folder, plan.data.keys())


def lack_score(cell: EvalCell) -> str:
    """Return how the note on a cell without a score begins."""
    return f"{cell.variant} has no score on {cell.data} at {cell.length} tokens:"


def save_averages(folder: RunFolder, data: Set[str]) -> None:
    """Save the averages of these data sets, and anew those that an earlier call has made of one of them.

    One whose tasks can no longer be averaged is deleted.
    """
    saved = folder.evaluations()
    earlier = [result for result in saved if data & {*result.settings.get("pooled", ())}]
    averages = [
        average
        for names in {frozenset(data), *(frozenset(result.settings["pooled"]) for result in earlier)}
        for average in average_tasks([result for result in saved if result.data in names])
    ]
    kept = [folder.save_evaluation(average) for average in averages]
    for result in earlier:
        path = folder.evaluation_path / file_name(result.variant, result.data, result.length, result.seed)
        if path not in kept:
            path.unlink()


def average_tasks(results: Sequence[EvalResult]) -> Iterator[EvalResult]:
    """Yield the mean over the ten tasks of MemAgent's RULER average, for each variant, length and seed that has all.

    It pools the tasks' samples, as many of each, so that their mean is the mean over the tasks.
    """
    cells: dict[tuple[str, int, int], dict[str, EvalResult]] = {}
    for result in results:
        task = result.settings["data"].get("task")
        if task in TEN_TASKS:
            cells.setdefault((result.variant, result.length, result.seed), {})[task] = result
    for (_, length, _), tasks in cells.items():
        if len(tasks) < len(TEN_TASKS):
            continue
        if len({result.n for result in tasks.values()}) > 1:
            print(f"note: no average at {length}: its tasks have different numbers of samples", flush=True)
            continue
        # Tasks that were made or read otherwise have another average than MemAgent's, and its name says so.
        changes = dict.fromkeys(part for result in tasks.values() for part in result.data.split("+")[1:])
        yield pool_results(list(tasks.values()), "+".join([AVERAGE, *changes]))


@asynccontextmanager
async def open_reader(
    reader: Reader, models: EvalModels, cell: EvalCell, context: int, folder: RunFolder
) -> AsyncIterator[OpenVariant]:
    """Open a reader that has prepared its tasks, with a policy for calls of up to `context` tokens, which are kept."""
    async with models.policy(cell.model_path, context) as policy:
        with closing(JsonlLog(calls_path(folder, cell))) as log:
            kept = KeptCalls(policy, log, cell)
            if kept.left:
                told = f"{cell}: {kept.left:,} calls of a killed process are not made again, and its seconds lack them"
                print(f"note: {told}; to make them, delete {log.path}", flush=True)
            yield OpenVariant(reader, {"policy": kept}, models.tokenizer(cell.model_path))


async def grade(reader: Reader, task: Task, trajectory: Trajectory) -> tuple[Trajectory, Record]:
    """Score the answer."""
    answer = None if trajectory.status == "failed" else str(trajectory.log.get("answer", ""))
    return trajectory, {"scores": score(task, answer, reader.read_answer)}


def ruler_result(tasks: Sequence[Task], document_tokens: Sequence[int], cell: EvalCell, samples: Samples) -> EvalResult:
    """Build a result with the scores of every task, failed ones among them with 0."""
    scores = [sample.graded["scores"] for sample in flat(samples)]
    names = [name for name in scores[0] if all(name in of_one for of_one in scores)]
    return build_result(
        cell,
        samples,
        scores={"official" if n == "score" else n: [of_one[n] for of_one in scores] for n in names},
        notes={"task_ids": list_ids(tasks)},
        document_tokens=list(document_tokens),
    )


def list_ids(tasks: Sequence[Task]) -> list[str]:
    """Return the `question_id` of each task, or the tasks' own ids where two have the same: variants pair by them."""
    ids = [question_id(task) for task in tasks]
    return ids if len(set(ids)) == len(ids) else [task.task_id for task in tasks]


def question_id(task: Task) -> str:
    """Return an id that is the same wherever the same question is asked: samples of questions from a file have other
    distractors for each seed, and are still the same questions."""
    known = task.metadata
    return str(known.get("source_id") or known["index"]) if {"num_docs", "index"} <= known.keys() else task.task_id


def _make_data(options: argparse.Namespace, tokenizer: Tokenizer, published: bool, tiny: bool) -> list[EvalData]:
    """Raises EvaluationError, naming the option or the file."""
    chosen = read_task_options(options)
    tasks = [name for word in options.task or () for name in (TEN_TASKS if word == AVERAGE else (word,))]
    try:
        lengths = list(dict.fromkeys(map(parse_length, options.lengths or ())))
        if options.data not in ("ruler", "hotpotqa"):
            path = Path(options.data)
            if chosen or (tasks and not path.is_dir()):
                raise ValueError("--task and its options are for generated data; --data names a file")
            if path.is_dir():
                return [official_data(path, task, lengths) for task in tasks or ["hqa"]]
            return [file_data(path, tokenizer=tokenizer, lengths=lengths)]
        tasks = tasks or ["hqa" if options.data == "hotpotqa" else "niah" if tiny else "niah_multikey_2"]
        known = set().union(*map(allowed_options, tasks))
        if unknown := [name for name in chosen if name not in known]:
            raise ValueError(f"task {', '.join(tasks)} has no option {unknown[0]}; it has: {', '.join(sorted(known))}")
        as_published = published and tasks != ["hqa"]
        return [
            ruler_data(
                task,
                {name: value for name, value in chosen.items() if name in allowed_options(task)},
                tiny=tiny,
                lengths=lengths or [parse_length(text) for text in (RULER_LENGTHS if as_published else LENGTHS)],
                tokenizer=tokenizer,
                budget="prompt" if as_published else "document",
            )
            for task in tasks
        ]
    except (ValueError, OSError) as error:
        raise EvaluationError(str(error)) from error


def _make_tasks(data: EvalData, cell: EvalCell, tokenizer: Tokenizer) -> tuple[list[Task], list[int]]:
    """Return the tasks and the tokens of their documents. Long ones take minutes, so a line shows how many are made."""
    tasks, tokens = list[Task](), list[int]()
    # A file's own counts may be those of another tokenizer.
    counted = data.settings.get("limit") == "document"
    try:
        with Progress(cell.n, f"tasks · {cell.data} {cell.length} · seed {cell.seed}") as progress:
            for task in data.tasks(cell.length, cell.seed, cell.n):
                tasks.append(task)
                tokens.append(task.metadata["length"] if counted else len(encode_text(tokenizer, task.context)))
                progress.update(len(tasks))
        return tasks, tokens
    except DataError:
        raise
    except ValueError as error:
        raise EvaluationError(
            f"length {cell.length}: {error}. Change --lengths, --tasks or the task's options."
        ) from error


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = make_evaluator_parser(
        "ruler",
        __doc__,
        *("run", "untrained", "published_as", "context", "seeds", "kv_tokens"),
        preset={"help": "how MemAgent reads (default: paper)"},
        variants={"choices": VARIANTS, "metavar": None},
        tasks={"help": "tasks per length (default: 32, above 112K tokens 16; of a file all; published: 128)"},
        concurrency={"help": "tasks at once, the same at every length"},
        deadline={"default": DAY},
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        default="ruler",
        metavar="ruler|hotpotqa|FILE|FOLDER",
        help="generated, tasks of a file, or MemAgent's own evaluation files",
    )
    data.add_argument(
        "--lengths",
        nargs="+",
        metavar="N",
        help=f"tokens: 448, 7K = 7168, 1M (default: a file's own, or {' '.join(LENGTHS)}; with the preset published, "
        f"but for hqa, {' '.join(RULER_LENGTHS)})",
    )
    data.add_argument(
        "--task",
        nargs="+",
        choices=(*TASKS, AVERAGE),
        metavar="TASK",
        help=f"one or more of {', '.join(TASKS)}, or {AVERAGE} (default: niah_multikey_2, tiny's niah, "
        "or of HotpotQA hqa)",
    )
    data.add_argument(
        "--window",
        nargs=2,
        type=positive,
        metavar=("PROMPT", "ANSWER"),
        help="full-context: tokens of the prompt, which loses its middle, and of the answer (default: all that fits; "
        f"with the preset published {WINDOW.prompt_tokens} {WINDOW.answer_tokens})",
    )
    add_task_options(data)
    return parser


EVALUATOR = Evaluator(make_parser, prepare, evaluate)
main = EVALUATOR.main
