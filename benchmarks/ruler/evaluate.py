"""Evaluate a model, or the models of a training run, on RULER or HotpotQA at any document length.

    tokentrue evaluate ruler --run runs/memagent-tiny --lengths 7K 14K 28K 56K 112K 224K 448K
    tokentrue evaluate ruler --model ID_OR_PATH --data hotpotqa --hotpotqa FILE --pool FILE
    tokentrue evaluate ruler --model ID_OR_PATH --serve sglang --serve-args="--tp 2"

Variants are explained in variants.py. There is one result per variant, length and seed. Each sample is logged as it
ends (benchmarks/harness/samples.py): the same command continues where a killed one stopped, and more --tasks add to
what is there. Departures from MemAgent's official evaluation (arXiv 2507.02259, taskutils/memory_eval): answers are
boxed (variants.py), failed tasks stay in the denominator, the strict score stands beside the official one, and there is
an interval over seeds instead of a single or a best run.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from agentic.memagent.config import MemAgentSection
from agentic.memagent.rollout import SPEC
from agentic.memagent.tiny.start_model import TAGS
from benchmarks.harness.command import EvalPlan, open_target, run_evaluator, sampling_fields
from benchmarks.harness.models import EvalModels
from benchmarks.harness.options import make_evaluator_parser, positive
from benchmarks.harness.plan import EvalCell, EvaluationError, is_saved
from benchmarks.harness.run import OpenVariant, Samples, build_result, evaluate_cell, without_prompts
from benchmarks.harness.samples import flat
from benchmarks.harness.tables import published_rows
from benchmarks.ruler.eval_data import EvalData, file_data, ruler_data
from benchmarks.ruler.fit import parse_length
from benchmarks.ruler.score import score
from benchmarks.ruler.tasks import TASKS, add_task_options, read_task_options
from benchmarks.ruler.variants import VARIANTS, Reader, make_reader
from core.data.files import DataError
from core.runs.evaluation import EvalResult
from core.runs.files import Record
from core.runs.run_folder import RunFolder
from core.text.tokenizer import encode_text, load_tokenizer
from core.types import Task, Trajectory

LENGTHS = ("7K", "14K", "28K", "56K", "112K", "224K", "448K")
DAY = 86400.0
LONG = 112 * 1024
"""Above this many tokens --tasks-long says how many tasks."""

PUBLISHED = (
    # RULER-HQA (MemAgent, arXiv 2507.02259): model, our variant, source, per cent at 7K, 14K, ...
    # The published lengths are averages of 50, 100, ... documents; ours are token limits of the same name.
    ("RL-MemAgent-14B", "trained", "paper", (83.59, 82.03, 84.38, 80.47, 76.56, 81.25, 75.00, 77.34)),
    ("RL-MemAgent-7B", "trained", "paper", (82.03, 79.69, 78.91, 77.34, 79.69, 72.66, 74.22, 76.56)),
    ("MemAgent_Slime_Agentic_Qwen2.5_7B", "trained", "seed", (78.12, 76.56, 75.78, 74.22, 77.34, 72.66, 69.53)),
    ("MemAgent-7B without RL", "untrained", "figure", (59.4, 52.3, 51.6, 47.7, 35.9, 34.4, 39.1, 37.5)),
    ("Qwen2.5-7B, YaRN", "full-context", "figure", (52.3, 57.0, 51.6, 44.5, 33.0, 13.3, 6.3, 1.6)),
    ("Qwen2.5-7B-1M", "full-context", "paper", (61.72, 56.25, 53.91, 55.47, 51.56, 33.59, 12.50, 0.00)),
    ("Qwen2.5-14B-1M", "full-context", "paper", (60.16, 60.94, 50.00, 57.03, 50.00, 37.50, 8.59, 0.00)),
)
SOURCES = {
    "paper": "arXiv 2507.02259v1, Table 2",
    "figure": "arXiv 2507.02259v1, Figure 5, read off",
    "seed": "slime-agentic's model card, best of 5 runs",
}
DEPARTURES = (
    "answers are boxed, as in training; the official evaluation asks for 'the answer is'",
    "documents are cut to a token limit; the official ones have a fixed number of documents",
    "each seed draws its own distractors and their order",
    "full-context has scores only where the documents fit; the official evaluation cuts out their middle",
)


@dataclass(frozen=True)
class RulerPlan(EvalPlan):
    """Holds what a call evaluates."""

    method: MemAgentSection
    data: EvalData


def main(arguments: list[str] | None = None) -> int:
    return run_evaluator(make_parser().parse_args(arguments), prepare, evaluate)


def prepare(options: argparse.Namespace) -> RulerPlan:
    """Turn the options into a plan, checked as far as possible without running anything."""
    preset = "tiny" if options.run is None and is_tiny(load_tokenizer(options.model)) else "paper"
    target = open_target(options, SPEC, preset=preset, name="ruler")
    variants = options.variants or target.list_variants(VARIANTS)
    folder, recipe = target.folder, target.recipe
    if not any(override.startswith("memagent.max_chunks=") for override in options.overrides):
        # The official evaluation has no limit on chunks either.
        section = recipe.memagent.model_copy(update={"max_chunks": 10**9})
        recipe = recipe.model_copy(update={"memagent": section})
    models = EvalModels.from_options(options, recipe)
    named = {seed: {variant: target.model(seed, variant) for variant in variants} for seed in target.models}
    data = _make_data(options, models.tokenizer(next(iter(named.values()))[variants[0]]))
    if options.run is not None and (changed := [o for o in options.overrides if o.startswith("memagent.")]):
        # The same run read otherwise has cells of its own beside those of its recipe.
        data = replace(data, name="+".join([data.name, *(o.removeprefix("memagent.") for o in changed)]))
    cells = make_cells(
        models,
        folder,
        named,
        data,
        recipe.memagent,
        count=partial(count_tasks, data, options.tasks, options.tasks_long),
        sampling=partial(sampling_fields, options),
    )
    published, earlier = folder.published["rows"], folder.published["departures"]
    if data.name == "hqa":
        published = published_rows(
            (name, variant, "hqa", 7168 << place, percent, SOURCES[source])
            for name, variant, source, scores in PUBLISHED
            for place, percent in enumerate(scores)
        )
    departures = [*recipe.departures, *(DEPARTURES if published else ()), *earlier]
    folder.save_published(published, list(dict.fromkeys(departures)))
    return RulerPlan(folder, models, cells, recipe.memagent, data)


def count_tasks(data: EvalData, tasks: int | None, tasks_long: int | None, length: int) -> int:
    """Return how many tasks of a length are taken: by default all of a file, and else 32, or 16 above LONG."""
    default, default_long = (sys.maxsize, sys.maxsize) if "file" in data.settings else (32, 16)
    count = tasks or default
    if length > LONG:
        count = tasks_long or min(count, default_long)
    return int(min(count, data.available(length)))


def make_cells(
    models: EvalModels,
    folder: RunFolder,
    named: Mapping[int, Mapping[str, str]],
    data: EvalData,
    method: MemAgentSection,
    *,
    count: Callable[[int], int],
    sampling: Callable[[str], dict[str, Any]],
) -> list[EvalCell]:
    """Return the cells by seed, then by length, then by variant. `named` maps seed -> variant -> model.

    `count` returns the number of tasks of a length, `sampling` the fields of a variant's cell that say how it samples.
    """
    settings = {"data": data.settings, "memagent": method.model_dump(mode="json")}
    return [
        models.make_cell(
            folder,
            model,
            settings=settings,
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
    task_key: tuple[int, int] | None = None
    for cell in missing:
        if task_key != (cell.seed, cell.length):  # the variants of one seed and length share their tasks
            task_key = cell.seed, cell.length
            tasks = _make_tasks(plan.data, cell)
            tokenizer = models.tokenizer(cell.model_path)
            document_tokens = [_count_document_tokens(task, tokenizer) for task in tasks]
        reader = make_reader(cell.variant, plan.method, models.tokenizer(cell.model_path))
        if cell.variant == "full-context" and (reason := explain_absence(reader, cell, tasks, models)):
            print(f"note: {reason}", flush=True)
            published = folder.published
            folder.save_published(published["rows"], list(dict.fromkeys([*published["departures"], reason])))
            continue
        read = [0] * len(tasks) if cell.variant == "empty-document" else document_tokens
        await evaluate_cell(
            cell,
            tasks,
            folder,
            partial(open_reader, reader, models, cell, tasks),
            partial(ruler_result, tasks, read),
            partial(grade, reader),
        )


def explain_absence(reader: Reader, cell: EvalCell, tasks: Sequence[Task], models: EvalModels) -> str | None:
    """Say why a cell with whole documents stays empty: one does not fit. None: they all do.

    What a model answers to a document without its middle, as in the official evaluation, tells little about it.
    """
    reader.prepare(tasks)
    longest, limit = reader.context(tasks), models.limit(cell.model_path)
    if longest <= limit:
        return None
    return (
        f"{cell.variant} has no score at {cell.length} tokens: prompt and answer take up to {longest:,} tokens, "
        f"and the model has a context of {limit:,}"
    )


@asynccontextmanager
async def open_reader(
    reader: Reader, models: EvalModels, cell: EvalCell, tasks: Sequence[Task]
) -> AsyncIterator[OpenVariant]:
    """Open a reader that has prepared the tasks, with a policy whose context they need.

    Raises:
        EvaluationError: the model's context is too small.
    """
    model = cell.model_path
    limit = models.limit(model)
    reader.prepare(tasks)
    context = reader.context(tasks)
    if context > limit:
        raise EvaluationError(
            f"{cell}: a turn may take {context} tokens, but {model} has a context of {limit}. Lower "
            "memagent.chunk_tokens with --set; where a server allows more, say so with --context."
        )
    async with models.policy(model, context) as policy:
        yield OpenVariant(reader, {"policy": policy}, models.tokenizer(model), reader.calls)


async def grade(reader: Reader, task: Task, trajectory: Trajectory) -> tuple[Trajectory, Record]:
    """Score the answer; the log leaves out the prompts, which would repeat the document."""
    answer = None if trajectory.status == "failed" else str(trajectory.log["answer"])
    return without_prompts(trajectory), {"scores": score(task, answer, box_required=reader.box_required)}


def ruler_result(tasks: Sequence[Task], document_tokens: Sequence[int], cell: EvalCell, samples: Samples) -> EvalResult:
    """Build a result with the scores of every task, failed ones among them with 0."""
    records = flat(samples)
    names = [name for name in records[0]["scores"] if all(name in record["scores"] for record in records)]
    return build_result(
        cell,
        samples,
        scores={"official" if n == "score" else n: [record["scores"][n] for record in records] for n in names},
        notes={"task_ids": [question_id(task) for task in tasks]},
        document_tokens=list(document_tokens),
    )


def question_id(task: Task) -> str:
    """Return an id that is the same wherever the same question is asked: samples of questions from a file have other
    distractors for each seed, and are still the same questions."""
    known = task.metadata
    return str(known.get("source_id") or known["index"]) if {"num_docs", "index"} <= known.keys() else task.task_id


def is_tiny(tokenizer: Any) -> bool:
    """Return whether this is the tokenizer of the `tiny` preset, to which the paper's tags are tokens."""
    return set(TAGS) <= tokenizer.get_vocab().keys()


