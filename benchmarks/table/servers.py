"""The servers of an evaluation: what memory each takes, which GPUs it gets, and starting them."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from core.policy.server_process import ServerError, serve

USABLE = 0.9
"""Share of a GPU's memory that servers take."""

MOST_GPUS = 64


@dataclass(frozen=True)
class SizedModel:
    """Describes a model behind a server. `billions` of parameters in bfloat16; `kv_bytes` of cache for a token."""

    name: str
    billions: float
    kv_bytes: int

    def gigabytes(self, tokens: int) -> float:
        """Return the memory of the weights and of a cache of so many tokens."""
        return 2 * self.billions + self.kv_bytes * tokens / 1e9


_7B, _8B = (7.62, 57_344), (8.19, 147_456)
MODELS = {
    model.name.rpartition("/")[2]: model
    for model in (
        SizedModel("BytedTsinghua-SIA/RL-MemoryAgent-7B", *_7B),
        SizedModel("BytedTsinghua-SIA/RL-MemoryAgent-14B", 14.77, 196_608),
        SizedModel("LMIS-ORG/MemAgent_Slime_Agentic_Qwen2.5_7B", *_7B),
        SizedModel("AgentFlow/agentflow-planner-7b", *_7B),
        SizedModel("LMIS-ORG/AgentFlow_Slime_Agentic_Qwen2.5_7B", *_7B),
        SizedModel("nvidia/Orchestrator-8B", *_8B),
        SizedModel("LMIS-ORG/ToolOrchestra_Slime_Agentic_Qwen3_8B", *_8B),
        SizedModel("Qwen/Qwen2.5-7B-Instruct", *_7B),
        SizedModel("Qwen/Qwen2.5-7B-Instruct-1M", *_7B),
        SizedModel("Qwen/Qwen2.5-14B-Instruct-1M", 14.77, 196_608),
        SizedModel("Qwen/Qwen2.5-Coder-7B-Instruct", *_7B),
        SizedModel("Qwen/Qwen2.5-Math-7B-Instruct", *_7B),
        SizedModel("Qwen/Qwen3-8B", *_8B),
        SizedModel("Qwen/Qwen3-32B", 32.76, 262_144),
        SizedModel("Qwen/Qwen2.5-Coder-32B-Instruct", 32.76, 262_144),
        SizedModel("Qwen/Qwen2.5-Math-72B-Instruct", 72.7, 327_680),
        SizedModel("meta-llama/Llama-3.3-70B-Instruct", 70.55, 327_680),
    )
}
"""Maps the names of models to them: parameters, and layers x 2 x key-value heads x 128 x 2 bytes."""


def find_model(name: str) -> SizedModel:
    """Return a model of MODELS by its hub id."""
    return MODELS[name.rpartition("/")[2]]


@dataclass(frozen=True)
class GpuShare:
    """Says which GPUs a server gets, and how much of each one's memory that is free when it starts."""

    gpus: tuple[int, ...]
    share: float


def memory_needed(models: Sequence[str], cached_tokens: int) -> dict[str, float]:
    """Return the gigabytes of each model with its cache."""
    return {model: find_model(model).gigabytes(cached_tokens) for model in models}


def place_servers(needed: Mapping[str, float], gpus: int, gigabytes: float) -> dict[str, GpuShare] | None:
    """Return the place of each model, in the order in which to start them; None where they do not fit.

    The largest comes first and takes the emptiest GPUs. A model that is too large for one GPU is spread evenly over
    the next power of two of them.
    """
    used = [0.0] * gpus
    places: dict[str, GpuShare] = {}
    for model, memory in sorted(needed.items(), key=lambda item: -item[1]):
        width = 1
        while memory / width > USABLE * gigabytes:
            width *= 2
        emptiest = sorted(range(gpus), key=lambda gpu: (used[gpu], gpu))[:width]
        if len(emptiest) < width or any(used[gpu] + memory / width > USABLE * gigabytes for gpu in emptiest):
            return None
        share = max(memory / width / (gigabytes - used[gpu]) for gpu in emptiest)
        places[model] = GpuShare(tuple(sorted(emptiest)), share)
        for gpu in emptiest:
            used[gpu] += memory / width
    return places


