"""This module maps our record to the forms in which other projects exchange rollouts, and back.

| ours | OpenEnv's TrainingTrace, schema 1 | Harbor's ATIF 1.8 |
|---|---|---|
| a rollout | `training_trace` of a line | a trajectory |
| a turn | a turn | a step of the agent, with `metrics` |
| `trained` | `loss_mask` | under `tokentrue` |
| what a tool said before the next turn | in the next prompt | the step's `observation` |
| all else, with the text of the ids | `tokentrue`, in the line and in `metadata` of turns | `extra.tokentrue` |

Neither holds a log-prob that is not finite and not above 0, so `tokentrue` has those of such a turn. A TrainingTrace
has no empty prompt. Our record trains a turn whole or not at all: a mask in parts from elsewhere stays in `sample`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.inspect.view import find_segments
from core.runs.record import VERSION, RecordedRollout, RecordedTurn

Document = dict[str, Any]
OURS = "tokentrue"


def write_training_trace(rollout: RecordedRollout, pieces: Mapping[int, Any]) -> Document:
    """Return a line with a rollout as TrainingTrace; `pieces` are the texts of ids that no line before had.

    Raises:
        ValueError: a turn has an empty prompt.
    """
    turns = []
    for place, (prompt, turn) in enumerate(zip(rollout.prompts, rollout.turns, strict=True)):
        if not prompt:
            problem = f"turn {place} has an empty prompt, which no TrainingTrace may have"
            raise ValueError(f"task {rollout.task_id}: {problem}")
        ids, ours = _split_turn(prompt, turn, "per_token_logps")
        ids["loss_mask"] = [0] * len(prompt) + [int(turn.trained and x is not None) for x in turn.logprobs]
        response = {"text": rollout.decode(turn.sampled), "finish_reason": turn.finish_reason}
        turns.append({"node_id": f"turn-{place}", **ids, "response": response, "metadata": {OURS: ours}})
    trace = {"schema_version": 1, "turns": turns}
    return {"training_trace": trace, "reward": rollout.reward, OURS: _split_rollout(rollout, pieces)}


def write_atif(rollout: RecordedRollout, pieces: Mapping[int, Any]) -> Document:
    """Return a rollout as a trajectory of ATIF; `pieces` as in `write_training_trace`."""
    steps: list[Document] = [{"source": "user", "message": rollout.question}]
    of_turn: list[Document] = []
    before = {turn: earlier for each in find_segments(rollout) for earlier, turn in pairwise(each["turns"])}
    for place, (prompt, turn) in enumerate(zip(rollout.prompts, rollout.turns, strict=True)):
        if place in before:
            known = len(rollout.prompts[before[place]]) + len(rollout.turns[before[place]].sampled)
            of_turn[before[place]]["observation"] = {"results": [{"content": rollout.decode(prompt[known:])}]}
        elif place:
            steps.append({"source": "user", "message": rollout.decode(prompt)})
        ids, ours = _split_turn(prompt, turn, "logprobs")
        metrics = {"prompt_tokens": len(prompt), "completion_tokens": len(turn.sampled), **ids}
        said = {"source": "agent", "message": rollout.decode(turn.sampled), "llm_call_count": 1}
        of_turn.append({**said, "metrics": metrics, "extra": {OURS: ours}})
        steps.append(of_turn[-1])
    totals = {
        f"total_{name}": sum(step["metrics"][name] for step in of_turn)
        for name in ("prompt_tokens", "completion_tokens")
    }
    return {
        "schema_version": "ATIF-v1.8",
        "session_id": f"{rollout.source}-{rollout.step}-{rollout.group}",
        "agent": {"name": OURS, "version": str(VERSION)},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": {**totals, "total_steps": len(steps), "extra": {"reward": rollout.reward}},
        "extra": {OURS: _split_rollout(rollout, pieces)},
    }


def read_foreign(path: Path) -> Iterator[RecordedRollout]:
    """Yield the rollouts of a file with a TrainingTrace or a trajectory of ATIF a line.

    Raises:
        ValueError: a line is neither, or a call has no token ids; the message names it.
    """
    pieces: dict[int, Any] = {}
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            try:
                document = json.loads(line)
                rollout = RecordedRollout.model_validate(_read(document, number - 1))
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                problem = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
                raise ValueError(
                    f"{path}:{number}: no rollout as TrainingTrace 1 or ATIF, with token ids of each call ({problem!s})"
                ) from error
            pieces.update(rollout.pieces)
            yield rollout.model_copy(update={"pieces": pieces})


def _split_turn(prompt: Sequence[int], turn: RecordedTurn, logprobs_name: str) -> tuple[Document, Document]:
    """Return ids with log-probs that the formats can hold, and the fields of a turn that they have no place for."""
    logprobs = [0.0 if x is None else min(x, 0.0) for x in turn.logprobs]
    kept = turn.model_dump(mode="json", exclude={"prompt", "sampled", "logprobs"}, exclude_defaults=True)
    ours = kept if logprobs == turn.logprobs else {**kept, "logprobs": turn.logprobs}
    return {"prompt_token_ids": prompt, "completion_token_ids": turn.sampled, logprobs_name: logprobs}, ours


def _join_turn(fields: Document, logprobs_name: str, extra: Document | None, mask: Sequence[int]) -> Document:
    """Return a turn of its ids, which are taken out of `fields`, and the rest, which `extra` has if we wrote it."""
    ours = (extra or {}).get(OURS) or _describe(mask, fields)
    prompt, sampled = fields.pop("prompt_token_ids"), fields.pop("completion_token_ids")
    begin = (ours.get("base") or (0, 0))[1]
    return {"logprobs": fields.pop(logprobs_name), **ours, "prompt": prompt[begin:], "sampled": sampled}


def _split_rollout(rollout: RecordedRollout, pieces: Mapping[int, Any]) -> Document:
    fields = rollout.model_dump(mode="json", exclude={"turns", "pieces"}, exclude_defaults=True)
    return {**fields, "pieces": {str(token): piece for token, piece in pieces.items()}}


def _read(document: Document, place: int) -> Document:
    trace = document.get("training_trace", document)
    if trace["schema_version"] != 1 and not str(trace["schema_version"]).startswith("ATIF-v1."):
        raise ValueError(f"schema_version is {trace['schema_version']!r}")
    if "turns" in trace:
        ours = document.get(OURS)
        turns = [
            _join_turn(turn, "per_token_logps", turn.get("metadata"), turn["loss_mask"]) for turn in trace["turns"]
        ]
    else:
        ours = (document.get("extra") or {}).get(OURS)
        turns = [
            _join_turn(step["metrics"], "logprobs", step.get("extra"), [not step.get("is_copied_context")])
            for step in _list_steps(document)
        ]
    if ours is None:
        reward = ((document.get("final_metrics") or {}).get("extra") or {}).get("reward", document.get("reward"))
        facts = {"task_id": str(document.get("session_id") or f"rollout-{place}"), "question": "", "answers": []}
        ours = {"version": VERSION, "stage": "eval", "step": 0, "group": place, "status": "completed", **facts}
        ours |= {"reward": reward, "sample": {"foreign": document}}  # its ids have been taken out
    return {**ours, "turns": turns}


def _list_steps(document: Document) -> list[Document]:
    """Return the calls of a trajectory and of its sub-agents."""
    steps = [step for step in document["steps"] if step["source"] == "agent" and step.get("llm_call_count") != 0]
    return steps + [step for each in document.get("subagent_trajectories") or () for step in _list_steps(each)]


def _describe(mask: Sequence[int], turn: Document) -> Document:
    """Return the fields of a turn that somebody else recorded."""
    reason = next((choice.get("finish_reason") for choice in turn.get("response", {}).get("choices", ())), None)
    named = {"role": "policy", "trained": any(mask), "weight_version": "0"}
    return {**named, "finish_reason": reason if reason in ("length", "abort") else "stop"}
