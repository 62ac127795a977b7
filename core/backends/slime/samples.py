"""Converts between slime's Sample and our Task and Trajectory, and writes tasks as the JSONL that slime reads.

A rollout is one container Sample. Its turns travel in `train_metadata`, and core/backends/slime/rows.py makes the
training rows from them. The Sample's own token fields only feed slime's metrics: they hold the first prompt and all
sampled tokens.

Nothing here imports slime: SlimeSample names the fields of its `slime.utils.types.Sample` that are used.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol

from core.backends import records
from core.backends.rollouts import ABORTED, NOTES, describe_rollout, read_notes
from core.data.files import task_to_record, write_records
from core.rollout.rows import make_rows
from core.types import Completion, RowUnit, Task, Trajectory, Turn


class SlimeSample(Protocol):
    """Names what the hooks use of slime's Sample. A group of n rollouts is n Samples of one `group_index`."""

    group_index: int | None
    index: int
    rollout_id: int | None
    """Names the rollout to the parts that it is fanned out into; a container has none."""
    session_id: str | None
    prompt: Any
    label: Any
    metadata: Any
    tokens: list[int]
    response: str
    response_length: int
    loss_mask: list[int] | None
    rollout_log_probs: list[float] | None
    reward: Any
    """Holds a number, or a mapping with the number under slime's --reward-key."""
    status: Any
    """Holds one of `Status`, slime's enumeration inside the class."""
    remove_sample: bool
    weight_versions: list[str]
    train_metadata: Any
    """Holds the turns of a container, as fill_sample writes them; None in a part of one."""

    Status: Any


_MASKED = Turn("policy", (0,), Completion((0,), (0.0,), "stop"), trained=False)


def to_record(task: Task) -> dict[str, Any]:
    """Make the record that slime reads for a task. It passes the metadata on, which are our own record.

    The prompt is a list of messages: slime takes no text for a model that also sees images, such as Qwen3.6.
    """
    prompt = [{"role": "user", "content": task.question}]
    return {"prompt": prompt, "label": next(iter(task.answers), ""), "metadata": task_to_record(task)}


def write_tasks(target: Path, tasks: Iterable[Task], source: Path) -> int:
    """Write the tasks of `source` and return their number."""
    return write_records(target, map(to_record, tasks), source)


def read_task(sample: SlimeSample, path: str, options: Mapping[str, Any] | None = None) -> Task:
    """Read the Task of a Sample of the file `path`, as core.backends.records.read_task."""
    metadata = sample.metadata
    if isinstance(metadata, dict):
        metadata = {name: value for name, value in metadata.items() if name != NOTES}
    number = sample.index if sample.group_index is None else sample.group_index
    return records.read_task(sample.prompt, sample.label, metadata, path, number, options)


def fill_sample(sample: SlimeSample, trajectory: Trajectory, reward_key: str | None, response: str = "") -> None:
    """Write a rollout into its container Sample, over whatever an earlier attempt left there.

    A failed rollout gets tokens that all of slime accepts: a prompt of one and a masked response of one, with reward 0.
    """
    turns, failed = trajectory.turns, trajectory.status == "failed"
    shown = (_MASKED,) if failed or not turns else turns
    sample.tokens = [*shown[0].prompt_ids, *(token for turn in shown for token in turn.completion.token_ids)]
    sample.loss_mask = [int(turn.trained) for turn in shown for _ in turn.completion.token_ids]
    sample.rollout_log_probs = [logprob for turn in shown for logprob in turn.completion.logprobs]
    sample.response, sample.response_length = response, len(sample.loss_mask)
    reward = 0.0 if failed or trajectory.reward is None else float(trajectory.reward)
    sample.reward = {reward_key: reward} if reward_key else reward
    sample.status = sample.Status(ABORTED if trajectory.failure == ABORTED else trajectory.status)
    sample.remove_sample = failed
    sample.weight_versions = [turn.completion.weight_version for turn in turns]
    sample.train_metadata = {"turns": [_turn_record(turn) for turn in turns]}
    metadata = sample.metadata if isinstance(sample.metadata, dict) else {}
    sample.metadata = {**metadata, NOTES: describe_rollout(trajectory)}
    if hasattr(sample, "prefix_cache_info"):
        sample.prefix_cache_info = type(sample.prefix_cache_info)()
        for turn in turns:
            cached = {"cached_tokens": turn.completion.cached_tokens or 0, "prompt_tokens": len(turn.prompt_ids)}
            sample.prefix_cache_info.add(cached)


def fan_out(sample: SlimeSample, rows: RowUnit) -> list[SlimeSample]:
    """Make one Sample for each trained turn or segment of a filled container; they share a `rollout_id`, as slime asks.

    A rollout without a trained turn stays one Sample, all masked, so that its reward still counts in its group.
    """
    turns = tuple(map(_read_turn, sample.train_metadata["turns"]))
    parts = []
    for row in make_rows(turns, rows):
        part = copy.copy(sample)
        part.tokens, part.loss_mask, part.rollout_log_probs = list(row.tokens), list(row.loss_mask), list(row.logprobs)
        part.response_length = len(row.loss_mask)
        part.weight_versions = [turns[place].completion.weight_version for place in row.turns]
        parts.append(part)
    if not parts:
        parts.append(copy.copy(sample))
        parts[0].loss_mask = [0] * sample.response_length
    for part in parts:
        part.rollout_id, part.train_metadata = sample.index, None
    return parts


def read_trajectory(sample: SlimeSample, reward_key: str | None) -> Trajectory:
    """Read the Trajectory of a filled container. One that slime or a filter removed has failed."""
    if sample.train_metadata is None:
        raise _name_foreign(sample)
    return replace(read_outcome(sample, reward_key), turns=tuple(map(_read_turn, sample.train_metadata["turns"])))


def read_outcome(sample: SlimeSample, reward_key: str | None) -> Trajectory:
    """Read the Trajectory of a Sample of `generate` without its turns, which a part of a container does not hold."""
    notes = sample.metadata.get(NOTES)
    if notes is None:
        raise _name_foreign(sample)
    if sample.remove_sample and notes["status"] != "failed":
        notes = {**notes, "status": "failed", "failure": notes["failure"] or "removed"}
    return read_notes(str(sample.group_index), notes, read_reward(sample, reward_key))


def _name_foreign(sample: SlimeSample) -> ValueError:
    return ValueError(
        f"sample {sample.index} was not made by this method's `generate`: "
        "give both --custom-generate-function-path and --custom-convert-samples-to-train-data-path"
    )


def read_reward(sample: SlimeSample, reward_key: str | None) -> float:
    """Return the reward of a Sample: the number itself, or the one under `reward_key`."""
    return float(sample.reward[reward_key] if reward_key else sample.reward)


def group_samples(samples: Iterable[SlimeSample]) -> list[list[SlimeSample]]:
    """Put the Samples of one prompt together, in order of first occurrence."""
    groups: dict[int | None, list[SlimeSample]] = {}
    for sample in samples:
        groups.setdefault(sample.group_index, []).append(sample)
    return list(groups.values())


def _turn_record(turn: Turn) -> dict[str, Any]:
    # Not dataclasses.asdict: it would copy every token by itself.
    completion = {field.name: getattr(turn.completion, field.name) for field in fields(Completion)}
    return {**{field.name: getattr(turn, field.name) for field in fields(Turn)}, "completion": completion}


def _read_turn(record: dict[str, Any]) -> Turn:
    return Turn(**{**record, "completion": Completion(**record["completion"])})
