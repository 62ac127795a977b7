"""Policies for the models of an evaluation: embedded engines over weights that are loaded once, or servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from benchmarks.cells import EvaluationError
from core.config import Recipe
from core.engine import checkpoint, weights
from core.engine.engine import Engine
from core.engine.model import CausalLM
from core.engine.policy import EmbeddedPolicy
from core.hub import resolve
from core.policy.base import Policy
from core.policy.serving import ServerError
from core.policy.sglang import SGLangPolicy
from core.runs.run_folder import RunFolder
from core.text.tokenizer import load_tokenizer

KEPT = 2
"""Models held in memory at once: the trained and the untrained one."""


class Models:
    """Models by folder or hub id. `urls` names the server of those that are not to be loaded here.

    `concurrency` calls run at once; the KV budget is that times the context asked for, at most `kv_tokens` if given.
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
        self.recipe, self.concurrency, self.urls = recipe, concurrency, dict(urls or {})
        self._kv_tokens, self._context = kv_tokens, context
        self._tokenizers: dict[str, Any] = {}
        self._networks: dict[str, CausalLM] = {}

    def tokenizer(self, model: str) -> Any:
        if model not in self._tokenizers:
            self._tokenizers[model] = load_tokenizer(model)
        return self._tokenizers[model]

    def limit(self, model: str) -> int:
        """The model's context in tokens."""
        if self._context is not None and model in self.urls:
            return self._context
        positions = weights.load_config(resolve(model, weights=False)).max_positions
        return min(self._context or positions, positions)

    @asynccontextmanager
    async def policy(self, model: str, context: int) -> AsyncIterator[Policy]:
        """The model, ready for calls of up to `context` tokens."""
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
            while len(self._networks) >= KEPT:
                del self._networks[next(iter(self._networks))]
            section = self.recipe.model
            self._networks[model] = weights.load(resolve(model), section.dtype, section.device).eval()
        self._networks[model] = self._networks.pop(model)  # the last one used goes last
        return self._networks[model]


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
            "`python -m core.engine.server --model MODEL --port PORT`, or correct the URL (http://host:port)."
        ) from error
    if status != 200:
        raise ServerError(f"policy url {url}: GET /health gave HTTP {status}. Wait until the model is loaded.")


def start_model(folder: RunFolder, recipe: Recipe) -> str:
    """The model that all seeds of a run started from: that of its warm start, or the recipe's."""
    start = folder.path / "warm_start"
    return str(start) if start.is_dir() else recipe.model.path


def trained_models(folder: RunFolder, recipe: Recipe, seeds: Sequence[int] | None = None) -> dict[int, str]:
    """Seed -> its newest checkpoint, of all trained seeds by default.

    Raises:
        EvaluationError: a seed without checkpoint, or no seed at all.
    """
    newest = {}
    for seed in seeds or folder.seeds:
        saved = checkpoint.steps(folder.checkpoints_path(seed))
        if not saved:
            raise EvaluationError(f"{folder.checkpoints_path(seed)}: no checkpoint. Train seed {seed} first.")
        if int(saved[-1].name.removeprefix("step-")) < recipe.run.steps:
            print(f"note: seed {seed} has not finished training; its newest checkpoint is {saved[-1].name}")
        newest[seed] = str(saved[-1])
    if not newest:
        raise EvaluationError(f"{folder.path}: no seed has been trained (no seed-* folder). Train first.")
    return newest
