"""This module opens any file of rollouts: our record, and those of slime, TRL, verl, OpenEnv and Harbor.

TRL writes no ids to the disk, and verl a pickle; docs/debugging.md has the lines that save a batch of padded tensors
with `torch.save`. The names of the tensors are the frameworks' own:

    TRL   what GRPOTrainer._generate_and_score_completions returns: prompt_ids, prompt_mask, completion_ids,
          completion_mask, and if known tool_mask, sampling_per_token_logps, old_per_token_logps, advantages
    verl  DataProto.batch: prompts, responses, attention_mask, response_mask, and if known input_ids,
          rollout_log_probs, old_log_probs, advantages, rm_scores or token_level_scores

Shapes are [B, P] for prompts, padded on the left, and [B, R] for responses, padded on the right. A row is one rollout
of one row; its turns are the runs of response tokens that are trained or have a log-prob.

slime writes dumps with `--save-debug-rollout-data PATH_{rollout_id}.pt`. A Sample of our hooks
(core/backends/slime/samples.py) carries its turns, any other Sample is one row, as above. slime writes the log-prob 0
for tokens that were not sampled.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress, groupby
from pathlib import Path
from typing import Any, NamedTuple

from core.runs.files import Record
from core.runs.record import VERSION, RecordedRollout, describe_row, read_rollouts
from core.runs.run_folder import RunFolder

NOTES = "agentic"
"""Names what our hooks tell of a rollout in its metadata (core/backends/rollouts.py)."""

STATUS = {"completed": "completed", "truncated": "truncated"}
"""Maps slime's status to ours; any other one is a failure of that name."""


def list_records(path: Path) -> list[tuple[int, Path]]:
    """Return seed and file of each record that `path` stands for: itself, that of a gateway's, or a run's training.

    Raises ValueError if nothing is there.
    """
    for file in (path, path / "rollouts.jsonl.gz"):
        if file.is_file():
            return [(_read_seed(file), file)]
    if not path.exists():
        raise ValueError(f"{path}: there is no record, and no folder of a run or a gateway")
    folder = RunFolder(path)
    return [(seed, file) for seed in folder.seeds if (file := folder.rollouts_path(seed)).exists()]


def list_samples(folder: RunFolder) -> list[tuple[int, Path]]:
    """Return seed and file of each record of an evaluation."""
    return [(_read_seed(file), file) for file in sorted(folder.evaluation_path.glob("*.jsonl.gz"))]


def _read_seed(path: Path) -> int:
    """Return the seed that the name of an evaluation's record ends with; 0 for any other file."""
    found = re.search(r"__seed-(\d+)\.", path.name)
    return int(found[1]) if found else 0


def is_dump(path: Path) -> bool:
    """Say whether a file was written by `torch.save`, and so by another framework."""
    return path.suffix == ".pt"


def read_dump(path: Path) -> Iterator[RecordedRollout]:
    """Yield the rollouts of a file. Raises ValueError, which names the file, for a broken one."""
    if path.suffix == ".jsonl":
        from core.inspect.export import read_foreign  # here, because it imports this module

        yield from read_foreign(path)
        return
    if not is_dump(path):
        yield from read_rollouts(path)
        return
    import torch  # here, because reading our own record needs no torch

    try:
        dump = torch.load(path, map_location="cpu", weights_only=True)  # a dump from elsewhere must not run code
    except Exception as error:  # torch raises many types
        raise ValueError(f"{path} is no dump of slime, TRL or verl ({error})") from error
    yield from read_batch(dump, path) if is_batch(dump) else read_samples(dump, path)


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


class _Names(NamedTuple):
    """Names the tensors of a framework."""

    prompt: str
    response: str
    mask: str
    """1 where a token of the response is trained; in TRL, where it is not of a tool."""
    engine: str
    """The log-probs of what sampled."""
    trainer: str
    rewards: tuple[str, ...]
    """Names scores by token, whose sum is the reward."""


TRL = _Names("prompt_ids", "completion_ids", "tool_mask", "sampling_per_token_logps", "old_per_token_logps", ())
VERL = _Names(
    "prompts", "responses", "response_mask", "rollout_log_probs", "old_log_probs", ("token_level_scores", "rm_scores")
)


def is_batch(dump: object) -> bool:
    """Say whether a saved object is a batch of TRL or verl."""
    return isinstance(dump, Mapping) and any(names.response in dump for names in (TRL, VERL))


