"""The only package that knows slime and its sibling vime: a preset's job, and the hooks that slime calls.

README.md of core/backends shows how a job is started. slime imports the functions of `hooks` by path; that module is
not imported here, because a job is rendered without PyTorch.
"""

from core.backends.slime.launch import choose_framework, make_job

__all__ = ["choose_framework", "hooks", "make_job"]
