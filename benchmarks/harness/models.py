"""The models of an evaluation: which checkpoints a command names, and policies for them, embedded or behind servers."""

from __future__ import annotations

import argparse
import hashlib
import shlex
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import torch

from benchmarks.harness.plan import EvalCell, EvaluationError
from core.config import Recipe
from core.engine import checkpoint, weights
from core.engine.engine import Engine
from core.engine.model import CausalLM
from core.engine.policy import EmbeddedPolicy
from core.hub import resolve
from core.policy.base import Policy
from core.policy.server_process import ServerError, serve
from core.policy.sglang import SGLangPolicy
from core.rollout.method import MethodSpec
from core.runs.files import jsonable
from core.runs.run_folder import RunFolder
from core.text.tokenizer import load_tokenizer

MODELS_IN_MEMORY = 2
"""The trained and the untrained model."""

DIGEST_PARTS = 256
"""Parts of 4 KiB of each file of weights: a second for the largest models, and training changes every part."""


class EvalModels:
    """Opens models by folder or hub id. `urls` names the servers of those that are not loaded here.

    `concurrency` calls run at once; the KV cache has that many times the context, at most `kv_tokens` if given.
    `context` replaces the context that config.json states; without a server it cannot be larger.
    """

    def __init__(
        self,
        recipe: Recipe,
        *,
        concurrency: int,
        urls: Mapping[str, str] | None = None,
        kv_tokens: int | None = None,
        context: int | None = None,
    ):
        self.recipe = recipe
        self.concurrency = concurrency
        self.urls = dict(urls or {})
        self.to_serve: str | None = None
        self._kv_tokens = kv_tokens
        self._context = context
        self._tokenizers: dict[str, Any] = {}
        self._networks: dict[str, CausalLM] = {}

    @classmethod
    def from_options(cls, options: argparse.Namespace, recipe: Recipe, **limits: Any) -> EvalModels:
        """Return the models of a command: --policy-url and --baseline-url name servers, --serve will start one."""
        asked = {name: getattr(options, name) for name in ("concurrency", "kv_tokens", "context") if name in options}
        models = cls(recipe, **{**asked, **limits})
        pairs = {"model": "policy_url", "baseline": "baseline_url"}
        named = {
            getattr(options, model): getattr(options, url, None) for model, url in pairs.items() if model in options
        }
        models.urls = {model: url for model, url in named.items() if model and url}
        models.to_serve = options.model if options.serve else None
        return models

    def tokenizer(self, model: str) -> Any:
        if model not in self._tokenizers:
            self._tokenizers[model] = load_tokenizer(model)
        return self._tokenizers[model]

    def limit(self, model: str) -> int:
        """Return the model's context in tokens."""
        if self._context is not None and model in self.urls:
            return self._context
        positions = weights.load_config(resolve(model, weights=False)).max_positions
        return min(self._context or positions, positions)

    def make_cell(self, folder: RunFolder, model: str, *, settings: Mapping[str, Any], **fields: Any) -> EvalCell:
        """Return a cell that `model` is evaluated in; its weights become part of its settings."""
        digest = weights_digest(model, folder)
        path = Path(model)
        return EvalCell(
            model=str(path.relative_to(folder.path)) if path.is_relative_to(folder.path) else model,
            model_path=model,
            settings=jsonable(settings if digest is None else {**settings, "weights": digest}),
            notes={"served": model in (*self.urls, self.to_serve)},
            **fields,
        )

    async def check_servers(self, cells: Iterable[EvalCell]) -> None:
        """Raises ServerError unless the server of each cell's model answers."""
        for url in dict.fromkeys(self.urls[cell.model_path] for cell in cells if cell.model_path in self.urls):
            await check_server(url)

    @asynccontextmanager
    async def policy(self, model: str, context: int) -> AsyncIterator[Policy]:
        """Open the model for calls of up to `context` tokens."""
        if url := self.urls.get(model):
            async with SGLangPolicy(url) as remote:
                yield remote
            return
        budget = self.concurrency * context
        if self._kv_tokens is not None:
            budget = max(min(budget, self._kv_tokens), context)
        engine = Engine(
            self._network(model),
            eos_token_ids=weights.eos_token_ids(resolve(model)),
            max_model_len=context,
            kv_tokens=budget,
            max_prefill_tokens=self.recipe.engine.max_prefill_tokens,
            decode=self.tokenizer(model).decode,
        )
        embedded = EmbeddedPolicy(engine)
        try:
            yield embedded
        finally:
            await embedded.close()

    def _network(self, model: str) -> CausalLM:
        if model not in self._networks:
            while len(self._networks) >= MODELS_IN_MEMORY:
                del self._networks[next(iter(self._networks))]
            section = self.recipe.model
            self._networks[model] = weights.load(resolve(model), section.dtype, section.device).eval()
        self._networks[model] = self._networks.pop(model)  # the model used last goes last
        return self._networks[model]


