"""Defines what each section that describes a cluster has: its nodes, how Ray is reached, and the job's environment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar, Self

from pydantic import PositiveInt, model_validator

from core.options import Section

Scalar = bool | int | float | str

_SECRET = re.compile(r"(^|_)(secret|password|passwd|credentials?|(api|access|private|wandb)_key)(_|$)|(^|_)token$")
"""Finds names of what must not be written into files: HF_TOKEN and WANDB_API_KEY, not TOKENIZERS_PARALLELISM."""


class RaySection(Section):
    head: str = "127.0.0.1"
    """Names the address of the head node; with several nodes, the one by which the others reach it."""
    dashboard_port: PositiveInt = 8265
    """Takes the jobs. Whoever reaches it can run code, so it listens on `head` alone."""


class ClusterSection(Section):
    key: ClassVar[str]  # the name of the section in a recipe
    passes: ClassVar[str]  # the name of the field that passes on whatever is not typed
    nodes: PositiveInt = 1
    """Counts the nodes that train."""
    gpus_per_node: PositiveInt = 8
    ray: RaySection = RaySection()
    services: Mapping[str, str] = {}
    """Maps a name to a URL that must answer before the job starts. Servers under `roles` are checked in any case."""
    env: Mapping[str, str] = {}
    """Adds environment variables to the job. A recipe is written into files, so it holds no secrets."""
    env_from: tuple[str, ...] = ()
    """Names variables, such as HF_TOKEN, that the job gets from where it is started; they are written nowhere."""

    @property
    def train_gpus(self) -> int:
        return self.nodes * self.gpus_per_node

    @model_validator(mode="after")
    def _secrets_are_named_alone(self) -> Self:
        for field, name in ((part, name) for part in ("env", self.passes) for name in getattr(self, part)):
            if _SECRET.search(re.sub("[-.]", "_", name.lower())):
                raise ValueError(f"{field}.{name}: a recipe holds no secrets; name a variable in {self.key}.env_from")
        return self
