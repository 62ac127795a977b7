"""Six behaviours of verl 0.9.1, each with the figure that verl gives beside the right one: python traps.py

Needs verl 0.9.1 and TransferQueue on a CPU, and no other file of this repository. Each function stands alone. The code
that decides is verl's own; workers and vLLM are stood in for.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np
import torch


def advantages_of_rows(estimator: str) -> None:
    """Agent loops with several outputs: every estimator but GRPO takes an output for a rollout."""
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    def compute(keys: list[str], rewards: list[float]) -> list[float]:
        mask = torch.ones(len(keys), 1)
        data = DataProto.from_dict(
            {"response_mask": mask, "token_level_rewards": torch.tensor(rewards)[:, None]},
            {"uid": np.array(["prompt"] * len(keys), dtype=object)},
        )
        done = compute_advantage_for_multi_trajectories(data, keys, estimator)
        return [round(value, 3) for value in done.batch["advantages"][:, 0].tolist()]

    # Rollout 0 has reward 1, rollout 1 has reward 0. The number of outputs of rollout 0 must not matter.
    right = compute(["prompt_0_0", "prompt_1_0"], [1.0, 0.0])
    wrong = compute(["prompt_0_0", "prompt_0_1", "prompt_0_2", "prompt_1_0"], [1.0, 1.0, 1.0, 0.0])
    print(f"{estimator}: rollout 0 has one output: advantages {right}; it has three: {wrong[0]}, {wrong[-1]}")


def an_untrained_last_row() -> None:
    """GRPO with several outputs reads the advantage at the first trained token of the last one, if there is any."""
    from verl import DataProto
    from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

    def compute(last: list[float]) -> list[float]:
        masks = torch.tensor([[1.0, 1.0], last, [1.0, 1.0], last])
        rewards = torch.tensor([1.0, 1.0, 0.0, 0.0])
        scores = torch.stack([torch.zeros(4), rewards], dim=1)
        names = {"uid": np.array(["prompt"] * 4, dtype=object)}
        data = DataProto.from_dict({"response_mask": masks, "token_level_rewards": scores}, names)
        keys = ["prompt_0_0", "prompt_0_1", "prompt_1_0", "prompt_1_1"]
        done = compute_advantage_for_multi_trajectories(data, keys, "grpo", norm_adv_by_std_in_grpo=False)
        return done.batch["advantages"][:, 0].tolist()[::2]

    # Two rollouts of two outputs, rewards 1 and 0. The first output of each is trained; the last one is, or is not.
    trained, masked = compute([1.0, 1.0]), compute([0.0, 0.0])
    print(f"first outputs: advantages {trained} if the last output is trained, {masked} if its mask is 0")


def steps_of_rows() -> None:
    """A batch takes an optimizer step for every ppo_mini_batch_size x n outputs, not rollouts."""
    import hydra
    import transfer_queue
    import verl
    from verl.trainer.ppo.v1 import get_trainer_cls

    def count_steps(outputs: int) -> int:
        trainer: Any = object.__new__(get_trainer_cls("sync"))
        settings = ["rollout.name=vllm", "rollout.n=4", "actor.ppo_mini_batch_size=2"]
        with hydra.initialize_config_dir(f"{verl.__path__[0]}/trainer/config", version_base=None):
            config = hydra.compose("ppo_trainer", [f"actor_rollout_ref.{setting}" for setting in settings])
        trainer.config, trainer.use_critic, trainer.global_steps = config, False, 1
        trainer.distillation_config = None
        trainer.tokenizer, sent = SimpleNamespace(eos_token_id=0), []
        update = lambda batch: sent.append(batch.extra_info["mini_batch_size"]) or {"metrics": {"mfu": 0.0}}  # noqa: E731
        trainer.actor_rollout_wg = SimpleNamespace(_dispatch_info={"actor": [0]}, update_actor=update)
        keys = [f"prompt{p}_{r}_{o}" for p in range(4) for r in range(4) for o in range(outputs)]
        batch = transfer_queue.KVBatchMeta(
            keys=keys, tags=[{"seq_len": 8, "prompt_len": 4, "response_len": 4} for _ in keys], partition_id="train"
        )
        batch = trainer._balance_batch(batch, {})
        trainer._update_actor(batch, {})
        return len(batch.keys) // sent[0]

    # 4 prompts x n = 4 rollouts, ppo_mini_batch_size = 2: two steps are asked for.
    one, six = count_steps(1), count_steps(6)
    print(f"optimizer steps on 16 rollouts, asked for 2: {one} at 1 output each, {six} at 6")


def one_survivor() -> None:
    """A group of which one rollout survives has no baseline, and still that one gets its own reward as advantage."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    def compute(rewards: list[float]) -> list[float]:
        mask, group = torch.ones(len(rewards), 1), np.array(["prompt"] * len(rewards))
        advantages, _ = compute_grpo_outcome_advantage(torch.tensor(rewards)[:, None], mask, group)
        return [round(value, 3) for value in advantages[:, 0].tolist()]

    # A rollout whose agent loop returned None is no longer in the batch. Equal rewards teach nothing; nor does one.
    two, one, other = compute([1.0, 1.0]), compute([1.0]), compute([0.7])
    print(f"rewards [1, 1]: advantages {two}; reward [1] alone: {one}; [0.7] alone: {other}")


