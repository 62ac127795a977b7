"""Evaluate a model, or the models of a training run, on RULER or HotpotQA at any document length.

    tokentrue evaluate ruler --run runs/memagent-tiny --lengths 7K 14K 28K 56K 112K 224K 448K
    tokentrue evaluate ruler --model ID_OR_PATH --data hotpotqa --hotpotqa FILE --pool FILE
    tokentrue evaluate ruler --model ID_OR_PATH --serve sglang --serve-args="--tp 2"

Variants are explained in variants.py. One result is saved per variant, length and seed; those that are there already are not run
again, so a call that was killed goes on with the cell it was in. Departures from MemAgent's official evaluation (arXiv
2507.02259, taskutils/memory_eval): answers are boxed (variants.py), failed tasks stay in the denominator, the strict score
stands beside the official one, and there is an interval over seeds instead of a single or a best run.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path
from typing import Any, get_args

import torch

from agentic.memagent.config import MemAgentRecipe
from agentic.memagent.rollout import SPEC
from agentic.memagent.tiny.start_model import TAGS
from benchmarks import kinds
from benchmarks.cells import EXPECTED_ERRORS, EvaluationError
from benchmarks.models import Models, start_model, trained_models
from benchmarks.ruler.eval_data import EvalData, file_data, ruler_data
from benchmarks.ruler.evaluation import Plan, evaluate
from benchmarks.ruler.fit import parse_length
from benchmarks.ruler.published import DEPARTURES, published_rows
from benchmarks.ruler.sample import Budget, Metric
from benchmarks.ruler.tasks import OPTIONS, TASKS
from benchmarks.ruler.variants import VARIANTS
from benchmarks.serving import add_server_options, check_server_options, server
from core.data.files import DataError
from core.report import write_report
from core.report.console import print_summary
from core.runs.run_folder import RunFolder
from core.text.tokenizer import load_tokenizer
from core.types import Sampling

LENGTHS = ("7K", "14K", "28K", "56K", "112K", "224K", "448K")
DAY = 86400.0
ModelsOfSeed = dict[int, dict[str, str]]


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    try:
        folder, plan, models = prepare(options)
        with server(options, folder.path) as urls:
            models.urls |= urls
            asyncio.run(evaluate(plan, models, folder))
        summary = _report(folder)
    except EXPECTED_ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print_summary(summary)
    print(f"report: {folder.path / 'report.html'}")
    return 0


def prepare(options: argparse.Namespace) -> tuple[RunFolder, Plan, Models]:
    """Options into what is to be done, checked as far as can be without running anything."""
    if (options.run is None) == (options.model is None):
        raise EvaluationError("give either --model ID_OR_PATH or --run RUN_DIR")
    check_server_options(options)
    if options.run is not None:
        folder, recipe, named = _from_run(options)
        main_model = next(iter(named.values()))["trained"]
        tokenizer = load_tokenizer(main_model)
    else:
        main_model = options.model
        tokenizer = load_tokenizer(main_model)
        folder, recipe, named = _from_model(options, is_tiny(tokenizer))
    variants = options.variants or [
        variant for variant in VARIANTS if all(variant in of_seed for of_seed in named.values())
    ]
    if absent := [variant for variant in variants if any(variant not in of_seed for of_seed in named.values())]:
        raise EvaluationError(
            f"variant {absent[0]}: no model for it. Name the model that training started from: --baseline."
        )
    if not any(override.startswith("memagent.max_chunks=") for override in options.overrides):
        recipe = uncapped(recipe)
    if threads := options.threads or recipe.engine.threads:
        torch.set_num_threads(threads)
    data = _data(options, tokenizer)
    published = published_rows() if data.name == "hqa" else folder.published["rows"]
    folder.save_published(published, [*recipe.departures, *(DEPARTURES if published else ())])
    default, default_long = (32, 16) if "file" not in data.settings else (sys.maxsize, sys.maxsize)
    tasks = options.tasks or default
    plan = Plan(
        method=recipe.memagent,
        data=data,
        models={seed: {variant: of_seed[variant] for variant in variants} for seed, of_seed in named.items()},
        tasks=tasks,
        tasks_long=options.tasks_long or min(tasks, default_long),
        sampling=Sampling(temperature=options.temperature, top_p=options.top_p),
        concurrency=options.concurrency,
        deadline_s=options.deadline,
    )
    urls = {main_model: options.policy_url} if options.policy_url else {}
    models = Models(
        recipe, concurrency=options.concurrency, urls=urls, kv_tokens=options.kv_tokens, context=options.context
    )
    return folder, plan, models


def _report(folder: RunFolder) -> dict[str, Any]:
    try:
        return write_report(folder)
    except ValueError as error:
        raise EvaluationError(f"the results are saved, the report is not: {error}") from error


def is_tiny(tokenizer: Any) -> bool:
    """Whether this is the tokenizer of the `tiny` preset, to which the paper's tags are tokens."""
    return set(TAGS) <= tokenizer.get_vocab().keys()


def uncapped(recipe: MemAgentRecipe) -> MemAgentRecipe:
    """As in the official evaluation, no document has too many chunks."""
    section = recipe.memagent.model_copy(update={"max_chunks": 10**9})
    return recipe.model_copy(update={"memagent": section})


