"""Names the models of an evaluation and opens policies for them, embedded or behind servers."""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import re
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from pathlib import Path
from typing import Any

from benchmarks.harness.plan import SERVED, EvalCell, EvaluationError
from core.config import Recipe
from core.engine import CausalLM, EmbeddedPolicy, Engine, weights
from core.hub import SMALL_FILES, resolve
from core.policy.base import Policy
from core.policy.server_process import ServerError, find_health_problem, open_url
from core.policy.servers import VLLM, make_server_policy
from core.rollout.method import method_spec
from core.runs.files import jsonable
from core.runs.inputs import CODE, hash_file, list_code
from core.runs.run_folder import RunFolder
from core.text.tokenizer import Tokenizer, load_tokenizer

MODELS_IN_MEMORY = 2
"""Counts the models that stay in memory: the trained and the untrained one."""

DIGEST_PARTS = 256
"""Parts of 4 KiB of each file of weights: a second for the largest models, and training changes every part."""

NO_CONDITION = ("__init__", "evaluate", "published", "results")
"""Names files of a benchmark that no sample follows from: its command, what was published, and its statistics."""


@dataclass
class EvalModels:
    """Opens models by folder or hub id. `urls` names the servers of those that are not loaded here.

    `concurrency` calls run at once. The KV cache has that many times the context, or what the recipe says if that is
    more, and at most `kv_tokens` if given.
    `context` replaces the context that config.json states; without a server it cannot be larger.
    """

    recipe: Recipe
    concurrency: int
    urls: dict[str, str] = field(default_factory=dict)
    kv_tokens: int | None = None
    context: int | None = None
    to_serve: str | None = None
    """Names the model that --serve will start a server for."""
    key_file: Path | None = None
    """Holds the key of the servers."""
    code: Mapping[str, str] = field(default_factory=dict)
    """Holds the digest of each file of the method and of the recipe's functions."""
    own_code: Mapping[str, str] = field(default_factory=dict)
    """Holds that of each file of the benchmark which makes its tasks, prompts and scores."""
    _tokenizers: dict[str, Tokenizer] = field(default_factory=dict, init=False)
    _networks: dict[str, CausalLM] = field(default_factory=dict, init=False)

    @classmethod
    def from_options(
        cls, options: argparse.Namespace, recipe: Recipe, benchmark: str | None = None, **limits: Any
    ) -> EvalModels:
        """Return the models of a command: --policy-url names a server, --serve will start one.

        `benchmark` names the folder of what makes tasks, prompts and scores, where the method's own does not.
        With --accept-changes they do not tell their code, and so go on with samples of any other.
        """
        asked = {name: getattr(options, name) for name in ("concurrency", "kv_tokens", "context") if name in options}
        spec = method_spec(getattr(options, "method", recipe.method))
        code = {} if options.accept_changes else list_code(spec.presets.parent, recipe)
        files = sorted((Path(__file__).parents[1] / benchmark).iterdir()) if benchmark and code else ()
        own = [
            path for path in files if path.suffix in (".py", ".yaml", ".json", ".txt") and path.stem not in NO_CONDITION
        ]
        return cls(
            recipe,
            urls={options.model: options.policy_url} if options.policy_url else {},
            to_serve=options.model if options.serve else None,
            key_file=options.policy_key_file,
            code={name.removeprefix(CODE): hash_file(path)["sha256"][:12] for name, path in code.items()},
            own_code={path.name: hash_file(path)["sha256"][:12] for path in own},
            **{**asked, **limits},
        )

    def tokenizer(self, model: str) -> Tokenizer:
        if model not in self._tokenizers:
            self._tokenizers[model] = load_tokenizer(model)
        return self._tokenizers[model]

    def limit(self, model: str) -> int:
        """Return the model's context in tokens. Raises EvaluationError: `context` is above the model's positions."""
        if self.context is not None and model in self.urls:
            return self.context
        config = weights.load_config(resolve(model, weights=False))
        try:
            return config.context(self.context)
        except ValueError as error:
            raise EvaluationError(f"{model}: {error}") from error

    def make_cell(self, folder: RunFolder, model: str, *, settings: Mapping[str, Any], **fields: Any) -> EvalCell:
        """Return a cell that `model` is evaluated in.

        Its settings name the code of method and benchmark, the model's weights, tokenizer and chat template, the
        weights of the roles (of one behind a server the model that this says it holds), and what `--set` has changed of
        the model of a run. In a folder that is no run they name the number format of a model loaded here.
        """
        served = model in (*self.urls, self.to_serve)
        path, roles = Path(model), self.recipe.roles
        places = {role: place.removeprefix("model:") for role, place in roles.items() if place.startswith("model:")}
        places |= {role: str(path / role) for role in self.recipe.trained_roles}
        # Those within the checkpoint change with it.
        apart = {role: place for role, place in places.items() if not Path(place).is_relative_to(folder.path)}
        of_roles = {role: digest for role, place in apart.items() if (digest := weights_digest(place))}
        now, own = self.recipe.model.model_dump(mode="json"), folder.config.get("model")
        own = own if isinstance(own, Mapping) else now  # a folder that is no run names its model alone
        found = {
            "code": self.code,
            "code_of_benchmark": self.own_code,
            "weights": weights_digest(model),
            "tokenizer": weights_digest(model, SMALL_FILES),
            "role_weights": of_roles,
            # As text: a setting that is None counts as one that is not there.
            "model": {name: str(now[name]) for name in ("dtype", "max_model_len") if now[name] != own.get(name)},
            "dtype": now["dtype"] if own is now and not served else None,
        }
        return EvalCell(
            model=str(path.relative_to(folder.path)) if path.is_relative_to(folder.path) else model,
            model_path=model,
            settings=jsonable(
                {**settings, **self._role_models, **{name: value for name, value in found.items() if value}}
            ),
            notes={"served": served},
            concurrency=self.concurrency,
            **fields,
        )

    @cached_property
    def _role_models(self) -> Mapping[str, str]:
        """Maps a setting for each role behind a server to the name of the model that the server says it holds."""
        keys = self.recipe.role_key_files
        places = {role: place for role, place in self.recipe.roles.items() if place.startswith(("http", VLLM))}
        with ThreadPoolExecutor() as pool:  # a server that is gone is waited for, so all are asked at once
            asked = pool.map(lambda role: find_served_model(places[role], keys.get(role)), places)
            return {f"{SERVED}{role}": name_served(found) for role, found in zip(places, asked, strict=True) if found}

    async def check_servers(self, cells: Iterable[EvalCell]) -> None:
        """Raise ServerError unless the server of each cell's model answers."""
        for url in dict.fromkeys(self.urls[cell.model_path] for cell in cells if cell.model_path in self.urls):
            await check_server(url)

    def warn_of_other_models(self) -> None:
        """Print a warning for each server that says it holds another model than it stands for."""
        for model, url in self.urls.items():
            found = find_served_model(url, self.key_file)
            if found and is_other_model(found, model):
                print(f"warning: {url} serves {found}; its scores count as those of {model}", file=sys.stderr)

    @asynccontextmanager
    async def policy(self, model: str, context: int) -> AsyncIterator[Policy]:
        """Open the model for calls of up to `context` tokens."""
        if url := self.urls.get(model):
            async with make_server_policy(url, api_key_file=self.key_file) as remote:
                yield remote
            return
        budget = max(self.concurrency * context, self.recipe.inference.kv_tokens)
        if self.kv_tokens is not None:
            budget = max(min(budget, self.kv_tokens), context)
        engine = Engine(
            self._network(model),
            eos_token_ids=weights.eos_token_ids(resolve(model)),
            max_model_len=context,
            kv_tokens=budget,
            max_num_seqs=max(self.concurrency, self.recipe.inference.max_num_seqs),
            max_prefill_tokens=self.recipe.inference.max_prefill_tokens,
            decode=self.tokenizer(model).decode,
        )
        try:
            async with EmbeddedPolicy(engine) as embedded:
                yield embedded
        finally:
            engine.release_cache()

    def _network(self, model: str) -> CausalLM:
        if model not in self._networks:
            while len(self._networks) >= MODELS_IN_MEMORY:
                del self._networks[next(iter(self._networks))]
            section = self.recipe.model
            self._networks[model] = weights.load(resolve(model), section.dtype, section.device).eval()
        self._networks[model] = self._networks.pop(model)  # the model used last goes last
        return self._networks[model]


