"""slime's own source, from the checkout at SLIME_ROOT, in a process without a GPU, SGLang, Megatron or a Ray cluster.

What slime imports beyond this environment is stood in for; Ray's object store and lock are the identity and a mock. All
rollout, conversion, scheduling and loss code is slime's.
"""

from __future__ import annotations

import importlib
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from tests.golden.algorithms.make_golden import StandIn, StandInImporter

DATA_PARALLEL = 2
"""Ranks that slime splits a batch over."""


class OnlyMissing(StandInImporter):
    """Asked last, so that whatever is installed is taken as it is."""

    packages = ("megatron", "sglang", "sglang_router", "mbridge", "pybase64", "pylatexenc", "zstandard", "openai")

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        parent = sys.modules.get(fullname.rpartition(".")[0])
        if "." in fullname and not isinstance(parent, StandIn):
            return None
        return super().find_spec(fullname, path, target)


@contextmanager
def slime_at(root: Path) -> Iterator[Any]:
    """slime importable, with `rollout_manager` and `loss` at hand; gone from this process afterwards."""
    patch, importer = pytest.MonkeyPatch(), OnlyMissing()
    patch.syspath_prepend(str(root))
    patch.setitem(os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    sys.meta_path.append(importer)
    before = set(sys.modules)
    try:
        rollout = importlib.import_module("slime.ray.rollout")
        patch.setattr(rollout, "ray", SimpleNamespace(put=lambda value: value, get=lambda value: value))
        patch.setattr(rollout, "Lock", MagicMock())
        patch.setattr("slime.backends.sglang_utils.server_control.ABORT_RETRY_INTERVAL_SECONDS", 0.05)
        loss = importlib.import_module("slime.backends.megatron_utils.loss")
        parallel = {
            "get_context_parallel_world_size": lambda: 1,
            "get_data_parallel_world_size": lambda with_context_parallel: DATA_PARALLEL,
            "get_tensor_model_parallel_group": lambda: None,
            "is_pipeline_last_stage": lambda: True,
        }
        for name, function in parallel.items():
            patch.setattr(loss.mpu, name, function)
        yield SimpleNamespace(
            rollout_manager=rollout.RolloutManager.__ray_metadata__.modified_class,
            sglang_rollout=importlib.import_module("slime.rollout.sglang_rollout"),
            fully_async=importlib.import_module("slime.rollout.fully_async_rollout"),
            loss=loss,
            Sample=importlib.import_module("slime.utils.types").Sample,
        )
    finally:
        importlib.import_module("slime.rollout.fully_async_rollout")._stop_global_worker()
        sys.meta_path.remove(importer)
        for name in set(sys.modules) - before:
            if name.split(".")[0] in ("slime", *OnlyMissing.packages):
                del sys.modules[name]
        patch.undo()


def rollout_arguments(
    recipe: dict[str, Any], hooks: str, url: str, checkpoint: Path, data: Path, **more: Any
) -> Namespace:
    """Every argument that slime's rollout side reads, as a launch of `recipe` with the hooks of a module sets it.

    Sampling is seeded, so that a test sees the same rewards each time.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    rollout = recipe["rollout"]
    return Namespace(
        **{
            "agentic_recipe": recipe,
            "hf_checkpoint": str(checkpoint),
            "sglang_router_ip": host,
            "sglang_router_port": int(port),
            "router_policy": None,
            "sglang_server_concurrency": 64,
            "sglang_dp_size": 1,
            "sglang_config": None,
            "sglang_model_routers": None,
            "sglang_enable_deterministic_inference": True,
            "rollout_external": False,
            "rollout_num_gpus": 0,
            "rollout_num_gpus_per_engine": 1,
            "rollout_num_engines": 1,
            "num_gpus_per_node": 8,
            "prefill_num_servers": None,
            "use_distributed_post": False,
            "colocate": False,
            "offload_rollout": False,
            "actor_num_nodes": 1,
            "actor_num_gpus_per_node": 1,
            "rollout_temperature": rollout["temperature"],
            "rollout_top_p": 1.0,
            "rollout_top_k": -1,
            "rollout_max_response_len": 1024,
            "rollout_max_context_len": None,
            "rollout_max_prompt_len": None,
            "rollout_stop": None,
            "rollout_stop_token_ids": None,
            "rollout_skip_special_tokens": False,
            "rollout_seed": 42,
            "rollout_shuffle": False,
            "rollout_batch_size": rollout["tasks_per_step"],
            "rollout_global_dataset": True,
            "n_samples_per_prompt": rollout["group_size"],
            "over_sampling_batch_size": rollout["tasks_per_step"],
            "global_batch_size": rollout["tasks_per_step"] * rollout["group_size"],
            "prompt_data": str(data),
            "input_key": "prompt",
            "label_key": "label",
            "metadata_key": "metadata",
            "tool_key": None,
            "multimodal_keys": None,
            "apply_chat_template": False,
            "apply_chat_template_kwargs": None,
            "dump_details": None,
            "data_source_path": "slime.rollout.data_source.RolloutDataSourceWithBuffer",
            "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout",
            "eval_function_path": "slime.rollout.sglang_rollout.generate_rollout",
            "custom_generate_function_path": f"{hooks}.generate",
            "custom_rm_path": f"{hooks}.reward_func",
            "custom_convert_samples_to_train_data_path": f"{hooks}.convert",
            "custom_rollout_log_function_path": f"{hooks}.rollout_log",
            "custom_eval_rollout_log_function_path": f"{hooks}.eval_log",
            "custom_reward_post_process_path": None,
            "dynamic_sampling_filter_path": None,
            "buffer_filter_path": None,
            "rollout_sample_hook_path": None,
            "rollout_sample_filter_path": None,
            "rollout_all_samples_process_path": None,
            "partial_rollout": False,
            "mask_offpolicy_in_partial_rollout": False,
            "group_rm": False,
            "rm_type": None,
            "reward_key": None,
            "eval_reward_key": None,
            "use_rollout_routing_replay": False,
            "ci_test": False,
            "eval_datasets": [],
            "eval_max_prompt_len": None,
            "debug_train_only": False,
            "debug_rollout_only": False,
            "use_fault_tolerance": False,
            "save_debug_rollout_data": None,
            "load_debug_rollout_data": None,
            "use_wandb": False,
            "use_tensorboard": False,
            "wandb_always_use_train_step": False,
            "log_reward_category": None,
            "log_passrate": False,
            "advantage_estimator": "grpo",
            "rewards_normalization": True,
            "grpo_std_normalization": recipe["algorithm"]["std_norm"],
            "normalize_advantages": False,
            "calculate_per_token_loss": False,
            "use_dynamic_batch_size": True,
            "max_tokens_per_gpu": 512,
            "micro_batch_size": 1,
            "balance_data": False,
            "balance_by_flops": False,
            **more,
        }
    )