def find_gpus() -> tuple[int, float]:
    """Return how many GPUs this machine has, and the gigabytes of the smallest one."""
    import torch

    count = torch.cuda.device_count()
    memory = [torch.cuda.get_device_properties(gpu).total_memory / 1e9 for gpu in range(count)]
    return count, min(memory, default=0.0)


class Servers:
    """Keeps servers running from one evaluation to the next, as long as the next one asks no other models.

    `given` maps models to servers that run already. With `stand_in` one server of our own plays all the others.
    """

    def __init__(
        self,
        logs: Path,
        *,
        gpus: int,
        gigabytes: float,
        python: str = sys.executable,
        given: Mapping[str, str] | None = None,
        stand_in: Path | None = None,
    ):
        self._logs, self._gpus, self._gigabytes, self._python = logs, gpus, gigabytes, python
        self._given, self._stand_in = dict(given or {}), stand_in
        self._urls: dict[str, str] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stop()

    def _stop(self) -> None:
        self._urls.clear()
        self._stack.close()

    def place(self, models: Sequence[str], cached_tokens: int) -> dict[str, GpuShare] | None:
        """Return the places of the models that no given server has; None where they do not fit."""
        needed = memory_needed([model for model in models if model not in self._given], cached_tokens)
        return place_servers(needed, self._gpus, self._gigabytes)

    def explain(self, models: Sequence[str], cached_tokens: int) -> str:
        """Say why the servers of these models do not fit, and how many such GPUs would hold them."""
        needed = memory_needed([model for model in models if model not in self._given], cached_tokens)
        fitting = (gpus for gpus in range(1, MOST_GPUS + 1) if place_servers(needed, gpus, self._gigabytes))
        enough = next(fitting, f"more than {MOST_GPUS}")
        each = ", ".join(f"{model} {memory:.0f} GB" for model, memory in needed.items())
        return (
            f"does not fit {self._gpus} GPU(s) of {self._gigabytes:.0f} GB; it needs {enough} such GPU(s), "
            f"or --url for some of: {each}"
        )

    def start(self, models: Sequence[str], cached_tokens: int) -> Mapping[str, str] | None:
        """Return the URL of each model's server, and start those that are missing; None where they do not fit.

        Raises:
            ServerError: a server did not start.
        """
        if self._stand_in is not None:
            if not self._urls and set(models) - self._given.keys():
                self._urls[""] = self._stack.enter_context(_serve_stand_in(self._stand_in, self._logs))
            return {model: self._given.get(model) or self._urls[""] for model in models}
        if not self._urls.keys() >= set(models) - self._given.keys():
            places = self.place(models, cached_tokens)
            if places is None:
                return None
            self._stop()
            try:
                for model, place in places.items():
                    self._urls[model] = self._stack.enter_context(
                        _serve_on_gpus(model, place, cached_tokens, self._logs, self._python)
                    )
            except ServerError:
                self._stop()  # those that did start would keep the GPUs from the next evaluation
                raise
        return {model: self._given.get(model) or self._urls[model] for model in models}


@contextmanager
def _serve_stand_in(model: Path, logs: Path) -> Iterator[str]:
    print(f"starting our own server for {model} (see {logs / 'server-stand-in.log'})", flush=True)
    with serve("embedded", str(model), log=logs / "server-stand-in.log", environment={"OMP_NUM_THREADS": "1"}) as url:
        yield url


@contextmanager
def _serve_on_gpus(model: str, place: GpuShare, cached_tokens: int, logs: Path, python: str) -> Iterator[str]:
    """Start SGLang for a model. Its share of the memory is of what is free, so servers may share a GPU in order."""
    name = model.rpartition("/")[2]
    log = logs / f"server-{name}.log"
    args = ["--tp", str(len(place.gpus)), "--mem-fraction-static", f"{place.share:.3f}"]
    args += ["--max-total-tokens", str(cached_tokens)]
    print(f"starting SGLang for {model} on GPU {', '.join(map(str, place.gpus))} (see {log})", flush=True)
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(map(str, place.gpus))}
    with serve("sglang", model, log=log, args=args, python=python, environment=visible) as url:
        yield url
