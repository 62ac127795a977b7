"""slime's Sample, arguments and training data as far as the hooks touch them, for machines without slime."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any

from core.types import Row
from tests.contract.backends.slime_settings import rollout_arguments


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


def arguments(recipe: dict[str, Any], **settings: Any) -> Namespace:
    """What `slime` would hold after a launch of `recipe`."""
    return rollout_arguments(recipe, "http://127.0.0.1:1", Path("x"), Path("train.jsonl"), **settings)


def read_rows(data: dict[str, list[Any]]) -> list[Row]:
    """The rows of the training data that a converter hands to slime."""
    columns = ("tokens", "loss_masks", "rollout_log_probs", "rewards", "rollout_ids")
    return [
        Row(tuple(tokens), tuple(mask), tuple(logprobs), advantage, rollout)
        for tokens, mask, logprobs, advantage, rollout in zip(*(data[name] for name in columns), strict=True)
    ]
