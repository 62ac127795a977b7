"""This module defines the record of rollouts, version 2: each sampled token, its log-prob, and how it was trained.

`seed-<n>/rollouts.jsonl.gz` has one JSON object a line for each rollout of a recorded step, in the fields of
`RecordedRollout`; `zcat` shows it. `evaluation/<name>.jsonl.gz` has one for each sample of an evaluation, and its first
line says in `cell` what was evaluated. The lines of one step, and each sample, are one gzip member, so a killed process
tears at most the last one, and `RolloutLog` cuts that off. A prompt that begins like an earlier turn refers to that
turn, so that a long conversation is not written again and again.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from core.runs.files import Record, append_batch, jsonable, make_folder, read_batches, sync, truncate
from core.types import POLICY, Advantage, Completion, FinishReason, Row, Status, Task, Trajectory, Turn

logger = logging.getLogger(__name__)

VERSION = 2
LAST_TURNS = 4
"""Bounds how far back a prompt looks for a turn that begins like it."""
LOGGED_CALLS = ("calls", "steps")
"""Names the fields of a rollout's log that list calls of tools and experts, as mappings."""
CALL_NAMES = ("tool", "alias", "name")
"""Names the fields that may name the tool of such a call."""
OWN_FIELDS = {"reward": None, "state": None, "advantage": None, "policy": POLICY}
"""Maps what a method may say of a turn to what most turns have, which is not written."""

Count = Annotated[int, Field(ge=0)]
TokenBytes = Callable[[Sequence[int]], Sequence[bytes]]
"""Returns the bytes that each id stands for (`core.text.tokenizer.token_bytes`)."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class RecordedTurn(_Part):
    """One call. `base` = (turn, length): the prompt is the first `length` ids of that earlier turn, then `prompt`."""

    role: str
    trained: bool
    base: tuple[Count, Count] | None = None
    prompt: list[int]
    sampled: list[int]
    logprobs: list[float | None]
    """Holds the engine's log-prob of each sampled id, null where it was not finite."""
    trainer_logprobs: list[float | None] | None = None
    """Holds the trainer's log-probs under the weights before the step; rows that the step skipped have none."""
    weight_version: str
    earlier_versions: list[tuple[str, Count]] = []
    """Lists which weights sampled the first tokens, and how many, if the weights changed meanwhile."""
    finish_reason: FinishReason
    seconds: tuple[float, float] | None = None
    """Holds when the call began and ended, in seconds since the rollout began; older records have none."""
    reward: float | None = None
    state: str | None = None
    advantage: Advantage | None = None
    """Holds what the method itself said of the turn, as `Turn.advantage`."""
    policy: str = POLICY
    trained_advantage: Advantage | None = None
    """Holds what the turn was trained with, where the turns of the rollout differ."""

    @property
    def versions(self) -> list[str]:
        """Return the weights that sampled this turn, in order."""
        return [*(version for version, _ in self.earlier_versions), self.weight_version]


class RecordedRow(_Part):
    """One row as it was trained, to compare with the turns that it was made of."""

    turns: list[Count]
    length: Count
    """Counts the row's tokens."""
    trained: list[tuple[Count, Count]]
    """Lists where the loss mask is 1: [start, end) among the row's tokens."""
    ids_crc32: int
    logprobs_crc32: int
    loss_scale: float | None = None
    """Weighs each trained token of the row in the loss of its optimizer step; rows without a gradient have none."""
    joined: bool = False
    """Says that the row leaves out what is between its turns: the first prompt, then all that was sampled."""


