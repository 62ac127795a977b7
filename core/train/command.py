"""Train a method on the embedded backend.

    tokentrue train METHOD --preset NAME --out DIR [--set key.path=value ...] [--fresh] [--dry-run] [--memory SIZE]
    tokentrue train METHOD --preset NAME --out DIR --baseline rejection|supervised

The same command continues an interrupted run from its newest checkpoint. A run that does not fit into memory is refused
before it begins; --dry-run prints what it needs. A baseline is trained from the same start model, into the same folder,
before or after the run itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from multiprocessing import get_context, parent_process
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
import yaml

from core.algorithms.coefficients import WITHOUT_MEAN
from core.config import Recipe, RecipeError, import_function, import_functions
from core.data.files import DataError
from core.data.hub_sets import locate
from core.data.tasks import read_tasks
from core.engine import flush_subnormals, measure_speeds, weights
from core.hub import CheckpointError, resolve
from core.options import show_errors
from core.policy.base import Policy
from core.rollout.method import Method, MethodSpec, check_roles, method_spec
from core.rollout.preview import check_templates, load_without_services
from core.rollout.roles import open_roles
from core.runs.files import BrokenFileError
from core.runs.inputs import hash_inputs, list_code
from core.runs.progress import ProgressBoard, ProgressLine, Show
from core.runs.run_folder import SERVERS, RunFolder, RunFolderError, list_checkpoints
from core.runs.trackers import TrackerError, open_trackers, require_package
from core.text.tokenizer import Tokenizer, check_vocabulary, load_tokenizer
from core.train.loop import GRPOLoop
from core.train.memory import check_fit, describe_memory, settle_dtype
from core.train.optimizer import require_package as require_optimizer
from core.train.rejection import run_rejection
from core.train.replicas import share_gpus, start_replicas
from core.train.rollout_engine import open_frozen_model
from core.train.trainer import TrainingError
from core.train.warm_start import run_supervised, run_warm_start
from core.training_options import make_training_parser
from core.types import Task

CHANGEABLE_KEYS = [
    "departures",
    "health",
    "slime",
    "verl",
    *(f"run.{key}" for key in "steps seeds parallel_seeds save_every keep record_every trackers tracker_mode".split()),
    *(f"inference.{key}" for key in "servers server_key_file replicas engine replica_args replica_python".split()),
]
"""Lists the keys that may change when a run continues: how far, which seeds, what is written, which servers sample,
words, how clusters would train; never how it learns.

