"""Defines what a sandbox is given, its isolation and limits, and the result that it returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from core.options import Section

Backend = Literal["bubblewrap", "landlock", "unsafe_local"]
Status = Literal["ok", "error", "timeout", "memory", "output_limit", "blocked"]


class SandboxUnavailable(RuntimeError):
    """Reports that nothing here can isolate code; the message names the missing feature and the fix."""


class SandboxLimits(Section):
    """Limits one run; a section of a recipe."""

    timeout_s: PositiveFloat = 10.0
    """Limits the wall clock from the start of the process, and CPU time to a second or two more."""
    memory_mb: int = Field(default=512, ge=64)
    """Limits the address space. The code is one process that cannot fork, so this limits everything."""
    folder_mb: PositiveInt = 64
    """Limits all files together. They live in memory, in addition to `memory_mb`."""
    files: PositiveInt = 1024
    """Limits the number of files and folders."""
    open_files: PositiveInt = 64
    """Limits the open file descriptors."""
    output_bytes: PositiveInt = 1 << 20
    """Limits stdout and stderr together; code that writes more is stopped."""
    keep_bytes: PositiveInt = 16384
    """Limits the bytes that are kept of each stream: half from the head, half from the tail."""


@dataclass(frozen=True, slots=True)
class SandboxResult:
    """Describes how one run ended.

    ok: exit code 0. error: another exit code, an exception or a crash. timeout, memory, output_limit: that limit ended
    it. blocked: it died of something that the sandbox forbids. `exit_code` is None if the sandbox stopped the run, and
    128 + n after signal n. `seconds` measures the wall clock, start included.
    """

    status: Status
    stdout: str
    stderr: str
    exit_code: int | None
    seconds: float
    backend: str
