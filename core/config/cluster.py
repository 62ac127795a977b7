"""Defines what recipes say about a cluster, whatever backend trains there: its Ray, and how secrets reach a job."""

from __future__ import annotations

import re
from typing import ClassVar

from pydantic import PositiveInt

from core.options import Section

_SECRET = re.compile(r"(^|_)(secret|password|passwd|credentials?|(api|access|private|wandb)_key)(_|$)|(^|_)token$")
"""Finds names of what must not be written into files: HF_TOKEN and WANDB_API_KEY, not TOKENIZERS_PARALLELISM."""


class RaySection(Section):
    PORT: ClassVar[int] = 6379

    head: str = "127.0.0.1"
    """Names the address of the head node; with several nodes, the one by which the others reach it."""
    dashboard_port: PositiveInt = 8265
    """Takes the jobs. Whoever reaches it can run code, so it listens on `head` alone."""

    @property
    def url(self) -> str:
        return f"http://{self.head}:{self.dashboard_port}"


def is_secret(name: str) -> bool:
    """Tell whether a variable or a flag of this name holds a secret."""
    return _SECRET.search(name.lower().replace("-", "_")) is not None
