"""Records what a step of verl trained on, as the embedded backend does: `tokentrue inspect` reads both alike.

verl's rows hold the trained turns alone. Their roles, why each ended, and the calls of tools are not among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

from core.backends.verl.rows import read_notes
from core.runs.files import Record
from core.runs.record import TrainedRow, record_rollout
from core.types import Completion, Row, Task, Turn


def record_rows(
    step: int, group: int, task: Task, notes: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Record:
    """Return a rollout of a step as a line of the record: a turn of each run of trained tokens of its rows.

    A row holds verl's fields as lists, its `scale` and its `version` of the weights.
    """
    turns: list[Turn] = []
    trained = []
    for row in rows:
        tokens, logprobs = (*row["prompts"], *row["responses"]), tuple(row["rollout_log_probs"])
        first, start = len(turns), len(row["prompts"])
        place = start
        for is_trained, run in groupby(row["response_mask"]):
            begin, place = place, place + len(list(run))
            if is_trained:
                sampled = tokens[begin:place], logprobs[begin - start : place - start]
                turns.append(Turn("policy", tokens[:begin], Completion(*sampled, "stop", row["version"]), True))
        if places := tuple(range(first, len(turns))):
            advantage = max(row["advantages"], key=abs)  # 0 where the mask is
            whole = Row(tokens, tuple(row["response_mask"]), logprobs, advantage, 0, places)
            trained.append(TrainedRow(whole, row["old_log_probs"], row["scale"] or None))
    trajectory = replace(read_notes(notes, task.task_id), turns=tuple(turns))
    return record_rollout("train", step, group, task, trajectory, trained)
