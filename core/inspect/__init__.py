"""Looks into rollouts: a page of their tokens, a check for drift, traces, replays of training steps, bundles of them.

It reads our record and those of slime, TRL, verl, OpenEnv and Harbor, and attacks a reward before training. README.md
shows what to import. The modules named in `__all__` are public as a whole. All but `view` are not imported here:
`replay` and `bundle` load a trainer, and `pytest_plugin` loads pytest.
"""

from core.inspect.dumps import read_dump
from core.inspect.view import refresh_view, write_record_view, write_view

__all__ = [
    "bundle",
    "drift",
    "export",
    "pytest_plugin",
    "read_dump",
    "refresh_view",
    "replay",
    "reward",
    "traces",
    "view",
    "write_record_view",
    "write_view",
]
