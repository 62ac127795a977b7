"""Defines what a run leaves: its folder, metrics, health, versions, trackers, evaluation results and rollouts.

It imports nothing of `core.report`, which shows a run to a reader. The modules named in `__all__` are public as a
whole.
"""

__all__ = ["evaluation", "files", "health", "inputs", "progress", "record", "run_folder", "trackers"]