class RecordedRollout(_Part):
    """One rollout: a line of the record.

    `group` numbers the groups of a step; in a group dropped for want of a signal no rollout has rows. `advantage` is
    that of all its rows, and null where its turns have different ones (`trained_advantage`). `pieces` has the text of
    every id that is new in this file; an id that holds part of a UTF-8 character is stored as bytes. The first line of
    an evaluation has `cell`: variant, data, length, seed, and the conditions of its samples. `read_rollouts` completes
    both for all lines. `sample` holds what an evaluation knows of a rollout beside: which repeat it is, its session and
    clocks, and what its grader said.
    """

    version: Literal[2]
    stage: Literal["train", "eval"]
    step: Count
    group: Count
    task_id: str
    question: str
    answers: list[str]
    status: Status
    failure: str | None = None
    reward: float | None
    advantage: float | None = None
    turns: list[RecordedTurn]
    rows: list[RecordedRow] = []
    metrics: dict[str, Any] = {}
    log: dict[str, Any] = {}
    cell: dict[str, Any] = {}
    sample: dict[str, Any] = {}
    pieces: dict[int, str | list[int]] = {}

    @model_validator(mode="after")
    def _parts_fit_together(self) -> Self:
        lengths: list[int] = []
        for place, turn in enumerate(self.turns):
            for name in ("logprobs", "trainer_logprobs"):
                values = getattr(turn, name)
                if values is not None and len(values) != len(turn.sampled):
                    raise ValueError(f"turns.{place}.{name} has {len(values)} entries for {len(turn.sampled)} tokens")
            earlier, shared = turn.base or (0, 0)
            if turn.base and (earlier >= place or shared > lengths[earlier]):
                raise ValueError(f"turns.{place}.base is {turn.base}, and no earlier turn has so many ids")
            lengths.append(shared + len(turn.prompt) + len(turn.sampled))
        if any(place >= len(self.turns) for row in self.rows for place in row.turns):
            raise ValueError(f"rows name a turn that is not among the {len(self.turns)}")
        return self

    @cached_property
    def prompts(self) -> list[list[int]]:
        """Return the whole prompt of each turn."""
        prompts: list[list[int]] = []
        for turn in self.turns:
            earlier, shared = turn.base or (0, 0)
            begin = [*prompts[earlier], *self.turns[earlier].sampled][:shared] if shared else []
            prompts.append(begin + turn.prompt)
        return prompts

    @property
    def source(self) -> str:
        """Return the variant that was evaluated, or the stage of the run."""
        return str(self.cell.get("variant") or self.stage)

    def trajectory(self) -> Trajectory:
        """Return the rollout as the method returned it, to the digits that float32 has."""
        turns = []
        for prompt, turn in zip(self.prompts, self.turns, strict=True):
            logprobs = tuple(math.nan if x is None else x for x in turn.logprobs)
            earlier = tuple(turn.earlier_versions)
            completion = Completion(
                tuple(turn.sampled), logprobs, turn.finish_reason, turn.weight_version, earlier_versions=earlier
            )
            own = turn.reward, turn.state, turn.advantage, turn.policy
            turns.append(Turn(turn.role, tuple(prompt), completion, turn.trained, turn.seconds, *own))
        return Trajectory(self.task_id, tuple(turns), self.status, self.reward, self.failure, self.metrics, self.log)

    @property
    def calls(self) -> list[tuple[str, Record]]:
        """Return the calls of tools and experts in the log, in order: the name of the tool, and the call's fields."""
        logged = (call for field in LOGGED_CALLS for call in self.log.get(field) or () if isinstance(call, dict))
        return [(next((str(call[name]) for name in CALL_NAMES if call.get(name)), "?"), call) for call in logged]

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids; one without a known piece shows its number."""
        return b"".join(map(self.piece, ids)).decode("utf-8", "replace")

    def piece(self, token: int) -> bytes:
        """Return the bytes of one id."""
        return _as_bytes(self.pieces.get(token, f"⟨{token}⟩"))


class TrainedRow(NamedTuple):
    """Holds a row of a rollout, and what the trainer told of it, if it was trained."""

    row: Row
    logprobs: Sequence[float] | None = None
    """Holds the trainer's log-prob of each token of the response."""
    loss_scale: float | None = None


