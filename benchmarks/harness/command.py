"""The frame of every evaluator's command: its options, models and folder, the run itself, and the report.

An evaluator's own module has its data, its scores, its variants and its own options.
"""

from __future__ import annotations

import argparse
import asyncio
import shlex
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar, get_args

import torch
from pydantic import NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from benchmarks.harness.models import EvalModels, weights_digest
from benchmarks.harness.plan import EXPECTED_ERRORS, EvalCell, EvaluationError
from benchmarks.harness.samples import drop_failed_samples
from core.config import Recipe
from core.engine import flush_subnormals
from core.options import Share, argparse_type, show_errors
from core.policy.server_process import Backend, serve
from core.policy.servers import VLLM
from core.report import print_summary, write_report
from core.rollout.method import MethodSpec
from core.runs.evaluation import MODEL_VARIANTS
from core.runs.run_folder import RunFolder
from core.train.memory import settle_dtype
from core.types import Sampling

positive, seed = argparse_type(PositiveInt), argparse_type(NonNegativeInt)
temperature, share, seconds = argparse_type(NonNegativeFloat), argparse_type(Share), argparse_type(PositiveFloat)

OPTIONS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "models": {
        "run": {"type": Path, "metavar": "RUN_DIR", "help": "a training run: its seeds, its recipe, its folder"},
        "model": {"metavar": "ID_OR_PATH", "help": "a model by folder or hub id"},
        "untrained": {"metavar": "ID_OR_PATH", "help": "the model it started from: the variant `untrained`"},
        "policy_url": {"metavar": "URL", "help": "a server that holds --model (SGLang, ours; vllm+URL: vLLM)"},
        "policy_key_file": {"type": Path, "metavar": "FILE", "help": "holds the API key of that server"},
        "serve": {"choices": get_args(Backend), "help": "start a server for --model, and stop it at the end"},
        "serve_args": {"default": "", "metavar": "ARGS", "help": 'for that server, such as --serve-args="--tp 2"'},
        "serve_python": {"default": sys.executable, "metavar": "PYTHON", "help": "of the server's environment"},
        "preset": {"help": "recipe of --model (default: paper)"},
        "published_as": {"metavar": "NAME", "help": "the published model that --model stands for"},
        "set": {"dest": "overrides", "action": "append", "default": [], "metavar": "KEY=VALUE"},
        "context": {"type": positive, "metavar": "TOKENS", "help": "the models' context, if not config.json's"},
        "out": {"type": Path, "metavar": "DIR", "help": "folder of the results (default: one in runs/)"},
    },
    "what and how": {
        "variants": {"nargs": "+", "metavar": "VARIANT", "help": "default: all that there is a model for"},
        "tasks": {"type": positive, "metavar": "N"},
        "seeds": {"nargs": "+", "type": seed, "metavar": "N", "help": "default: those of the run, or 0 1 2"},
        "temperature": {"type": temperature, "default": 0.7},
        "top_p": {"type": share, "default": 0.95},
        "retry_failed": {"action": "store_true", "help": "sample again what failed, such as with a dead server"},
        "accept_changes": {"action": "store_true", "help": "go on although code has changed"},
        "concurrency": {"type": positive, "default": 16, "metavar": "N", "help": "samples at once"},
        "deadline": {"type": seconds, "default": 3600.0, "metavar": "SECONDS", "help": "for each sample"},
        "kv_tokens": {"type": positive, "metavar": "N", "help": "at most so many tokens in the KV cache"},
        "threads": {"type": positive, "metavar": "N", "help": "of PyTorch"},
    },
}
RARE = {"run", "untrained", "published_as", "context", "seeds", "kv_tokens"}
"""Options that an evaluator has only if it names them."""


def make_evaluator_parser(
    name: str, description: str | None, *rare: str, **changes: Mapping[str, Any]
) -> argparse.ArgumentParser:
    """Return a parser with the shared options, and those of RARE that it is given.

    `changes` maps options to what differs from OPTIONS. The first line of `description` is shown.
    """
    first, _, _ = (description or "").partition("\n")
    parser = argparse.ArgumentParser(prog=f"tokentrue evaluate {name}", description=first)
    for title, options in OPTIONS.items():
        group = parser.add_argument_group(title)
        for option, settings in options.items():
            if option not in RARE or option in rare or option in changes:
                group.add_argument(f"--{option.replace('_', '-')}", **{**settings, **changes.get(option, {})})
    return parser


@dataclass(frozen=True)
class EvalPlan:
    """Holds what a command evaluates: cells of models, whose results go into a folder."""

    folder: RunFolder
    models: EvalModels
    cells: Sequence[EvalCell]


