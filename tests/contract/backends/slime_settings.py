"""slime's arguments for a recipe."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from core.backends.slime.flags import ESTIMATORS

HOOKS = "core.backends.slime.hooks"
DATA_PARALLEL = 2
"""Ranks that slime splits a batch over."""


def rollout_arguments(recipe: dict[str, Any], url: str, checkpoint: Path, data: Path, **more: Any) -> Namespace:
    """Every argument that slime's rollout side reads, as a launch of `recipe` sets it.

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
            "custom_generate_function_path": f"{HOOKS}.generate",
            "custom_rm_path": f"{HOOKS}.reward_func",
            "custom_convert_samples_to_train_data_path": f"{HOOKS}.convert",
            "custom_rollout_log_function_path": f"{HOOKS}.rollout_log",
            "custom_eval_rollout_log_function_path": f"{HOOKS}.eval_log",
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
            "advantage_estimator": ESTIMATORS[recipe["algorithm"]["loss_mode"]],
            "rewards_normalization": True,
            "grpo_std_normalization": recipe["algorithm"]["std_normalization"],
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
