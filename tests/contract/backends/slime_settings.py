"""slime's arguments for a recipe."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from core.backends.slime.flags import ESTIMATORS

HOOKS = "core.backends.slime.hooks"
DATA_PARALLEL = 2
"""Ranks that slime splits a batch over."""
UNSET = (
    "router_policy sglang_config sglang_model_routers prefill_num_servers rollout_max_context_len "
    "rollout_max_prompt_len rollout_stop rollout_stop_token_ids tool_key multimodal_keys apply_chat_template_kwargs "
    "dump_details custom_reward_post_process_path dynamic_sampling_filter_path buffer_filter_path "
    "rollout_sample_hook_path rollout_sample_filter_path rollout_all_samples_process_path rm_type reward_key "
    "eval_reward_key eval_max_prompt_len save_debug_rollout_data load_debug_rollout_data log_reward_category"
).split()
OFF = (
    "rollout_external use_distributed_post colocate offload_rollout rollout_skip_special_tokens rollout_shuffle "
    "apply_chat_template partial_rollout mask_offpolicy_in_partial_rollout group_rm use_rollout_routing_replay "
    "ci_test debug_train_only debug_rollout_only use_fault_tolerance use_wandb use_tensorboard "
    "wandb_always_use_train_step log_passrate normalize_advantages calculate_per_token_loss balance_data "
    "balance_by_flops"
).split()
ONE = (
    "sglang_dp_size rollout_num_gpus_per_engine rollout_num_engines actor_num_nodes actor_num_gpus_per_node "
    "micro_batch_size"
).split()


def rollout_arguments(recipe: dict[str, Any], url: str, checkpoint: Path, data: Path, **more: Any) -> Namespace:
    """Every argument that slime's rollout side reads, as a launch of `recipe` sets it.

    Sampling is seeded, so that a test sees the same rewards each time.
    """
    host, _, port = url.removeprefix("http://").partition(":")
    rollout = recipe["rollout"]
    return Namespace(
        **dict.fromkeys(UNSET)
        | dict.fromkeys(OFF, False)
        | dict.fromkeys(ONE, 1)
        | {
            "agentic_recipe": recipe,
            "hf_checkpoint": str(checkpoint),
            "sglang_router_ip": host,
            "sglang_router_port": int(port),
            "sglang_server_concurrency": 64,
            "sglang_enable_deterministic_inference": True,
            "rollout_num_gpus": 0,
            "num_gpus_per_node": 8,
            "rollout_temperature": rollout["temperature"],
            "rollout_top_p": 1.0,
            "rollout_top_k": -1,
            "rollout_max_response_len": 1024,
            "rollout_seed": 42,
            "rollout_batch_size": rollout["tasks_per_step"],
            "rollout_global_dataset": True,
            "n_samples_per_prompt": rollout["group_size"],
            "over_sampling_batch_size": rollout["tasks_per_step"],
            "global_batch_size": rollout["tasks_per_step"] * rollout["group_size"],
            "prompt_data": str(data),
            "input_key": "prompt",
            "label_key": "label",
            "metadata_key": "metadata",
            "data_source_path": "slime.rollout.data_source.RolloutDataSourceWithBuffer",
            "rollout_function_path": "slime.rollout.sglang_rollout.generate_rollout",
            "eval_function_path": "slime.rollout.sglang_rollout.generate_rollout",
            "custom_generate_function_path": f"{HOOKS}.generate",
            "custom_rm_path": f"{HOOKS}.reward_func",
            "custom_convert_samples_to_train_data_path": f"{HOOKS}.convert",
            "custom_rollout_log_function_path": f"{HOOKS}.rollout_log",
            "custom_eval_rollout_log_function_path": f"{HOOKS}.eval_log",
            "eval_datasets": [],
            "advantage_estimator": ESTIMATORS[recipe["algorithm"].get("loss_mode", "vanilla")],
            "rewards_normalization": True,
            "grpo_std_normalization": recipe["algorithm"].get("std_normalization", True),
            "use_dynamic_batch_size": True,
            "max_tokens_per_gpu": 512,
            **more,
        },
    )
