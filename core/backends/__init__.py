"""Backends that train a method on a cluster, and what all of them need. README.md shows how a job is started.

The modules `slime` (with vime), `verl`, `embedded_only`, `checks`, `job`, `ray_cluster`, `records`, `rollouts` and
`tasks` are public as a whole.
"""

__all__ = ["checks", "embedded_only", "job", "ray_cluster", "records", "rollouts", "slime", "tasks", "verl"]