def read_batch(batch: Mapping[str, Any], path: Path) -> Iterator[RecordedRollout]:
    """Yield the rollouts of a batch; the last number in the name of `path` is the step. Equal prompts are a group,
    wherever they are: verl sorts the rows of a batch by their lengths.

    Raises:
        ValueError: a tensor is missing or has another shape than its neighbours; the message names it.
    """
    names = TRL if TRL.response in batch else VERL
    if names.engine not in batch:
        raise ValueError(f"{path} has no {names.engine}: without the engine's log-probs there is nothing to compare")
    numbers = re.findall(r"\d+", path.stem)
    groups: dict[tuple[int, ...], int] = {}
    for place in range(len(batch[names.response])):
        try:
            prompt, turns, row = _read_row(batch, names, place)
        except (KeyError, RuntimeError, ValueError) as error:
            raise ValueError(f"{path}: row {place}: {type(error).__name__}: {error}") from error
        group = groups.setdefault(tuple(prompt), len(groups))
        advantages = batch.get("advantages")
        scores = next((batch[name] for name in names.rewards if name in batch), None)
        yield RecordedRollout.model_validate(
            {
                "version": VERSION,
                "stage": "train",
                "step": int(numbers[-1]) if numbers else 0,
                "group": group,
                "task_id": f"prompt {group}",
                "question": "",
                "answers": [],
                "status": "completed",
                "reward": None if scores is None else float(scores[place].sum()),
                "advantage": None if advantages is None else _read_advantage(advantages[place], row),
                "turns": turns,
                "rows": [row] if turns else [],
            }
        )


def _read_row(batch: Mapping[str, Any], names: _Names, place: int) -> tuple[list[int], list[Record], Record]:
    """Return the prompt, the turns and the row as it is trained, of one row of the batch."""

    def row_of(name: str, length: int) -> list[Any] | None:
        values = batch.get(name)
        if values is None:
            return None
        if len(values[place]) != length:
            raise ValueError(f"{name} has {len(values[place])} entries, and not {length}")
        return list(values[place].tolist())

    width = len(batch[names.prompt][place]), len(batch[names.response][place])
    padded_prompt = batch[names.prompt][place].tolist()
    response = batch[names.response][place].tolist()
    if names is TRL:
        real_prompt, real = row_of("prompt_mask", width[0]), row_of("completion_mask", width[1])
    else:
        attention = row_of("attention_mask", sum(width))
        real_prompt, real = (None, None) if attention is None else (attention[: width[0]], attention[width[0] :])
    if real_prompt is None or real is None:
        raise ValueError("the mask of the padding is missing")
    mask = row_of(names.mask, width[1]) or list(real)
    if names is TRL:
        mask = [a * b for a, b in zip(mask, real, strict=True)]
    # The response ends with its last real or trained token: a mask over padding must not go unseen.
    end = max((i + 1 for i in range(width[1]) if real[i] or mask[i]), default=0)
    prompt = list(compress(padded_prompt, real_prompt))
    logprobs = row_of(names.engine, width[1]) or []
    logprobs = [x if math.isfinite(x) else None for x in logprobs]
    sampled = [x if i else 0.0 for x, i in zip(logprobs, real, strict=True)]
    tokens, row_ids = [*prompt, *response[:end]], row_of("input_ids", sum(width))
    turns = split_response(tokens, [a and b for a, b in zip(mask, real, strict=True)][:end], sampled[:end])
    trainer = row_of(names.trainer, width[1])
    if trainer is not None:
        start = 0
        for turn in turns:
            # A turn's prompt is what follows the turn before; the first one begins with the prompt of the row.
            start += len(turn["prompt"]) - (len(prompt) if turn is turns[0] else 0)
            turn["trainer_logprobs"] = trainer[start : start + len(turn["sampled"])] if turn["trained"] else None
            start += len(turn["sampled"])
    trained = tokens if row_ids is None else [*compress(row_ids, real_prompt), *row_ids[width[0] : width[0] + end]]
    row = describe_row(trained, mask[:end], logprobs[:end], range(len(turns)))
    return prompt, turns, row.model_dump()


def _read_advantage(values: Any, row: Record) -> float:
    """Return the advantage of a row; verl has one for each token, which is 0 where the mask is."""
    if values.ndim == 0:
        return float(values)
    return float(values[values != 0][0]) if bool((values != 0).any()) else 0.0
