"""This module turns a Trajectory into the record that evaluators log, with decoded texts:

    {"stage", "step", "task_id", "question", "answers": [...], "reward": float | null, "status",
     "turns": [{"role", "trained", "prompt", "completion", "finish_reason", "tokens"}],
     "metrics": {...}, "failure", "log": {...}}        and "variant", "data", "seed", and more (benchmarks/harness)

What training sampled is recorded token for token instead (core/runs/record.py).
"""

from __future__ import annotations

import json
from typing import Any

from core.runs.files import Record
from core.types import Task, Trajectory


def trajectory_record(stage: str, step: int, task: Task, trajectory: Trajectory, tokenizer: Any) -> Record:
    """Return a trajectory as a record. Its texts are for showing only."""
    return {
        "stage": stage,
        "step": step,
        "task_id": task.task_id,
        "question": task.question,
        "answers": list(task.answers),
        "reward": trajectory.reward,
        "status": trajectory.status,
        "turns": [
            {
                "role": turn.role,
                "trained": turn.trained,
                "prompt": tokenizer.decode(turn.prompt_ids),
                "completion": tokenizer.decode(turn.completion.token_ids),
                "finish_reason": turn.completion.finish_reason,
                "tokens": len(turn.completion.token_ids),
            }
            for turn in trajectory.turns
        ],
        "metrics": dict(trajectory.metrics),
        "failure": trajectory.failure,
        "log": json.loads(json.dumps(dict(trajectory.log), default=str)),
    }