def a_vllm_replica() -> None:
    """A reply cut at its limit is `completed`, as one that ended; and a request that does not fit is shortened."""
    version = importlib.metadata.version
    with patch("importlib.metadata.version", lambda name: "0.24.0" if name == "vllm" else version(name)):
        sys.meta_path.append(AnyOfVLLM())
        from verl.workers.rollout.vllm_rollout import vllm_async_server as module
    asked: dict[str, int] = {}
    server: Any = object.__new__(module.vLLMHttpServer)
    config = MagicMock(max_model_len=10, full_determinism=False, enable_rollout_routing_replay=False, mtp=None)
    defaults = {"_disaggregation_role": None, "_pd_decode_peers": [], "replica_rank": 0, "_admitting": 2}
    vars(server).update(defaults, global_steps=0, config=config, model_config=MagicMock(lora_rank=0, lora={}))

    async def admit(_: str) -> None: ...

    async def generate(sampling_params: Any, **_: Any) -> Any:
        ids = list(range(sampling_params.max_tokens))
        output = SimpleNamespace(token_ids=ids, logprobs=None, finish_reason=finish)
        yield SimpleNamespace(outputs=[output], num_cached_tokens=0)

    def remember(max_tokens: int, **_: Any) -> Any:
        asked["max_tokens"] = max_tokens
        return SimpleNamespace(max_tokens=max_tokens, logprobs=None, prompt_logprobs=None)

    server._park_until_admitted, server.engine = admit, SimpleNamespace(generate=generate)
    replies = {}
    with patch.multiple(module, SamplingParams=remember, qwen2_5_vl_dedup_image_tokens=lambda ids, _: ids):
        for finish in ("stop", "length"):
            reply = asyncio.run(server.generate([1] * 7, {"max_tokens": 20}, "request"))
            replies[finish] = reply.stop_reason
    print(f"vLLM's finish_reason -> verl's stop_reason: {replies}")
    print(f"max_tokens 20 behind a prompt of 7, max_model_len 10: vLLM is asked for {asked['max_tokens']}, no error")


class AnyOfVLLM(MetaPathFinder, Loader):
    """Stands in for vLLM, which does not have to be installed: the replica's own code is verl's."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self, is_package=True) if fullname.split(".")[0] == "vllm" else None

    def create_module(self, spec: ModuleSpec) -> Any:
        return MagicMock(__path__=[], __version__="0.24.0", __all__=[])

    def exec_module(self, module: Any) -> None: ...


if __name__ == "__main__":
    advantages_of_rows("rloo")
    an_untrained_last_row()
    steps_of_rows()
    one_survivor()
    a_vllm_replica()