def _from_run(options: argparse.Namespace) -> tuple[RunFolder, MemAgentRecipe, ModelsOfSeed]:
    """Each seed's newest checkpoint, and the model that they all started from."""
    for name in ("baseline", "preset", "policy_url", "serve", "out"):
        if getattr(options, name) is not None:
            raise EvaluationError(
                f"--{name.replace('_', '-')} goes with --model; --run brings recipe, models and folder"
            )
    folder = RunFolder(options.run)
    recipe = SPEC.load(str(folder.path / "config.yaml"), options.overrides)
    untrained = start_model(folder, recipe)
    trained = trained_models(folder, recipe, options.seeds)
    return folder, recipe, {seed: _by_variant(model, untrained) for seed, model in trained.items()}


def _from_model(options: argparse.Namespace, tiny: bool) -> tuple[RunFolder, MemAgentRecipe, ModelsOfSeed]:
    preset = options.preset or ("tiny" if tiny else "paper")
    recipe = SPEC.load(preset, [*options.overrides, f"model.path={options.model}"])
    folder = RunFolder.create(
        options.out or Path("runs") / f"ruler-{Path(options.model).name}",
        recipe.dump(),
        may_differ=("data", "rollout", "algorithm", "optimizer", "engine", "run"),
    )
    return folder, recipe, {seed: _by_variant(options.model, options.baseline) for seed in options.seeds or (0, 1, 2)}


def _by_variant(model: str, baseline: str | None) -> dict[str, str]:
    named = {variant: model for variant in VARIANTS if variant != "untrained"}
    return named if baseline is None else {**named, "untrained": baseline}


def _data(options: argparse.Namespace, tokenizer: Any) -> EvalData:
    """Raises EvaluationError or DataError, naming the option or the file."""
    given = {name: value for name in OPTIONS if (value := getattr(options, name)) is not None}
    try:
        lengths = list(dict.fromkeys(map(parse_length, options.lengths or ())))
        if options.data not in ("ruler", "hotpotqa"):
            if given or options.num_docs or options.task:
                raise ValueError("--task and its options are for generated data; --data names a file")
            return file_data(Path(options.data), tokenizer=tokenizer, metric=options.metric, lengths=lengths)
        tiny = is_tiny(tokenizer)
        task = options.task or ("hqa" if options.data == "hotpotqa" else "niah" if tiny else "niah_multikey_2")
        return ruler_data(
            task,
            given,
            tiny=tiny,
            lengths=options.num_docs or lengths or [parse_length(text) for text in LENGTHS],
            tokenizer=tokenizer,
            budget=options.budget,
            by_documents=options.num_docs is not None,
        )
    except DataError:
        raise
    except (ValueError, OSError) as error:
        raise EvaluationError(str(error)) from error


def make_parser() -> argparse.ArgumentParser:
    first, _, _ = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(prog="tokentrue evaluate ruler", description=first)
    models = parser.add_argument_group("models")
    models.add_argument("--run", type=Path, metavar="RUN_DIR", help="a training run: its seeds, its recipe, its folder")
    models.add_argument("--model", metavar="ID_OR_PATH", help="a model by folder or hub id")
    models.add_argument("--baseline", metavar="ID_OR_PATH", help="the model it started from: the variant `untrained`")
    add_server_options(models)
    models.add_argument("--preset", help="how MemAgent reads (default: tiny for its own models, else paper)")
    models.add_argument("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE")
    models.add_argument(
        "--context", type=kinds.positive, metavar="TOKENS", help="the models' context, if not config.json's"
    )
    models.add_argument("--out", type=Path, metavar="DIR", help="folder of the results (default: runs/ruler-MODEL)")

    data = parser.add_argument_group("data")
    data.add_argument("--data", default="ruler", metavar="ruler|hotpotqa|FILE", help="generated, or tasks of a file")
    data.add_argument(
        "--lengths", nargs="+", metavar="N", help=f"tokens: 448, 7K = 7168, 1M (default: {' '.join(LENGTHS)})"
    )
    data.add_argument(
        "--num-docs", nargs="+", type=kinds.positive, metavar="N", help="hqa, qa: documents instead of tokens"
    )
    data.add_argument(
        "--tasks", type=kinds.positive, metavar="N", help="tasks per length (default: 32; of a file, all)"
    )
    data.add_argument("--tasks-long", type=kinds.positive, metavar="N", help="above 112K tokens (default: at most 16)")
    data.add_argument("--budget", choices=get_args(Budget), default="document", help="what --lengths limits")
    data.add_argument("--metric", choices=get_args(Metric), help="of a file's tasks that name none (default: sub_em)")
    data.add_argument(
        "--task", choices=TASKS, help="default: niah with tiny's words for its models, else niah_multikey_2"
    )
    for name, option in OPTIONS.items():
        data.add_argument(f"--{name.replace('_', '-')}", **option)

    run = parser.add_argument_group("how")
    run.add_argument("--variants", nargs="+", choices=VARIANTS, help="default: all that there is a model for")
    run.add_argument("--seeds", nargs="+", type=kinds.seed, metavar="N", help="default: those of the run, or 0 1 2")
    run.add_argument("--temperature", type=kinds.temperature, default=0.7)
    run.add_argument("--top-p", type=kinds.share, default=0.95)
    run.add_argument("--concurrency", type=kinds.positive, default=16, help="tasks at once, the same at every length")
    run.add_argument("--deadline", type=kinds.seconds, default=DAY, metavar="SECONDS", help="for each task")
    run.add_argument("--kv-tokens", type=kinds.positive, metavar="N", help="at most so many tokens in the KV cache")
    run.add_argument("--threads", type=kinds.positive, metavar="N", help="of PyTorch")
    return parser


if __name__ == "__main__":
    sys.exit(main())