async def check_server(url: str) -> None:
    """Raise ServerError unless the server at `url` is healthy."""
    if problem := await asyncio.to_thread(find_health_problem, url.removeprefix(VLLM).rstrip("/")):
        raise ServerError(
            f"policy url {url}: {problem}. Start a server there, such as `tokentrue serve model --model MODEL --port "
            "PORT`, wait until its model is loaded, or correct the URL (http://host:port)."
        )


def find_served_model(url: str, key_file: Path | str | None = None) -> str | None:
    """Return the model that the server at `url` says it holds; None if it says nothing that can be read."""
    for path in ("/v1/models",) if url.startswith(VLLM) else ("/model_info", "/get_model_info"):
        with suppress(OSError, ValueError, LookupError, TypeError, HTTPException):
            key = (
                {"Authorization": f"Bearer {Path(key_file).read_text(encoding='utf-8').strip()}"} if key_file else None
            )
            with open_url(url.removeprefix(VLLM).rstrip("/") + path, 10.0, key) as response:
                reply = json.load(response)
            return str(reply["data"][0]["root"] if path == "/v1/models" else reply["model_path"])
    return None


def is_other_model(found: str, model: str) -> bool:
    """Return whether a server's model has another folder than `model`, or another name, if one is not on this disk."""
    if Path(found).is_dir() and Path(model).is_dir():
        return Path(found).resolve() != Path(model).resolve()
    return name_served(found) != Path(model).name


def name_served(found: str) -> str:
    """Return the name of a model by its path on the server's disk, such as one of the hub's cache."""
    of_hub = re.search(r"models--(?:[^/]*--)?([^/]+)/snapshots/", found)
    return of_hub[1] if of_hub else Path(found).name


def weights_digest(model: str | None, files: Sequence[str] = ("*.safetensors", "config.json")) -> str | None:
    """Return a digest of parts of every file of weights at a path, which changes when other weights are put there.

    It is None for models that are not on this disk.
    """
    path = Path(model or "")
    if not model or not path.is_dir():
        return None
    digest = hashlib.sha256()
    for file in sorted(file for pattern in files for file in path.glob(pattern)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size} ".encode())
        with file.open("rb") as opened:
            for part in range(DIGEST_PARTS):
                opened.seek(size * part // DIGEST_PARTS)
                digest.update(opened.read(4096))
    return digest.hexdigest()[:12]