def _make_data(options: argparse.Namespace, tokenizer: Any) -> EvalData:
    """Raises EvaluationError or DataError, naming the option or the file."""
    chosen = read_task_options(options)
    try:
        lengths = list(dict.fromkeys(map(parse_length, options.lengths or ())))
        if options.data not in ("ruler", "hotpotqa"):
            if chosen or options.task:
                raise ValueError("--task and its options are for generated data; --data names a file")
            return file_data(Path(options.data), tokenizer=tokenizer, lengths=lengths)
        tiny = is_tiny(tokenizer)
        task = options.task or ("hqa" if options.data == "hotpotqa" else "niah" if tiny else "niah_multikey_2")
        return ruler_data(
            task,
            chosen,
            tiny=tiny,
            lengths=lengths or [parse_length(text) for text in LENGTHS],
            tokenizer=tokenizer,
        )
    except DataError:
        raise
    except (ValueError, OSError) as error:
        raise EvaluationError(str(error)) from error


def _make_tasks(data: EvalData, cell: EvalCell) -> list[Task]:
    try:
        return data.tasks(cell.length, cell.seed, cell.n)
    except DataError:
        raise
    except ValueError as error:
        raise EvaluationError(
            f"length {cell.length}: {error}. Change --lengths, --tasks or the task's options."
        ) from error


