"""What a sandbox is given and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

Status = Literal["ok", "error", "timeout", "memory", "output_limit", "blocked"]


class SandboxUnavailable(RuntimeError):
    """Nothing here can isolate code; the message names the missing feature and the fix."""


class SandboxLimits(BaseModel):
    """A section of a recipe. (Not a `core.config.Section`: tools stay importable without torch.)"""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    timeout_s: PositiveFloat = 10.0
    """Wall clock, from the start of the process. CPU time is limited to a second more."""
    memory_mb: int = Field(default=512, ge=64)
    """Address space. The code is one process that cannot fork, so this is the limit of all it does."""
    folder_mb: PositiveInt = 64
    """All files together. They live in memory, beside `memory_mb`."""
    files: PositiveInt = 1024
    """How many files and folders."""
    open_files: PositiveInt = 64
    output_bytes: PositiveInt = 1 << 20
    """Code that writes more than this, on stdout and stderr together, is stopped."""
    keep_bytes: PositiveInt = 16384
    """What is kept of each stream: half from the head, half from the tail."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """How one run ended.

    ok: exit code 0. error: another exit code, an exception or a crash. timeout, memory, output_limit: that limit ended
    it. blocked: it died of something that the sandbox forbids. `exit_code` is None when the sandbox stopped the run,
    and 128 + n after signal n. `seconds` is wall clock, start included.
    """

    status: Status
    stdout: str
    stderr: str
    exit_code: int | None
    seconds: float
    backend: str
