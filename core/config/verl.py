"""Defines a recipe's `verl` section, which describes the cluster for verl as core/config/slime.py does for slime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import PositiveInt, model_validator

from core.config.cluster import ClusterSection, Scalar


class VerlSection(ClusterSection):
    key: ClassVar[str] = "verl"
    passes: ClassVar[str] = "overrides"
    engine: Literal["vllm", "sglang"] = "vllm"
    """Names what samples."""
    tensor_model_parallel_size: PositiveInt = 1
    """Counts the GPUs of one engine."""
    ulysses_sequence_parallel_size: PositiveInt = 1
    """Counts the GPUs that share a pack of tokens when they train."""
    trainer_mode: Literal["sync", "colocate_async"] = "sync"
    """Names verl's trainer: it samples and trains in turn, or samples ahead and trains on rollouts of older weights."""
    overrides: Mapping[str, Scalar | tuple[Scalar, ...] | None] = {}
    """Passes any other setting to verl, `key.path: value`; + before a path adds a key that verl lacks."""

    @model_validator(mode="after")
    def _settings_fit(self) -> VerlSection:
        for name in ("tensor_model_parallel_size", "ulysses_sequence_parallel_size"):
            if self.train_gpus % getattr(self, name):
                raise ValueError(f"{name} is {getattr(self, name)}, which does not divide {self.train_gpus} GPUs")
        for key in self.overrides:
            if not re.fullmatch(r"\+{0,2}\w+(\.[\w-]+)+", key):
                raise ValueError(f"overrides.{key}: write the whole path of one setting, such as trainer.device")
        return self
