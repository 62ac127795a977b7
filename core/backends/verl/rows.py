"""Makes verl's rows of a rollout, and the advantage and the weight of each row of a batch.

verl takes one prompt and one response for a row. It would compute advantages and averages over rows; here they are
those of core/rollout/rows.py and core/algorithms/aggregate.py, over rollouts. Nothing here imports verl.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from core.algorithms.advantages import whiten
from core.algorithms.aggregate import row_scales
from core.algorithms.coefficients import BATCH_ESTIMATORS
from core.backends.rollouts import NOTES, credit_rollouts, read_notes
from core.config import AlgorithmSection
from core.rollout.rows import make_rows
from core.runs.files import Record
from core.runs.record import TrainedRow, record_rollout
from core.types import Completion, Group, Row, RowUnit, Task, Trajectory, Turn

SCALES = "loss_scales"
"""Names the field of a row that holds its weight, once for each response token."""
RECORDED = [*"prompts responses response_mask rollout_log_probs old_log_probs advantages extra_fields".split(), SCALES]
"""Names the fields of a row that its record is made of."""


class VerlRow(NamedTuple):
    """Holds one row as verl takes it: a mask and a log-prob for each token of the response."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    response_logprobs: list[float]


def make_verl_rows(trajectory: Trajectory, unit: RowUnit, prompt_length: int) -> list[VerlRow]:
    """Make one row of each trained turn or segment, so the last one is trained, too: verl reads the advantage there.

    A rollout without a trained token becomes one masked row, which keeps its place in its group.
    """
    rows = [] if trajectory.status == "failed" else make_rows(trajectory.turns, unit)
    return [fit_prompt(row, prompt_length) for row in rows] or [VerlRow([0], [0], [0], [0.0])]


def fit_prompt(row: Row, prompt_length: int) -> VerlRow:
    """Write a row with at most `prompt_length` tokens of prompt; the rest of it begins the response, masked.

    verl cuts or refuses longer prompts, and what is cut is missing from the context of the trained tokens.
    """
    tokens, start = list(row.tokens), len(row.tokens) - len(row.loss_mask)  # the response begins here
    cut = min(start, prompt_length)
    moved = start - cut
    return VerlRow(tokens[:cut], tokens[cut:], [0] * moved + [*row.loss_mask], [0.0] * moved + [*row.logprobs])


class BatchRow(NamedTuple):
    """Describes a row of a batch. `notes` are those of its rollout (core/backends/rollouts.py), with its `reward`."""

    key: str
    """Holds verl's name of the row: `{uid}_{session}_{index}`."""
    trained_tokens: int
    notes: Mapping[str, Any]

    @property
    def rollout_id(self) -> str:
        return name_rollout(self.key)


class Credit(NamedTuple):
    advantage: float
    scale: float
    """Weighs the loss of each trained token of the row: `row_scales` of its optimizer step."""


def credit_rows(
    steps: Sequence[Sequence[BatchRow]],
    algorithm: AlgorithmSection,
    regrade: Callable[[str, Group], Sequence[Trajectory]] | None = None,
) -> dict[str, Credit]:
    """Return the credit of each row that counts, by its key; `steps` are the rows of each optimizer step.

    A rollout counts once in its group, and failed ones leave it. The rows of a rollout are in one step, those of a
    group maybe in several. `regrade` takes the uid of a group and its trajectories, which hold no turns, and returns
    them with new rewards.
    """
    groups: defaultdict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for row in (row for step in steps for row in step):
        groups[row.rollout_id.rpartition("_")[0]][row.rollout_id] = row.notes
    advantages: dict[str, float] = {}
    trained_tokens: dict[str, int] = {}
    for uid, rollouts in groups.items():
        group: Sequence[Trajectory] = [read_rollout(notes) for notes in rollouts.values()]
        if regrade is not None:
            group = regrade(uid, group)
        values = zip(rollouts, credit_rollouts(group, list(rollouts.values()), algorithm), strict=True)
        advantages.update((rollout, value) for rollout, value in values if value is not None)
        trained_tokens.update((rollout, notes["trained_tokens"]) for rollout, notes in rollouts.items())
    if algorithm.adv_estimator in BATCH_ESTIMATORS:
        white = whiten(list(advantages.values()), [trained_tokens[rollout] for rollout in advantages])
        advantages = dict(zip(advantages, white, strict=True))
    credits: dict[str, Credit] = {}
    for step in steps:
        trained = [row for row in step if row.rollout_id in advantages]
        scales = row_scales(trained, algorithm.loss_agg, algorithm.max_response_length or 1)
        credits.update(
            (row.key, Credit(advantages[row.rollout_id], scale)) for row, scale in zip(trained, scales, strict=True)
        )
    return credits


def read_rollout(notes: Mapping[str, Any], task_id: str = "", turns: Sequence[Turn] = ()) -> Trajectory:
    """Read the Trajectory of a rollout, maybe without its turns."""
    return read_notes(task_id, notes, notes["reward"], turns)


def name_rollout(key: str) -> str:
    """Return the name of a row's rollout: `{uid}_{session}`."""
    return key.rpartition("_")[0]


def split_rollouts(keys: Sequence[str], count: int) -> list[list[str]]:
    """Cut the rows of a batch into at most `count` optimizer steps of as many rollouts, whose rows stay together."""
    order = list(dict.fromkeys(map(name_rollout, keys)))
    count = min(count, len(order))
    step_of = {name: place * count // len(order) for place, name in enumerate(order)}
    return [[key for key in keys if step_of[name_rollout(key)] == step] for step in range(count)]


def record_rows(step: int, group: int, task: Task, rows: Sequence[Mapping[str, Any]]) -> Record:
    """Return a rollout of a step as a line of the record: a turn of each run of trained tokens of its rows.

    The rows hold the trained turns alone: not their roles, why each ended, and the calls of tools.
    """
    turns: list[Turn] = []
    trained = []
    for row in rows:
        prompt, response, mask, logprobs = (tuple(row[name].tolist()) for name in RECORDED[:4])
        first, version = len(turns), str(row["extra_fields"]["max_global_steps"])
        for is_trained, run in groupby(range(len(mask)), mask.__getitem__):
            if is_trained:
                places = list(run)
                sampled = slice(places[0], places[-1] + 1)
                done = Completion(response[sampled], logprobs[sampled], "stop", version)
                turns.append(Turn("policy", (*prompt, *response[: places[0]]), done, True))
        if own := tuple(range(first, len(turns))):
            advantage = max(row["advantages"].tolist(), key=abs)  # 0 where the mask is
            whole = Row((*prompt, *response), mask, logprobs, advantage, 0, own)
            trained.append(TrainedRow(whole, row["old_log_probs"].tolist(), max(row[SCALES].tolist()) or None))
    trajectory = read_rollout(rows[0]["extra_fields"][NOTES], task.task_id, turns)
    return record_rollout("train", step, group, task, trajectory, trained)
