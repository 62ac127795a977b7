"""Real vLLM on the CPU against our engine: log-probs, a MemAgent rollout, new weights, aborts, the policy contract.

    bash tests/optional/vllm_cpu/setup.sh ENV_DIR
    python -m tests.optional.vllm_cpu --vllm-python ENV_DIR/bin/python [--model MEMAGENT_CHECKPOINT]
    python -m tests.optional.vllm_cpu --vllm-python ENV_DIR/bin/python --train [--steps N] [--out FOLDER]

Without `--model` the tiny preset's start model is made. `--train` trains that preset with the server instead
(tests/optional/server_training.py). Every server started here has ended when this ends.
Prints one line for each thing shown; status 1 if one of them failed.
"""

from __future__ import annotations

import asyncio
from contextlib import AbstractContextManager
from pathlib import Path

import aiohttp

from core.engine import weights
from core.policy.base import PolicyError
from core.policy.server_process import serve
from core.policy.servers import VLLM
from core.policy.vllm import VLLMPolicy
from core.train.rollout_engine import make_check
from tests.contract.conftest import VLLM_SIZES
from tests.kit import count_vllm_requests, save_model
from tests.optional import server_checks as checks
from tests.optional.server_training import LiveServer, show_server

CONTRACT_CONTEXT = 2048
ON_CPU = "--dtype float32 --enforce-eager --max-num-seqs 32 --block-size 32 --no-enable-chunked-prefill".split()
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine is one process instead of two
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",  # compiling the sampler takes minutes on two cores
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "passive",  # idle threads of a server would take the cores of the other
    "HF_HUB_OFFLINE": "1",
}


def run(python: str, model: Path, folder: Path, logs: Path) -> list[bool]:
    """Start the servers one after the other and show everything; for each thing whether it held."""
    shown: list[bool] = []

    def start(model: Path, log: str, *args: str, **environment: str) -> AbstractContextManager[str]:
        every = {**ENVIRONMENT, **environment}
        return serve("vllm", str(model), log=logs / log, args=[*ON_CPU, *args], python=python, environment=every)

    endless = save_model(folder / "endless", seed=0, **VLLM_SIZES)
    with start(endless, "contract.log", "--skip-tokenizer-init", "--max-model-len", str(CONTRACT_CONTEXT)) as url:
        shown += checks.show([checks.contract("vLLM", "vllm", url)])
        shown += checks.show(asyncio.run(look_at_aborts(url)))
    perturbed = checks.perturb(model, folder / "perturbed")
    with start(model, "memagent.log") as url:
        shown += checks.show(asyncio.run(look_at_a_model(url, model, perturbed)))
    with start(model, "old_head.log", VLLM_PLUGINS="") as url:
        shown += checks.show([asyncio.run(old_head(url, perturbed))])
    return shown


async def look_at_a_model(url: str, model: Path, perturbed: Path) -> list[checks.Result]:
    async with VLLMPolicy(url) as policy:
        return [
            *await checks.logprobs(policy, model),
            *await checks.stop_texts(policy, model),
            *await checks.memagent_rollout(policy, model),
            *await checks.new_weights(policy, model, perturbed),
            await refusal("a server with new weights passes the trainer's check", policy, perturbed, refused=False),
            await refusal("with others it does not", policy, model, refused=True),
        ]


async def old_head(url: str, perturbed: Path) -> checks.Result:
    """Without the plugin of setup.sh a tied head keeps its old weights, and vLLM says nothing of it."""
    async with VLLMPolicy(url) as policy:
        await policy.update_weights(perturbed, "second", limit_s=120)
        return await refusal("an old head after new weights is refused", policy, perturbed, refused=True)


async def refusal(what: str, policy: VLLMPolicy, model: Path, *, refused: bool) -> checks.Result:
    """What the trainer's check of a server says, when the trainer has the weights of `model`."""
    check = make_check(weights.load(model, device="cpu"), temperature=1.0)
    try:
        await check(policy)
    except PolicyError as error:
        return checks.Result(what, str(error), refused)
    return checks.Result(what, "passes", not refused)


async def look_at_aborts(url: str) -> list[checks.Result]:
    async with VLLMPolicy(url) as policy, aiohttp.ClientSession(raise_for_status=True) as http:

        async def abort_all() -> None:
            async with http.post(f"{url}/abort_requests", json={}):
                pass

        return await checks.aborts(policy, CONTRACT_CONTEXT - 1, lambda: count_vllm_requests(http, url), abort_all)


if __name__ == "__main__":
    show_server(
        "vllm", run, lambda python: LiveServer("vllm", python, (*ON_CPU, "--max-num-seqs", "128"), ENVIRONMENT, VLLM)
    )
