"""Backends that train a method on a cluster, and what all of them need. README.md shows how a job is started.

The modules `slime` (with vime), `verl`, `checks`, `job`, `records` and `rollouts` are public as a whole.
"""

__all__ = ["checks", "job", "records", "rollouts", "slime", "verl"]
