"""Makes verl's rows of a rollout, and the advantage and the weight of each row of a batch.

verl takes one prompt and one response for a row. It would compute advantages and averages over rows; here they are
those of core/rollout/rows.py and core/algorithms/aggregate.py, over rollouts. Nothing here imports verl.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from core.algorithms.aggregate import row_scales
from core.config import AlgorithmSection
from core.rollout.rows import make_rows, turn_advantages
from core.types import Group, Row, RowUnit, Trajectory


@dataclass(frozen=True)
class VerlRow:
    """Holds one row as verl takes it: a mask and a log-prob for each token of the response."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    logprobs: list[float]


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
    start = len(row.tokens) - len(row.loss_mask)  # the response begins here
    cut = min(start, prompt_length)
    moved = start - cut
    return VerlRow(
        list(row.tokens[:cut]),
        list(row.tokens[cut:]),
        [0] * moved + list(row.loss_mask),
        [0.0] * moved + list(row.logprobs),
    )


class BatchRow(NamedTuple):
    """Describes a row of a batch. `notes` are those of its rollout (core/backends/rollouts.py), with its `reward`."""

    uid: str
    """Names the prompt, whose rollouts are a group."""
    session: str
    """Names the rollout in its group."""
    trained_tokens: int
    notes: Mapping[str, Any]


class Credit(NamedTuple):
    advantage: float
    scale: float
    """Weighs the loss of each trained token of the row: `row_scales` of its optimizer step."""


class _SizedRow(NamedTuple):
    rollout_id: int
    trained_tokens: int


def credit_rows(
    steps: Sequence[Sequence[BatchRow]],
    algorithm: AlgorithmSection,
    regrade: Callable[[str, Group], Sequence[Trajectory]] | None = None,
) -> list[list[Credit]]:
    """Return the credit of each row of each optimizer step of a batch.

    A rollout counts once in its group, and failed ones leave it. The rows of a rollout are in one step, those of a
    group maybe in several. `regrade` takes the uid of a group and its trajectories, which hold no turns, and returns
    them with new rewards.
    """
    groups: dict[str, dict[str, BatchRow]] = {}
    for row in (row for step in steps for row in step):
        groups.setdefault(row.uid, {}).setdefault(row.session, row)
    advantages: dict[tuple[str, str], float | None] = {}
    options = algorithm.row_options()
    del options["rows"]
    for uid, rollouts in groups.items():
        notes = [row.notes for row in rollouts.values()]
        group: Sequence[Trajectory] = [read_notes(note, uid) for note in notes]
        if regrade is not None:
            group = regrade(uid, group)
        sizes = [note["turns"] for note in notes], [note["trained_tokens"] for note in notes]
        values = turn_advantages(group, *sizes, **options)
        advantages.update(zip(((uid, session) for session in rollouts), values, strict=True))
    numbers = {rollout: number for number, rollout in enumerate(advantages)}
    credits = []
    for step in steps:
        values = [advantages[row.uid, row.session] for row in step]
        sized = [
            _SizedRow(numbers[row.uid, row.session], 0 if value is None else row.trained_tokens)
            for row, value in zip(step, values, strict=True)
        ]
        scales = row_scales(sized, algorithm.loss_agg, algorithm.max_response_length or 1)
        credits.append([Credit(value or 0.0, scale) for value, scale in zip(values, scales, strict=True)])
    return credits


def read_notes(notes: Mapping[str, Any], task_id: str) -> Trajectory:
    """Read the Trajectory that `notes` tell of, without its turns."""
    return Trajectory(
        task_id,
        (),
        notes["status"],
        notes["reward"],
        notes["failure"],
        metrics=notes["metrics"],
        log={"error": notes["error"]},
    )


def split_rollouts(rollouts: Sequence[str], count: int) -> list[list[int]]:
    """Cut a batch into at most `count` optimizer steps of as many rollouts: the places of the rows of each step.

    `rollouts` names the rollout of each row, all rows of which go into the same step.
    """
    order = list(dict.fromkeys(rollouts))
    count = min(count, len(order))
    step_of = {name: place * count // len(order) for place, name in enumerate(order)}
    return [[place for place, name in enumerate(rollouts) if step_of[name] == step] for step in range(count)]
