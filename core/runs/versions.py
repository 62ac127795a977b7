"""This module records what a run ran on: Python, packages, git commit, processor and GPU."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")


def collect_versions() -> dict[str, Any]:
    """Collect the facts of `versions.json`; an unknown one is None."""
    import torch  # here, because reading a finished run needs no torch

    return {
        "python": platform.python_version(),
        **{name: package_version(name) for name in PACKAGES},
        "git": _git_commit(),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())],
    }


def package_version(name: str) -> str | None:
    """Return the version of a package, None when it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git_commit() -> str | None:
    """Return the commit, with `-dirty` when tracked files differ from it."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu_name() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or None
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