Plan = TypeVar("Plan", bound=EvalPlan)


@dataclass(frozen=True)
class Evaluator(Generic[Plan]):
    """An evaluator, as a command and as a function.

    `prepare` checks the options as far as possible without running. `evaluate` saves the results and returns the text
    to print, or None for the report's summary. `errors` are printed as one line, without a traceback.
    """

    make_parser: Callable[[], argparse.ArgumentParser]
    prepare: Callable[[argparse.Namespace], Plan]
    evaluate: Callable[[Plan], Coroutine[Any, Any, str | None]]
    errors: tuple[type[Exception], ...] = EXPECTED_ERRORS

    def main(self, arguments: Sequence[str] | None = None) -> int:
        """Run the command and return its exit status."""
        return show_errors(*self.errors)(self._run)(self.make_parser().parse_args(arguments))

    @flush_subnormals()
    def _run(self, options: argparse.Namespace) -> int:
        check_model_options(options)
        plan = self.prepare(options)
        if threads := options.threads or plan.models.recipe.inference.threads:
            torch.set_num_threads(threads)
        # Commands with --run evaluate variants of one run at the same time; the others write common tables.
        lock = nullcontext() if "run" in options else plan.folder.lock()
        with lock, start_server(options, plan.models, plan.folder):
            plan.models.warn_of_other_models()
            if options.retry_failed:
                drop_failed_samples(plan.folder, plan.cells)
            with plan.folder.record_time("evaluation"):
                text = asyncio.run(self.evaluate(plan))
            try:
                summary = write_report(plan.folder)
            except ValueError as error:
                raise EvaluationError(f"the results are saved, the report is not: {error}") from error
        if text is None:
            print_summary(summary)
            text = f"report: {plan.folder.path / 'report.html'}"
        print(text)
        return 0


def check_model_options(options: argparse.Namespace) -> None:
    """Raise EvaluationError for options of the model that are missing or exclude each other."""
    run = getattr(options, "run", None)
    if "run" in options and (run is None) == (options.model is None):
        raise EvaluationError("give either --run RUN_DIR or --model ID_OR_PATH")
    if options.serve is not None and options.policy_url is not None:
        raise EvaluationError("give either --serve, which starts a server, or --policy-url of one that runs")
    if options.policy_key_file is not None and options.policy_url is None:
        raise EvaluationError("--policy-key-file goes with --policy-url, the server that takes the key")
    for name in ("untrained", "preset", "policy_url", "serve", "out") if run is not None else ():
        if getattr(options, name) is not None:
            raise EvaluationError(
                f"--{name.replace('_', '-')} goes with --model; --run brings recipe, models and folder"
            )


def lack_untrained(variant: str) -> EvaluationError:
    """Return the error of a variant of the start model, which --untrained has not named."""
    return EvaluationError(f"variant {variant}: no model for it. Name the one that training started from: --untrained.")


ON_REQUEST = ("trained-greedy", "rejection-greedy", "supervised-greedy")
"""Names the variants that only --variants asks for."""


@dataclass(frozen=True)
class EvalTarget:
    """Names what --run or --model stands for: the folder of the results, the recipe, and the models."""

    folder: RunFolder
    recipe: Any
    models: Mapping[int, Mapping[str, str]]
    """Maps each seed to its models, by those of MODEL_VARIANTS that are not greedy."""

    def model(self, seed: int, variant: str, otherwise: str = "trained") -> str:
        """Return the model of a variant; one that is not of MODEL_VARIANTS has the model of `otherwise`.

        Raises:
            EvaluationError: there is no such model; the message says how to make it.
        """
        of_seed = self.models[seed]
        name = (variant if variant in MODEL_VARIANTS else otherwise).removesuffix("-greedy")
        if name in of_seed:
            return of_seed[name]
        if name == "trained":
            raise EvaluationError(f"{self.folder.checkpoints_path(seed)}: no checkpoint. Train seed {seed} first.")
        if name == "untrained":
            raise lack_untrained(variant)
        raise EvaluationError(
            f"variant {variant}: seed {seed} has no model for it in {self.folder.path}. Train it: tokentrue train "
            f"{self.recipe.method} --preset {self.folder.path / 'config.yaml'} --out {self.folder.path} "
            f"--baseline {name}"
        )

    def list_variants(self, variants: Iterable[str]) -> list[str]:
        """Return those of `variants` that every seed has a model for, in their order; one that only some have is told.

        `trained`, and what is none of MODEL_VARIANTS, always stays; what is ON_REQUEST never does.
        """
        chosen = []
        for variant in (each for each in variants if each not in ON_REQUEST):
            seeds = [seed for seed, of_seed in self.models.items() if variant.removesuffix("-greedy") in of_seed]
            if variant == "trained" or variant not in MODEL_VARIANTS or len(seeds) == len(self.models):
                chosen.append(variant)
            elif seeds:
                print(f"note: {variant} is left out: of the seeds, {seeds} alone have a model for it", file=sys.stderr)
        return chosen


