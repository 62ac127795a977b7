"""The only package that knows slime and its sibling vime: a preset's job, and the hooks that slime calls.

README.md of core/backends shows how a job is started. slime imports the functions of `hooks` by path; that module is
not imported here, because a job is rendered without PyTorch.
"""

from core.backends.slime.checks import find_problems
from core.backends.slime.flags import Paths
from core.backends.slime.job import write_script
from core.backends.slime.launch import choose_framework, start_job

__all__ = ["Paths", "choose_framework", "find_problems", "hooks", "start_job", "write_script"]
