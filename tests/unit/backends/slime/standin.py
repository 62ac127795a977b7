"""slime's Sample and arguments as far as the hooks touch them, for machines without slime."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from enum import Enum
from types import SimpleNamespace
from typing import Any


@dataclass
class PrefixCache:
    cached_tokens: int = 0
    total_prompt_tokens: int = 0

    def add(self, meta: dict[str, int]) -> None:
        self.cached_tokens += meta["cached_tokens"]
        self.total_prompt_tokens += meta["prompt_tokens"]


@dataclass
class Sample:
    """Fields and defaults of slime.utils.types.Sample (slime 0.3)."""

    class Status(Enum):
        PENDING = "pending"
        COMPLETED = "completed"
        TRUNCATED = "truncated"
        ABORTED = "aborted"
        FAILED = "failed"

    group_index: int | None = None
    index: int | None = None
    rollout_id: int | None = None
    prompt: Any = ""
    tokens: list[int] = field(default_factory=list)
    response: str = ""
    response_length: int = 0
    label: Any = None
    reward: Any = None
    loss_mask: list[int] | None = None
    weight_versions: list[str] = field(default_factory=list)
    rollout_log_probs: list[float] | None = None
    remove_sample: bool = False
    status: Status = Status.PENDING
    metadata: dict[str, Any] = field(default_factory=dict)
    train_metadata: dict[str, Any] | None = None
    session_id: str | None = None
    prefix_cache_info: PrefixCache = field(default_factory=PrefixCache)


SAMPLING = {
    "temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_new_tokens": 32768, "stop": None, "stop_token_ids": None,
    "skip_special_tokens": False, "no_stop_trim": True, "spaces_between_special_tokens": False,
}  # fmt: skip
UNSET = "reward_key eval_reward_key custom_reward_post_process_path sglang_model_routers".split()
OFF = "normalize_advantages calculate_per_token_loss apply_chat_template log_passrate".split()


def arguments(recipe: dict[str, Any], **settings: Any) -> SimpleNamespace:
    """What `slime` would hold after a launch of `recipe`."""
    rollout = recipe["rollout"]
    return SimpleNamespace(
        **dict.fromkeys(UNSET)
        | dict.fromkeys(OFF, False)
        | {
            "agentic_recipe": copy.deepcopy(recipe),
            "hf_checkpoint": "x",
            "n_samples_per_prompt": rollout["group_size"],
            "rollout_batch_size": rollout["tasks_per_step"],
            "global_batch_size": rollout["group_size"] * rollout["tasks_per_step"],
            "rollout_temperature": rollout["temperature"],
            "rollout_top_p": 1.0,
            "advantage_estimator": "grpo",
            "use_dynamic_batch_size": True,
            "custom_convert_samples_to_train_data_path": "convert",
            "sglang_router_ip": "127.0.0.1",
            "sglang_router_port": 1,
            "prompt_data": "train.jsonl",
            **settings,
        }
    )