def record_rollout(
    stage: Literal["train", "eval"],
    step: int,
    group: int,
    task: Task,
    trajectory: Trajectory,
    rows: Sequence[TrainedRow] = (),
) -> Record:
    """Return a rollout as a line of the record, without its `pieces`."""
    turns: list[Record] = []
    whole: list[tuple[int, ...]] = []
    for turn in trajectory.turns:
        completion = turn.completion
        base = _find_base(turn.prompt_ids, whole)
        turns.append(
            {
                "role": turn.role,
                "trained": turn.trained,
                **({"base": base} if base[1] else {}),
                "prompt": turn.prompt_ids[base[1] :],
                "sampled": completion.token_ids,
                "logprobs": _round_all(completion.logprobs),
                "weight_version": completion.weight_version,
                **({"earlier_versions": completion.earlier_versions} if completion.earlier_versions else {}),
                "finish_reason": completion.finish_reason,
                **({"seconds": [round(x, 4) for x in turn.seconds]} if turn.seconds else {}),
                **{
                    name: jsonable(getattr(turn, name))
                    for name, usual in OWN_FIELDS.items()
                    if getattr(turn, name) != usual
                },
            }
        )
        whole.append((*turn.prompt_ids, *completion.token_ids))
    for row, logprobs, _ in rows:
        if logprobs is not None:
            # The trained tokens of a row are the completions of its turns, one after the other.
            trained = iter(_round_all([x for x, mask in zip(logprobs, row.loss_mask, strict=True) if mask]))
            for place in row.turns:
                turns[place]["trainer_logprobs"] = [next(trained, None) for _ in turns[place]["sampled"]]
    advantage, by_turn = split_advantages([row for row, _, _ in rows], [len(turn["sampled"]) for turn in turns])
    for place, value in by_turn.items():
        turns[place]["trained_advantage"] = jsonable(value)
    return {
        "version": VERSION,
        "stage": stage,
        "step": step,
        "group": group,
        "task_id": task.task_id,
        "question": task.question,
        "answers": list(task.answers),
        "status": trajectory.status,
        "failure": trajectory.failure,
        "reward": jsonable(trajectory.reward),
        "advantage": jsonable(advantage),
        "turns": turns,
        "rows": [
            describe_row(row.tokens, row.loss_mask, row.logprobs, row.turns)
            .model_copy(update={"loss_scale": None if scale is None else float(f"{scale:.9g}")})
            .model_dump(exclude_defaults=True)
            for row, _, scale in rows
        ],
        "metrics": jsonable(trajectory.metrics),
        "log": jsonable(json.loads(json.dumps(dict(trajectory.log), default=str))),
    }


def split_advantages(rows: Sequence[Row], sampled: Sequence[int]) -> tuple[float | None, dict[int, Advantage]]:
    """Return the advantage of all rows of a rollout, if they have one, or else that of each turn, by its place.

    `sampled` counts the tokens that each turn sampled.
    """
    if not rows:
        return None, {}
    first = rows[0].advantage
    if not isinstance(first, tuple) and all(row.advantage is first or row.advantage == first for row in rows):
        return first, {}
    by_turn: dict[int, Advantage] = {}
    for row in rows:
        # The trained tokens of a row are the completions of its turns, one after the other.
        trained = (a for a, mask in zip(row.advantages, row.loss_mask, strict=True) if mask)
        for place in row.turns:
            values = tuple(islice(trained, sampled[place]))
            by_turn[place] = values[0] if len(set(values)) == 1 else values
    return None, by_turn


def describe_row(
    tokens: Sequence[int],
    loss_mask: Sequence[int],
    logprobs: Sequence[float | None],
    turns: Sequence[int],
    joined: bool = False,
) -> RecordedRow:
    """Describe a row; mask and log-probs have one entry for each token of the response, with which the row ends."""
    spans, place = [], len(tokens) - len(loss_mask)
    # One number for each token of the row. Adding 0 makes -0.0, which has other bytes, 0.0.
    numbers = [0.0] * place + [math.nan if x is None else x + 0.0 for x in _round_all(logprobs)]
    for mask, run in groupby(loss_mask):
        length = sum(1 for _ in run)
        if mask:
            spans.append((place, place + length))
        place += length
    return RecordedRow(
        turns=list(turns),
        length=len(tokens),
        trained=spans,
        ids_crc32=zlib.crc32(array("q", tokens).tobytes()),
        logprobs_crc32=zlib.crc32(array("f", numbers).tobytes()),
        joined=joined,
    )