def open_target(options: argparse.Namespace, spec: MethodSpec, *, preset: str, name: str) -> EvalTarget:
    """Read the training run of --run, or make the folder for the results of --model: --out, or one in runs/.

    A run has each seed's trained policy (`run.keep`), the model that all seeds started from, and baselines that were
    trained into it.
    """
    if options.run is None:
        recipe = spec.load(options.preset or preset, [*options.overrides, f"model.path={options.model}"])
        out = options.out or Path("runs") / f"{name}-{Path(options.model).name}"
        if not (options.policy_url or options.serve):
            recipe = settle_dtype(recipe, out)
        folder = RunFolder.create(
            out,
            recipe.dump(),
            may_differ="data rollout algorithm optimizer inference run slime verl departures".split(),
        )
        models = {"trained": options.model} | ({"untrained": options.untrained} if options.untrained else {})
        recipe = recipe.model_copy(update={"departures": tuple(recipe.fill_departures())})
        return EvalTarget(folder, recipe, dict.fromkeys(options.seeds or (0, 1, 2), models))
    folder = RunFolder(options.run)
    for line in folder.list_unfinished():
        print(f"note: {line}")
    recipe = spec.load(str(folder.path / "config.yaml"), options.overrides)
    recipe = recipe.model_copy(update={"departures": tuple(recipe.list_departures())})  # of its training, too
    seeds = options.seeds or folder.seeds or recipe.run.seeds
    return EvalTarget(folder, recipe, {seed: _find_models(folder, seed, recipe) for seed in seeds})


def _find_models(folder: RunFolder, seed: int, recipe: Recipe) -> dict[str, str]:
    """Map each variant that a seed of a run has a model for to that model."""
    start = folder.path / "warm_start"
    models = {"untrained": str(start) if start.is_dir() else recipe.model.path}
    if (trained := folder.find_trained(seed, recipe.run.keep)) is not None:
        models["trained"] = str(trained)
    for variant, path in (("rejection", folder.rejection_path(seed)), ("supervised", folder.supervised_path)):
        if (path / "model").is_dir():
            models[variant] = str(path / "model")
    return models


def fill_defaults(options: argparse.Namespace, **defaults: Any) -> None:
    """Set the options that were not given."""
    vars(options).update({name: value for name, value in defaults.items() if getattr(options, name) is None})


def create_folder(options: argparse.Namespace, name: str, settings: Mapping[str, Any]) -> RunFolder:
    """Create the folder of results that follow from `settings`, weights and sampling: --out, or `name` in runs/."""
    models = {model: getattr(options, model) for model in ("model", "untrained") if model in options}
    digests = {model: digest for model, path in models.items() if (digest := weights_digest(path))}
    sampling = {"temperature": options.temperature, "top_p": options.top_p}
    context = {"context": given} if (given := vars(options).get("context")) else {}
    config = {**settings, **models, **({"weights": digests} if digests else {}), "sampling": sampling, **context}
    return RunFolder.create(options.out or Path("runs") / name, config, may_differ=["recipe.departures"])


def sampling_fields(options: argparse.Namespace, variant: str = "") -> dict[str, Any]:
    """Return the fields of a cell that say how the command samples the variant."""
    greedy = variant.endswith("-greedy")
    sampling = Sampling(temperature=0.0 if greedy else options.temperature, top_p=1.0 if greedy else options.top_p)
    return {"sampling": sampling, "deadline_s": options.deadline}


@contextmanager
def start_server(options: argparse.Namespace, models: EvalModels, folder: RunFolder) -> Iterator[None]:
    """Run the server that --serve asks for, and let `models` find it there; without --serve do nothing."""
    if options.serve is None:
        yield
        return
    log = folder.path / "evaluate-server.log"
    print(f"starting a server for {options.model} (see {log})")
    args, python = shlex.split(options.serve_args), options.serve_python
    with serve(options.serve, options.model, log=log, args=args, python=python) as url:
        models.urls[options.model] = f"{VLLM}{url}" if options.serve == "vllm" else url
        yield
