"""Backends that train a method on a cluster, and what all of them need. README.md shows how a job is started.

The modules `slime` (with vime), `embedded_only`, `checks`, `ray_cluster` and `rollouts` are public as a whole.
"""

__all__ = ["checks", "embedded_only", "ray_cluster", "rollouts", "slime"]
