"""Runs where OpenEnv and Harbor are: reads lines with their own validators, or writes one of each with their models.

python validate.py read training-trace.jsonl atif.jsonl
python validate.py write FILE.jsonl
python validate.py tasks FOLDER...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from harbor.models.trajectories import Agent, Metrics, Step, Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
from openenv.core.harness.training import TrainingTrace


def read(traces: Path, trajectories: Path) -> None:
    """Raise an error for the first line that a validator refuses; print how many there were, and their ids."""
    counts = [0, 0, 0, 0]
    for line in traces.open():
        trace = TrainingTrace.model_validate_json(json.dumps(json.loads(line)["training_trace"]))
        counts[0] += 1
        counts[1] += sum(len(turn.completion_token_ids) for turn in trace.turns)
    for line in trajectories.open():
        validator = TrajectoryValidator()
        assert validator.validate(line), validator.errors
        trajectory = Trajectory.model_validate_json(line)
        counts[2] += 1
        counts[3] += sum(len(step.metrics.completion_token_ids) for step in trajectory.steps if step.metrics)
    print(json.dumps(counts))


def write(path: Path) -> None:
    tokens = {"prompt_token_ids": [5, 6], "completion_token_ids": [7, 8], "per_token_logps": [-0.5, -1.5]}
    trace = TrainingTrace.from_entries([{**tokens, "loss_mask": [0, 0, 1, 1], "metadata": {"node_id": "a"}}])
    metrics = Metrics(prompt_token_ids=[5, 6], completion_token_ids=[7, 8], logprobs=[-0.5, -1.5])
    step = Step(step_id=1, source="agent", message="hi", metrics=metrics)
    trajectory = Trajectory(session_id="s", agent=Agent(name="terminus-2", version="2"), steps=[step])
    path.write_text("".join(f"{line}\n" for line in (trace.model_dump_json(), trajectory.model_dump_json())))


def tasks(*folders: Path) -> None:
    """Print the names of Harbor's tasks in these folders. Raises an error for one that Harbor would not take."""
    import typing

    import typing_extensions

    typing.override = typing_extensions.override  # Python 3.11 has none
    from harbor.models.task.task import Task

    assert all(map(Task.is_valid_dir, folders))
    print(json.dumps([Task(folder).name for folder in folders]))


if __name__ == "__main__":
    {"read": read, "write": write, "tasks": tasks}[sys.argv[1]](*map(Path, sys.argv[2:]))
