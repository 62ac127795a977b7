"""Runs Python that a model wrote: one process that cannot fork, without network, secrets or the host's files, bounded
in time, memory, files and output.

It reads Python, the system's shared libraries and the folder of packages that holds numpy and sympy; keep secrets out
of those. It writes to a folder of its own in memory, gone with the process.
"""

from core.tools.sandbox.result import SandboxLimits, SandboxResult, SandboxUnavailable
from core.tools.sandbox.sandbox import Sandbox

__all__ = ["Sandbox", "SandboxLimits", "SandboxResult", "SandboxUnavailable"]