class RolloutLog:
    """Appends recorded rollouts to a file, the rollouts of one step at a time; its first line has the fields `head`."""

    def __init__(self, path: Path, token_bytes: TokenBytes, head: Mapping[str, Any] | None = None):
        self.path = path
        self._token_bytes = token_bytes
        self._head = head or {}
        self._known: set[int] = set()
        make_folder(path.parent)
        self.rewind(math.inf)

    def append(self, rollouts: Sequence[Record]) -> None:
        """Write the rollouts of one step, and the pieces of the ids that the file has not seen yet."""
        used = {token for record in rollouts for turn in record["turns"] for token in turn["prompt"]}
        used.update(token for record in rollouts for turn in record["turns"] for token in turn["sampled"])
        new = sorted(used - self._known)
        pieces = dict(zip(new, map(_as_piece, self._token_bytes(new)), strict=True))
        head = {} if self.path.exists() and self.path.stat().st_size else self._head
        append_batch(self.path, [{**head, **rollouts[0], "pieces": pieces}, *rollouts[1:]])
        self._known.update(new)

    def sync(self) -> None:
        """Wait until all rollouts are on the disk, where a loss of power leaves them."""
        if self.path.exists():
            sync(self.path)
            sync(self.path.parent)

    def keep(self, wanted: Callable[[Record], bool]) -> int:
        """Delete the rollouts that are not `wanted`, in one step, and return how many."""
        if all(wanted(record) for _, records in read_batches(self.path) for record in records):
            return 0
        pieces: dict[int, str | list[int]] = {}
        temporary = self.path.with_name(f".{self.path.name}.kept")
        temporary.unlink(missing_ok=True)
        kept = RolloutLog(temporary, lambda ids: [_as_bytes(pieces[token]) for token in ids], self._head)
        deleted = 0
        for _, records in read_batches(self.path):
            pieces.update((int(token), piece) for token, piece in records[0].pop("pieces", {}).items())
            chosen = [record for record in records if wanted(record)]
            deleted += len(records) - len(chosen)
            if chosen:
                kept.append(chosen)
        temporary.touch()
        kept.sync()
        os.replace(temporary, self.path)
        sync(self.path.parent)
        self._known = kept._known
        return deleted

    def rewind(self, step: float) -> None:
        """Delete the rollouts after `step`, and what a crash tore. What a loss of power garbled is kept beside."""
        self._known.clear()
        kept = 0
        try:
            for end, records in read_batches(self.path):
                if records[0]["step"] > step:
                    break
                kept = end
                self._known.update(int(token) for token in records[0].get("pieces", ()))
        except ValueError as error:
            broken = self.path.with_name(f"{self.path.name}.broken")
            shutil.copyfile(self.path, broken)
            logger.warning("%s. The record goes on from there; the file as it was is %s", error, broken)
        truncate(self.path, kept)


def read_rollouts(path: Path) -> Iterator[RecordedRollout]:
    """Yield the rollouts of a record, none when there is no file. What a crash tore is left out.

    Raises:
        ValueError: the file is broken, or a line does not follow the schema; the message names it.
    """
    pieces: dict[int, str | list[int]] = {}
    cell: dict[str, Any] = {}
    number = 0
    for _, records in read_batches(path):
        for record in records:
            number += 1
            try:
                rollout = RecordedRollout.model_validate(record)
            except ValidationError as error:
                problem = error.errors()[0]
                field = ".".join(map(str, problem["loc"])) or "the rollout"
                raise ValueError(f"{path}:{number}: {field}: {problem['msg']}; delete the file, or repair it") from None
            pieces.update(rollout.pieces)
            cell = cell or rollout.cell
            yield rollout.model_copy(update={"pieces": pieces, "cell": cell})


def _find_base(prompt: tuple[int, ...], whole: Sequence[tuple[int, ...]]) -> tuple[int, int]:
    """Return which of the last turns (all their ids are in `whole`) begins most like a prompt, and for how many ids."""
    best = (0, 0)
    for place in range(max(0, len(whole) - LAST_TURNS), len(whole)):
        shared = _count_shared(prompt, whole[place])
        best = max(best, (place, shared), key=lambda base: base[1])
    return best


def _count_shared(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    """Count the ids with which both begin, by bisection: slices compare much faster than ids one by one."""
    low, high = 0, min(len(a), len(b))
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _round_all(values: Sequence[float | None]) -> list[float | None]:
    """Round to the nine digits that tell any two float32 apart; what is not finite becomes None."""
    return [float(f"{x:.9g}") if x is not None and math.isfinite(x) else None for x in values]


def _as_piece(content: bytes) -> str | list[int]:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return list(content)


def _as_bytes(piece: str | list[int]) -> bytes:
    return piece.encode() if isinstance(piece, str) else bytes(piece)
