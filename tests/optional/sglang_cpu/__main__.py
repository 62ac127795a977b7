"""Real SGLang on the CPU against our engine: log-probs, a MemAgent rollout, new weights, aborts, the policy contract.

    bash tests/optional/sglang_cpu/setup.sh ENV_DIR
    python -m tests.optional.sglang_cpu --sglang-python ENV_DIR/bin/python [--model MEMAGENT_CHECKPOINT]
    python -m tests.optional.sglang_cpu --sglang-python ENV_DIR/bin/python --train [--steps N] [--out FOLDER]

Without `--model` the tiny preset's start model is made. `--train` trains that preset with the server instead
(tests/optional/server_training.py). Every server started here has ended when this ends.
Prints one line for each thing shown; status 1 if one of them failed.
"""

from __future__ import annotations

import asyncio
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from core.policy.server_process import find_free_port, serve, start_server
from core.policy.sglang import SGLangPolicy
from tests.contract.conftest import SIZES
from tests.kit import save_model
from tests.optional import server_checks as checks
from tests.optional.server_training import LiveServer, show_server

CONTRACT_CONTEXT = 2048
ON_CPU = (
    "--device cpu --dtype float32 --attention-backend torch_native --sampling-backend pytorch --grammar-backend none "
    "--disable-overlap-schedule --disable-cuda-graph --mem-fraction-static 0.2 --max-total-tokens 32768 "
    "--max-running-requests 32 --skip-server-warmup"
).split()


def run(python: str, model: Path, folder: Path, logs: Path) -> list[bool]:
    """Start the servers one after the other and show everything; for each thing whether it held."""
    shown: list[bool] = []
    perturbed = checks.perturb(model, folder / "perturbed")
    with serve("sglang", str(model), log=logs / "memagent.log", args=ON_CPU, python=python) as url:
        shown += checks.show(asyncio.run(look_at_a_model(url, model, perturbed)))

    endless = save_model(folder / "endless", seed=0, **SIZES)
    ours = ["--max-model-len", str(CONTRACT_CONTEXT), "--kv-tokens", str(8 * CONTRACT_CONTEXT)]
    real = [*ON_CPU, "--skip-tokenizer-init", "--context-length", str(CONTRACT_CONTEXT)]
    with (
        serve("sglang", str(endless), log=logs / "contract.log", args=real, python=python) as url,
        serve("embedded", str(endless), log=logs / "embedded.log", args=ours) as embedded_url,
    ):
        shown += checks.show(asyncio.run(look_at_aborts(url)))
        shown += checks.show([checks.contract("SGLang", "sglang", url)])
        with router(python, [url, embedded_url], logs / "router.log") as router_url:
            shown += checks.show([checks.contract("its router before SGLang and ours", "sglang", router_url)])
    return shown


async def look_at_a_model(url: str, model: Path, perturbed: Path) -> list[checks.Result]:
    async with SGLangPolicy(url) as policy:
        return [
            *await checks.logprobs(policy, model),
            *await checks.stop_texts(policy, model),
            *await checks.memagent_rollout(policy, model),
            *await checks.new_weights(policy, model, perturbed),
        ]


async def look_at_aborts(url: str) -> list[checks.Result]:
    async with SGLangPolicy(url) as policy, aiohttp.ClientSession(url, raise_for_status=True) as http:

        async def count_held() -> int:
            async with http.get("/v1/loads") as response:
                loads: list[dict[str, Any]] = (await response.json())["loads"]
            return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)

        async def abort_all() -> None:
            async with http.post("/abort_request", json={"abort_all": True}):
                pass

        return await checks.aborts(policy, CONTRACT_CONTEXT - 1, count_held, abort_all)


@contextmanager
def router(python: str, workers: Sequence[str], log: Path) -> Iterator[str]:
    """SGLang's router in front of `workers`, once it knows them all. Its policy `manual` goes by the session."""
    ports = [find_free_port("127.0.0.1") for _ in range(2)]
    url = f"http://127.0.0.1:{ports[0]}"
    command = [python, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--policy", "manual"]
    command += ["--port", str(ports[0]), "--prometheus-port", str(ports[1]), "--worker-urls", *workers]
    with start_server(command, log) as keeper:
        deadline = time.monotonic() + 120
        while not all(worker.encode() in listing(url) for worker in workers):
            if keeper.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the router did not start; see {log}:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        yield url


def listing(router_url: str) -> bytes:
    try:
        with urllib.request.urlopen(f"{router_url}/workers", timeout=5) as response:
            return bytes(response.read())
    except OSError:
        return b""


if __name__ == "__main__":
    show_server("sglang", run, lambda python: LiveServer("sglang", python, (*ON_CPU, "--max-running-requests", "128")))
