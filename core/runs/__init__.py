"""This package defines what a run is: its folder, metrics, versions, trackers, evaluation results and rollouts.

It imports nothing of `core.report`, which shows a run to a reader.
"""
