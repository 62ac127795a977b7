"""Runs Python that a model wrote in one process that cannot fork and that sees no network, secrets or host files.

Time, memory, files and output are bounded. The process reads Python, the system's shared libraries and the folder of
packages that holds numpy and sympy; keep secrets out of those. It writes to its own folder in memory.
The library in `workspace` gives an agent a whole repository behind the same walls. README.md shows what to import.
"""

from typing import TYPE_CHECKING

from core.options import open_later

if TYPE_CHECKING:
    from core.sandbox.result import Backend, SandboxLimits, SandboxResult, SandboxUnavailable
    from core.sandbox.sandbox import KeptRuns, Sandbox

__all__ = ["Backend", "KeptRuns", "Sandbox", "SandboxLimits", "SandboxResult", "SandboxUnavailable", "workspace"]
__getattr__ = open_later(__name__)
