"""Servers for verl that sample by our engine, on a machine without an accelerator: an actor of Ray, and what feeds it.

VERL_USE_EXTERNAL_MODULES names this module behind cpu_platform, with which verl is imported first.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import ray
import torch
from verl.workers.engine.base import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry, TokenOutput

from core.engine import EmbeddedPolicy, Engine, weights
from core.types import Sampling

SERVER = "tokentrue_engine"

EngineRegistry.register(model_type="language_model", backend=["fsdp", "fsdp2"], device="cpu")(FSDPEngineWithLMHead)
base._ROLLOUT_REGISTRY["vllm", "async"] = f"{__name__}.EngineAdapter"
RolloutReplicaRegistry.register("vllm", lambda: EngineReplica)


class EngineServer:
    """Samples behind verl's client, in a process of its own."""

    def __init__(self, model: str, max_model_len: int):
        torch.set_num_threads(1)
        self.folder = Path(model)
        self.engine = Engine(
            weights.load(self.folder, device="cpu"),
            eos_token_ids=weights.eos_token_ids(self.folder),
            max_model_len=max_model_len,
            kv_tokens=57344,
        )
        self.policy = EmbeddedPolicy(self.engine)

    async def generate(
        self, request_id: str, *, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        names = ("temperature", "top_p", "top_k", "seed")
        sampling = Sampling(
            **{name: sampling_params[name] for name in names if name in sampling_params},
            max_new_tokens=sampling_params["max_tokens"],
            stop_token_ids=tuple(sampling_params["stop_token_ids"]),
        )
        done = await self.policy.generate(tuple(prompt_ids), sampling)
        extra = {"global_steps": int(done.weight_version)}
        reason = "aborted" if done.finish_reason == "abort" else "completed"
        return TokenOutput(
            token_ids=list(done.token_ids), log_probs=list(done.logprobs), stop_reason=reason, extra_fields=extra
        )

    async def set_weights(self, tensors: dict[str, torch.Tensor], version: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            weights.save(self.engine.model, Path(folder), self.folder, tensors)
            read = weights.read(self.engine.model, Path(folder))
        await self.policy.run_exclusive(lambda: self.engine.set_weights(read, str(version)))

    async def nothing(self, **_: Any) -> None:
        """The weights and the cache stay in memory."""

    sleep = wake_up = clear_kv_cache = release_kv_cache = resume_kv_cache = resume_generation = nothing


class EngineReplica(RolloutReplica):
    """Starts the server."""

    async def launch_servers(self) -> None:
        remote = ray.remote(EngineServer).options(name=SERVER, num_cpus=0, max_concurrency=1000)
        server = remote.remote(self.model_config.path, self.config.max_model_len)
        await server.__ray_ready__.remote()
        self.servers, self._server_handle, self._server_address = [server], server, SERVER


class EngineAdapter(base.BaseRollout):
    """Hands the actor's weights to the server."""

    async def resume(self, tags: list[str]) -> None: ...

    async def release(self) -> None: ...

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int = 0, **_: Any
    ) -> None:
        tensors = {name: tensor.detach().clone() for name, tensor in weights}
        await ray.get_actor(SERVER).set_weights.remote(tensors, global_steps)
