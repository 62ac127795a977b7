"""This module reads what slime writes with `--save-debug-rollout-data PATH_{rollout_id}.pt` as recorded rollouts.

A Sample of our hooks (core/backends/slime/samples.py) carries its turns. Any other Sample is one row: its turns are the
runs of response tokens that are trained or have a log-prob. slime writes the log-prob 0 for tokens that were not
sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from core.runs.files import Record
from core.runs.record import VERSION, RecordedRollout, describe_row

NOTES = "agentic"
"""Names what our hooks tell of a rollout in its metadata (core/backends/rollouts.py)."""

STATUS = {"completed": "completed", "truncated": "truncated"}
"""Maps slime's status to ours; any other one is a failure of that name."""


def read_samples(dump: Mapping[str, Any], path: Path) -> Iterator[RecordedRollout]:
    """Yield the rollouts of a loaded dump.

    Raises:
        ValueError: it is no such dump, or the parts of a Sample do not fit together; the message names it.
    """
    try:
        samples, number = dump["samples"], int(dump["rollout_id"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"{path} is no dump of slime's --save-debug-rollout-data, and no batch of TRL or verl ({error!r})"
        ) from error
    stage = "eval" if "eval_" in path.stem else "train"
    for place, sample in enumerate(samples):
        try:
            turns, rows = _read_turns(sample)
            yield RecordedRollout.model_validate(
                {**_read_facts(sample), "stage": stage, "step": number, "turns": turns, "rows": rows}
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path}: sample {place}: {error}") from error


def _read_facts(sample: Record) -> Record:
    """Return what the record knows of a whole rollout."""
    metadata, status, reward = sample.get("metadata") or {}, sample["status"], sample.get("reward")
    notes = metadata.get(NOTES) or {}  # of our hooks
    answers = metadata.get("answers") if notes else None
    prompt = sample.get("prompt", "")
    if isinstance(prompt, list):
        prompt = "\n".join(str(message.get("content", "")) for message in prompt)
    return {
        "version": VERSION,
        "group": sample.get("group_index") or 0,
        "task_id": str(metadata.get("task_id", sample.get("group_index"))),
        "question": str(metadata.get("question", prompt)),
        "answers": list(map(str, answers if isinstance(answers, list) else [sample.get("label") or ""])),
        "status": STATUS.get(status, "failed"),
        "failure": None if status in STATUS else notes.get("failure") or status,
        "metrics": notes.get("metrics") or {},
        "log": {"error": notes["error"]} if notes.get("error") else {},
        "reward": next(iter(reward.values()), None) if isinstance(reward, dict) else reward,
    }


def _read_turns(sample: Record) -> tuple[list[Record], list[Any]]:
    """Return the turns of a Sample, and the row that its own token fields make."""
    tokens, length = list(sample["tokens"]), sample["response_length"]
    mask = sample.get("loss_mask")
    mask = [1] * length if mask is None else list(mask)
    logprobs = sample.get("rollout_log_probs")
    logprobs = [None] * length if logprobs is None else list(logprobs)
    for name, values in (("loss_mask", mask), ("rollout_log_probs", logprobs)):
        if len(values) != length:
            raise ValueError(f"{name} has {len(values)} entries for a response of {length} tokens")
    ours = (sample.get("train_metadata") or {}).get("turns")
    if ours is None:
        turns = split_response(tokens, mask, logprobs, sample.get("weight_versions") or ())
    else:
        turns = [_convert_turn(turn) for turn in ours]
    if not turns or sample.get("remove_sample"):
        return turns, []  # what slime is told to leave out has no row
    row = describe_row(tokens, mask, logprobs, range(len(turns)), joined=ours is not None)
    return turns, [row.model_dump()]


def _convert_turn(turn: Record) -> Record:
    completion = turn["completion"]
    return {
        "role": turn["role"],
        "trained": turn["trained"],
        "prompt": list(turn["prompt_ids"]),
        "sampled": list(completion["token_ids"]),
        "logprobs": list(completion["logprobs"]),
        "weight_version": completion["weight_version"],
        "earlier_versions": completion.get("earlier_versions", ()),
        "finish_reason": completion["finish_reason"],
    }


def split_response(
    tokens: Sequence[int], mask: Sequence[int], logprobs: Sequence[float | None], versions: Sequence[object] = ()
) -> list[Record]:
    """Make a turn of each run of sampled tokens; its prompt is all that comes before it.

    `mask` and `logprobs` have one entry for each token of the response, with which `tokens` end. A token was sampled if
    it is trained or has a log-prob other than 0. `versions` are the weights of each turn, if known.
    """
    versions = versions or ["?"]
    turns: list[Record] = []
    start = len(tokens) - len(mask)  # of the run, among the tokens
    done = 0  # the tokens up to the end of the turn before
    for was_sampled, run in groupby(bool(trained or logprob) for trained, logprob in zip(mask, logprobs, strict=True)):
        end = start + sum(1 for _ in run)
        if was_sampled:
            # The entries of mask and log-probs that belong to the run.
            first, last = start - len(tokens) + len(mask), end - len(tokens) + len(mask)
            turns.append(
                {
                    "role": "policy",
                    "trained": any(mask[first:last]),
                    "base": (len(turns) - 1, done) if turns else None,
                    "prompt": tokens[done:start],
                    "sampled": tokens[start:end],
                    "logprobs": list(logprobs[first:last]),
                    "weight_version": str(versions[min(len(turns), len(versions) - 1)]),
                    "finish_reason": "stop",
                }
            )
            done = end
        start = end
    return turns