def _count_document_tokens(task: Task, tokenizer: Any) -> int:
    if task.metadata.get("budget") == "document":
        return int(task.metadata["length"])
    return len(encode_text(tokenizer, task.context))


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the command's options."""
    parser = make_evaluator_parser(
        "ruler",
        __doc__,
        *("run", "baseline", "context", "seeds", "kv_tokens"),
        preset={"help": "how MemAgent reads (default: tiny for its own models, else paper)"},
        variants={"choices": VARIANTS, "metavar": None},
        tasks={"help": "tasks per length (default: 32; of a file, all)"},
        concurrency={"help": "tasks at once, the same at every length"},
        deadline={"default": DAY},
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", default="ruler", metavar="ruler|hotpotqa|FILE", help="generated, or tasks of a file")
    data.add_argument(
        "--lengths", nargs="+", metavar="N", help=f"tokens: 448, 7K = 7168, 1M (default: {' '.join(LENGTHS)})"
    )
    data.add_argument("--tasks-long", type=positive, metavar="N", help="above 112K tokens (default: at most 16)")
    data.add_argument(
        "--task", choices=TASKS, help="default: niah with tiny's words for its models, else niah_multikey_2"
    )
    add_task_options(data)
    return parser


if __name__ == "__main__":
    sys.exit(main())