@dataclass(frozen=True)
class EvalTarget:
    """Names what a command evaluates: the folder of its results, the recipe, and the models."""

    folder: RunFolder
    recipe: Any
    seeds: Sequence[int]
    trained: Mapping[int, str]
    """Maps each seed to the model evaluated."""
    untrained: str | None
    """Names the model that training started from, if there is one."""


def check_model_options(options: argparse.Namespace) -> None:
    """Raises EvaluationError for options of the model that are missing or exclude each other."""
    run = getattr(options, "run", None)
    if hasattr(options, "run") and (run is None) == (options.model is None):
        raise EvaluationError("give either --run RUN_DIR or --model ID_OR_PATH")
    if options.serve is not None and options.policy_url is not None:
        raise EvaluationError("give either --serve, which starts a server, or --policy-url of one that runs")
    for name in ("baseline", "preset", "policy_url", "serve", "out") if run is not None else ():
        if getattr(options, name) is not None:
            raise EvaluationError(
                f"--{name.replace('_', '-')} goes with --model; --run brings recipe, models and folder"
            )


def target_run(options: argparse.Namespace, spec: MethodSpec, *, needs_trained: bool = True) -> EvalTarget:
    """Read the training run of --run: each seed's newest checkpoint, and the model that all seeds started from.

    Raises:
        EvaluationError: a seed has no checkpoint, and a trained model is needed.
    """
    folder = RunFolder(options.run)
    recipe = spec.load(str(folder.path / "config.yaml"), options.overrides)
    seeds = options.seeds or folder.seeds or recipe.run.seeds
    start = folder.path / "warm_start"
    trained = {}
    for seed in seeds if needs_trained else ():
        saved = checkpoint.steps(folder.checkpoints_path(seed))
        if not saved:
            raise EvaluationError(f"{folder.checkpoints_path(seed)}: no checkpoint. Train seed {seed} first.")
        if int(saved[-1].name.removeprefix("step-")) < recipe.run.steps:
            print(f"note: seed {seed} has not finished training; its newest checkpoint is {saved[-1].name}")
        trained[seed] = str(saved[-1])
    return EvalTarget(folder, recipe, seeds, trained, str(start) if start.is_dir() else recipe.model.path)


def target_model(options: argparse.Namespace, spec: MethodSpec, *, preset: str, name: str) -> EvalTarget:
    """Make the folder for the results of --model: --out, or one called by `name` and model in runs/."""
    recipe = spec.load(options.preset or preset, [*options.overrides, f"model.path={options.model}"])
    folder = RunFolder.create(
        options.out or Path("runs") / f"{name}-{Path(options.model).name}",
        recipe.dump(),
        may_differ=("data", "rollout", "algorithm", "optimizer", "engine", "run"),
    )
    seeds = options.seeds or (0, 1, 2)
    return EvalTarget(folder, recipe, seeds, dict.fromkeys(seeds, options.model), options.baseline)


def set_threads(options: argparse.Namespace, recipe: Recipe) -> None:
    """Give PyTorch the threads of --threads or of the recipe."""
    if threads := options.threads or recipe.engine.threads:
        torch.set_num_threads(threads)


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
        models.urls[options.model] = url
        yield


async def check_server(url: str, timeout_s: float = 10.0) -> None:
    """Raises ServerError unless `url` answers GET /health within `timeout_s`."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session,
            session.get(f"{url.rstrip('/')}/health") as response,
        ):
            status = response.status
    except (TimeoutError, aiohttp.ClientError, ValueError) as error:
        raise ServerError(
            f"policy url {url}: no answer ({type(error).__name__}: {error}). Start a server there, such as "
            "`tokentrue serve model --model MODEL --port PORT`, or correct the URL (http://host:port)."
        ) from error
    if status != 200:
        raise ServerError(f"policy url {url}: GET /health gave HTTP {status}. Wait until the model is loaded.")


def weights_digest(model: str | None, folder: RunFolder | None = None) -> str | None:
    """Return a digest of parts of every file of weights at a path, which changes when other weights are put there.

    It is None for checkpoints inside the run `folder`, which are never overwritten, and for models not on this disk.
    """
    path = Path(model or "")
    if not model or not path.is_dir() or (folder is not None and path.is_relative_to(folder.path)):
        return None
    digest = hashlib.sha256()
    for file in sorted((*path.glob("*.safetensors"), *path.glob("config.json"))):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as opened:
            for part in range(DIGEST_PARTS):
                opened.seek(size * part // DIGEST_PARTS)
                digest.update(opened.read(4096))
    return digest.hexdigest()[:12]
