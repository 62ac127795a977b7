"""Backends that train a method on a cluster, and what all of them need. README.md shows how a job is started.

The modules `slime` (with vime), `verl`, `embedded_only`, `checks`, `ray_cluster`, `rollouts` and `tasks` are public as
a whole.
"""

__all__ = ["checks", "embedded_only", "ray_cluster", "rollouts", "slime", "tasks", "verl"]