A rate that decays to the end of the run learns otherwise when `run.steps` changes: `optimizer.lr_decay_steps` differs.
"""

AS_IT_IS = "with training and evaluation of the preset as it is, whatever --set changes"

LARGE_MODEL_BYTES = 100_000_000
"""Separates models whose trainings have processes of their own by the size of their weights."""


@show_errors(
    BrokenFileError, OSError, RecipeError, RunFolderError, CheckpointError, DataError, TrackerError, TrainingError
)
@flush_subnormals()  # before anything starts PyTorch's threads
def main(arguments: list[str] | None = None) -> int:
    options = make_training_parser("embedded").parse_args(arguments)
    try:
        spec = method_spec(options.method)
        recipe = spec.load(options.preset, options.overrides)
        import_functions(recipe)
        check_baseline(recipe, options.baseline)
        if options.dry_run:
            print(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False), end="")
            told = [*(f"departure: {line}" for line in recipe.list_departures()), *find_role_problems(spec, options)]
            for line in [*told, *describe_memory(recipe, options.memory), *describe_hours(recipe)]:
                print(f"# {line}")
            return 0
        out = options.out or Path("runs") / f"{spec.name}-{recipe.preset}"
        sandbox = check_inputs(spec, recipe)
        recipe = settle_dtype(recipe, None if options.fresh else out)
        check_fit(recipe, options.memory)
        share_gpus(recipe)  # replicas without GPUs are refused before there is a folder
        folder = RunFolder.create(
            out, recipe.dump(), fresh=options.fresh, may_differ=CHANGEABLE_KEYS, complete=recipe.complete
        )
        with folder.lock():
            check_steps(recipe, folder)
            data, models = list_inputs(recipe)
            code = list_code(spec.presets.parent, recipe)
            folder.check_inputs(hash_inputs(data | code, models), accept=options.accept_changes)
            folder.update_config(recipe.dump())
            folder.record_sandbox(sandbox)
            with start_replicas(recipe, folder.path / SERVERS) as recipe:
                train(spec, recipe, folder, options.baseline)
    except BrokenProcessPool:
        print("error: a training process died, perhaps for lack of memory; run again to go on", file=sys.stderr)
        return 1
    except MemoryError as error:
        print(f"error: out of memory ({error}); --dry-run says what the recipe needs", file=sys.stderr)
        return 1
    return 0


def describe_hours(recipe: Recipe) -> list[str]:
    """Return the line that tells how long the preset takes on this CPU, where it was measured; --set is not counted."""
    known = recipe.experiment.hours_at_100_gflops if recipe.experiment else None
    asked = recipe.model.device
    # A card that the recipe names need not be in this machine.
    if known is None or asked.startswith("cuda") or weights.find_device(asked).type != "cpu":
        return []
    try:
        speeds = measure_speeds(weights.load_config(resolve(recipe.model.path, weights=False)))
    except (OSError, CheckpointError):
        return [
            f"about {known:.1f} hours on a machine of 100 GFLOP/s {AS_IT_IS}; the model is not here to measure this"
        ]
    dtype = speeds.choose() if recipe.model.dtype == "auto" else recipe.model.dtype
    speed = getattr(speeds, dtype)[-1] * torch.get_num_threads()
    return [f"about {100 * known / speed:.1f} hours {AS_IT_IS}, at {speed:.0f} GFLOP/s in {dtype}"]


def check_inputs(spec: MethodSpec, recipe: Recipe) -> str | None:
    """Check data, tokenizer, tools and roles before the run folder exists and the warm start costs time.

    Return the `sandbox` of the method.

    Raises:
        RecipeError, DataError, CheckpointError, TrackerError: something is missing or broken; the message names it and
            the fix.
    """
    require_optimizer(recipe.optimizer.name)
    if recipe.model.compile:
        require_compiler(weights.find_device(recipe.model.device))
    for tracker in recipe.run.trackers:
        require_package(tracker)
    for path in filter(None, (recipe.inference.server_key_file, *recipe.role_key_files.values())):
        if not Path(path).is_file():
            raise RecipeError(f"{path}: is no file; write the API key of the server into it")
    model = resolve(recipe.model.path, weights=False)
    tokenizer = load_tokenizer(model)
    check_vocabulary(model, tokenizer)
    for path in dict.fromkeys(filter(None, (recipe.data.train, recipe.data.eval))):
        check_templates(path, read_tasks(path, tell=True, **spec.reading_options(recipe)), tokenizer)
    return check_method(spec, recipe, tokenizer)


def check_method(spec: MethodSpec, recipe: Recipe, tokenizer: Tokenizer) -> str | None:
    """Check the roles of the method, and return its `sandbox`. A role that it never asks is noted.

    Raises:
        RecipeError: a role or a service is missing, or a role would be trained and is never asked.
    """
    for role, place in recipe.roles.items():
        if place.startswith("python:"):
            import_function(f"roles.{role}", place.removeprefix("python:"))
    method = spec.build(recipe, tokenizer)
    try:
        check_roles(method, recipe.roles)
        for role in (role for role in recipe.roles if role not in method.needs):
            if role in recipe.trained_roles:
                raise RecipeError(f"roles.{role} is trained, and the method never asks it; leave it out")
            print(f"note: roles.{role} is set, and the method never asks it", file=sys.stderr)
        return method.sandbox
    finally:
        asyncio.run(method.close())


def find_role_problems(spec: MethodSpec, options: argparse.Namespace) -> list[str]:
    """Say why a run would refuse the method or its roles, where the model is there already.

    Tools of the method may start, as its servers of MCP do; no service of `addresses` needs to run.
    """
    with load_without_services(spec, options.preset, options.overrides) as recipe:
        try:
            model = resolve(recipe.model.path, weights=False)
        except (CheckpointError, OSError):
            return []  # the plan of memory says so
        try:
            check_method(spec, recipe, load_tokenizer(model))
        except Exception as error:  # a user's method fails in its own ways, and some say nothing but their type
            kind = "" if isinstance(error, RecipeError | CheckpointError) else f"{type(error).__name__}: "
            return [f"a run would be refused: {line}" for line in f"{kind}{error}".splitlines()]
    return []


def check_steps(recipe: Recipe, folder: RunFolder) -> None:
    """Raise RunFolderError if a seed has trained longer than `run.steps`: its policy would pass for that of so few."""
    for seed in sorted({*recipe.run.seeds, *folder.seeds}):
        for newest in list_checkpoints(folder.checkpoints_path(seed))[-1:]:
            if (done := int(newest.name.removeprefix("step-"))) > recipe.run.steps:
                words = f"is beyond run.steps={recipe.run.steps}; set it to {done} or more, or choose another --out"
                raise RunFolderError(f"{newest} {words}")


def list_inputs(recipe: Recipe) -> tuple[dict[str, Path], dict[str, Path]]:
    """Return the data and the models that a run rests on, by their keys."""
    files = {"data.train": recipe.data.train, "data.eval": recipe.data.eval}
    models = {f"roles.{role}": place[6:] for role, place in recipe.roles.items() if place.startswith("model:")}
    data = {key: locate(path) for key, path in files.items() if path}
    return data, {key: resolve(model) for key, model in {"model": recipe.model.path, **models}.items()}


def require_compiler(device: torch.device) -> None:
    """Raise RecipeError unless PyTorch can compile for `device`: a small function is compiled to find out."""
    try:
        torch.compile(torch.exp)(torch.ones(2, device=device))
    except (RuntimeError, OSError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        # The compiler's own message is far down; PyTorch's has a headline before it.
        reason = next((line for line in lines if "error:" in line), " ".join(lines[:2]))
        raise RecipeError(
            f"model.compile: PyTorch cannot compile for {device}. Install a C++ compiler and Python's headers (apt-get "
            f"install g++ python3-dev), or set model.compile=false. PyTorch says: {reason}"
        ) from error


def check_baseline(recipe: Recipe, baseline: str | None) -> None:
    """Raise RecipeError if the recipe lacks the section of the baseline, or has what a baseline does not know.

    Without a baseline a group must have something to compare.
    """
    estimator = recipe.algorithm.adv_estimator
    if baseline is None and recipe.rollout.group_size == 1 and estimator not in (*WITHOUT_MEAN, "gigpo"):
        raise RecipeError(
            f"rollout.group_size=1 leaves nothing to compare: with adv_estimator={estimator} every advantage is 0; "
            f"raise it, or set algorithm.adv_estimator to {' or '.join(WITHOUT_MEAN)}"
        )
    if baseline is not None and recipe.inference.is_served:
        raise RecipeError(
            f"--baseline {baseline} samples and trains in this process; leave inference.servers and replicas out"
        )
    if baseline == "rejection" and recipe.trained_roles:
        raise RecipeError(
            f"--baseline rejection trains one policy, and roles.{recipe.trained_roles[0]} is trained, too; let the "
            "role be `policy`, or a frozen model:PATH"
        )
    if baseline is not None and getattr(recipe, baseline) is None:
        raise RecipeError(f"--baseline {baseline} needs the section `{baseline}` in the recipe, with its rate and size")


def train(spec: MethodSpec, recipe: Recipe, folder: RunFolder, baseline: str | None = None) -> list[Path]:
    """Train all seeds of the recipe, `run.parallel_seeds` at a time, and return their last checkpoints.

    With a `baseline`, train that instead: `rejection` for each seed, or `supervised` for all seeds together.
    """
    _set_threads(recipe)
    seeds, parallel = recipe.run.seeds, min(recipe.run.parallel_seeds, len(recipe.run.seeds))
    apart = _is_large(recipe)
    with ProgressBoard() as board, _open_pool(parallel, board.show) as pool:
        make_start = partial(_warm_start, recipe, folder.path)
        start = pool.submit(make_start).result() if apart and recipe.warm_start else make_start(board.show)
        if baseline == "supervised":
            return [run_supervised(recipe, start, folder.supervised_path, board.show)]
        train_seed = _train_rejection if baseline == "rejection" else _train_seed
        if parallel == 1 and not apart:
            return [asyncio.run(train_seed(spec, recipe, folder, seed, start, board.show)) for seed in seeds]
        work = partial(_train_in_worker, train_seed, spec, recipe, folder.path, start, parallel)
        return list(pool.map(work, seeds))


@contextmanager
def _open_pool(workers: int, show: Show) -> Iterator[ProcessPoolExecutor]:
    """Yield processes of which each does one piece of work and tells `show` how far it is.

    None is started before there is some work.
    """
    context = get_context("spawn")
    lines: SimpleQueue[ProgressLine | None] = context.SimpleQueue()

    thread = threading.Thread(target=_relay, args=(lines, show), daemon=True)
    thread.start()
    with ProcessPoolExecutor(
        workers, mp_context=context, initializer=_start_worker, initargs=(lines,), max_tasks_per_child=1
    ) as pool:
        yield pool
    # Not after an error: a worker that was killed may have kept the lock of the queue.
    lines.put(None)
    thread.join()


def _relay(lines: SimpleQueue[ProgressLine | None], show: Show) -> None:
    """Show lines until None comes. Workers wait while nobody takes their lines, also when the console is gone."""
    while line := lines.get():
        with suppress(OSError, SystemExit):  # rich exits when its pipe is broken
            show(line)


def _is_large(recipe: Recipe) -> bool:
    """Return whether the warm start and each seed should have a process of their own.

    What one training leaves in the allocator made the next one of SmolLM2 a fifth slower and 1.6 GB larger. For a small
    model the start of a process costs more than that.
    """
    folder = resolve(recipe.model.path)
    return sum(path.stat().st_size for path in folder.glob("*.safetensors")) > LARGE_MODEL_BYTES


@flush_subnormals()
def _warm_start(recipe: Recipe, folder: Path, show: Show | None = None) -> Path:
    """Return the model that RL starts from. Without `show`, a worker tells its parent how far it is."""
    _set_threads(recipe)
    metrics = RunFolder(folder).open_metrics(recipe.run.seeds[0])
    return run_warm_start(recipe, folder / "warm_start", metrics, show or _tell_parent)


TrainSeed = Callable[[MethodSpec, Recipe, RunFolder, int, Path, Show], Coroutine[Any, Any, Path]]


@flush_subnormals()
def _train_in_worker(
    train_seed: TrainSeed, spec: MethodSpec, recipe: Recipe, folder: Path, start: Path, parallel: int, seed: int
) -> Path:
    _set_threads(recipe, parallel)
    return asyncio.run(train_seed(spec, recipe, RunFolder(folder), seed, start, _tell_parent))


_parent_lines: list[SimpleQueue[ProgressLine | None]] = []
"""Holds the queue of a worker, which it can only get when it starts."""


def _tell_parent(line: ProgressLine) -> None:
    _parent_lines[0].put(line)


def _start_worker(lines: SimpleQueue[ProgressLine | None]) -> None:
    """End this worker when its parent is killed: otherwise it would write to the files of the run that resumes."""
    _parent_lines.append(lines)

    def watch() -> None:
        parent = parent_process()
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _set_threads(recipe: Recipe, processes: int = 1) -> None:
    """Set the threads of this process, by default its share of the cores; threads beyond that wait for one another."""
    torch.set_num_threads(recipe.inference.threads or max(1, torch.get_num_threads() // processes))


async def _train_seed(spec: MethodSpec, recipe: Recipe, folder: RunFolder, seed: int, start: Path, show: Show) -> Path:
    trackers = open_trackers(recipe, folder.seed_path(seed), f"{folder.path.name}-seed-{seed}")
    try:
        async with _open_method(spec, recipe, start) as (method, tokenizer, roles):
            loop = GRPOLoop(
                recipe,
                method,
                tokenizer,
                _read_tasks(spec, recipe, recipe.data.train),
                _read_tasks(spec, recipe, recipe.data.eval, distinct=True) if recipe.data.eval else [],
                folder,
                seed,
                start,
                roles=roles,
                regrade=spec.regrade(recipe),
                trackers=trackers,
                show=show,
            )
            newest = await loop.run()
            loop.check_learned()
            return newest
    finally:
        trackers.close()


async def _train_rejection(
    spec: MethodSpec, recipe: Recipe, folder: RunFolder, seed: int, start: Path, show: Show
) -> Path:
    async with _open_method(spec, recipe, start) as (method, tokenizer, roles):
        return await run_rejection(
            recipe,
            method,
            tokenizer,
            _read_tasks(spec, recipe, recipe.data.train),
            folder.rejection_path(seed),
            seed,
            start,
            roles=roles,
            show=show,
        )


class _Frozen:
    """Stands for a role that nobody trains, whatever the method says of its turns."""

    trained_as: str | None = None

    def __init__(self, policy: Policy):
        self.generate = policy.generate


@asynccontextmanager
async def _open_method(
    spec: MethodSpec, recipe: Recipe, start: Path
) -> AsyncIterator[tuple[Method, Any, dict[str, Policy]]]:
    """Open the method with its tokenizer and the roles beside `policy`, and close them at the end."""
    tokenizer = load_tokenizer(start)
    method = spec.build(recipe, tokenizer)
    try:
        check_roles(method, recipe.roles)
        async with open_roles(recipe, tokenizer, open_frozen_model) as roles:
            yield method, tokenizer, {role: _Frozen(policy) for role, policy in roles.items()}
    finally:
        await method.close()


def _read_tasks(spec: MethodSpec, recipe: Recipe, path: str, distinct: bool = False) -> list[Task]:
    return read_tasks(path, distinct=distinct, **spec.reading_options(recipe))
