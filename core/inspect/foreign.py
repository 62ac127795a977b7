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
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.inspect.tokens import find_segments
from core.runs.record import VERSION, RecordedRollout, RecordedTurn

Document = dict[str, Any]
OURS = "tokentrue"
IDS = ("prompt", "sampled", "logprobs")
"""Names the fields of a turn that every format has."""


def write_training_trace(rollout: RecordedRollout, pieces: Mapping[int, Any]) -> Document:
    """Return a line with a rollout as TrainingTrace; `pieces` are the texts of ids that no line before had.

    Raises:
        ValueError: a turn has an empty prompt.
    """
    turns = []
    for place, (prompt, turn) in enumerate(zip(rollout.prompts, rollout.turns, strict=True)):
        if not prompt:
            raise ValueError(
                f"task {rollout.task_id}: turn {place} has an empty prompt, which no TrainingTrace may have"
            )
        logprobs, ours = _split_turn(turn)
        turns.append(
            {
                "node_id": f"turn-{place}",
                "prompt_token_ids": prompt,
                "completion_token_ids": turn.sampled,
                "per_token_logps": logprobs,
                "loss_mask": [0] * len(prompt) + [int(turn.trained and x is not None) for x in turn.logprobs],
                "response": {"text": rollout.decode(turn.sampled), "finish_reason": turn.finish_reason},
                "metadata": {OURS: ours},
            }
        )
    trace = {"schema_version": 1, "turns": turns}
    return {"training_trace": trace, "reward": rollout.reward, OURS: _split_rollout(rollout, pieces)}


def write_atif(rollout: RecordedRollout, pieces: Mapping[int, Any]) -> Document:
    """Return a rollout as a trajectory of ATIF; `pieces` as in `write_training_trace`."""
    steps: list[Document] = [{"source": "user", "message": rollout.question}]
    of_turn: list[Document] = []
    segments = find_segments(rollout)
    before = {
        turn: earlier for each in segments for earlier, turn in zip(each["turns"], each["turns"][1:], strict=False)
    }
    for place, (prompt, turn) in enumerate(zip(rollout.prompts, rollout.turns, strict=True)):
        if place in before:
            known = len(rollout.prompts[before[place]]) + len(rollout.turns[before[place]].sampled)
            of_turn[before[place]]["observation"] = {"results": [{"content": rollout.decode(prompt[known:])}]}
        elif place:
            steps.append({"source": "user", "message": rollout.decode(prompt)})
        logprobs, ours = _split_turn(turn)
        metrics = {
            "prompt_tokens": len(prompt),
            "completion_tokens": len(turn.sampled),
            "prompt_token_ids": prompt,
            "completion_token_ids": turn.sampled,
            "logprobs": logprobs,
        }
        of_turn.append(
            {
                "source": "agent",
                "message": rollout.decode(turn.sampled),
                "llm_call_count": 1,
                "metrics": metrics,
                "extra": {OURS: ours},
            }
        )
        steps.append(of_turn[-1])
    return {
        "schema_version": "ATIF-v1.8",
        "session_id": f"{rollout.source}-{rollout.step}-{rollout.group}",
        "agent": {"name": OURS, "version": str(VERSION)},
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": {
            "total_prompt_tokens": sum(map(len, rollout.prompts)),
            "total_completion_tokens": sum(len(turn.sampled) for turn in rollout.turns),
            "total_steps": len(steps),
            "extra": {"reward": rollout.reward},
        },
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


def _split_turn(turn: RecordedTurn) -> tuple[list[float], Document]:
    """Return log-probs that the formats can hold, and the fields of a turn that they have no place for."""
    logprobs = [0.0 if x is None else min(x, 0.0) for x in turn.logprobs]
    kept = turn.model_dump(mode="json", exclude={*IDS}, exclude_defaults=True)
    return logprobs, kept if logprobs == turn.logprobs else {**kept, "logprobs": turn.logprobs}


def _split_rollout(rollout: RecordedRollout, pieces: Mapping[int, Any]) -> Document:
    fields = rollout.model_dump(mode="json", exclude={"turns", "pieces"}, exclude_defaults=True)
    return {**fields, "pieces": {str(token): piece for token, piece in pieces.items()}}


def _join_turn(ours: Document, prompt: Sequence[int], sampled: Sequence[int], logprobs: Sequence[float]) -> Document:
    begin = (ours.get("base") or (0, 0))[1]
    return {"logprobs": logprobs, **ours, "prompt": prompt[begin:], "sampled": sampled}


def _read(document: Document, place: int) -> Document:
    if "training_trace" in document or "turns" in document:
        trace = document.get("training_trace", document)
        if trace["schema_version"] != 1:
            raise ValueError(f"schema_version is {trace['schema_version']!r}")
        found = [
            (
                turn.pop("prompt_token_ids"),
                turn.pop("completion_token_ids"),
                turn.pop("per_token_logps"),
                turn.get("metadata", {}).get(OURS) or _describe(turn["loss_mask"], turn),
            )
            for turn in trace["turns"]
        ]
        ours = document.get(OURS)
    else:
        if not str(document["schema_version"]).startswith("ATIF-v1."):
            raise ValueError(f"schema_version is {document['schema_version']!r}")
        found = [_read_step(step) for step in _list_steps(document)]
        ours = (document.get("extra") or {}).get(OURS)
    if ours is None:
        reward = ((document.get("final_metrics") or {}).get("extra") or {}).get("reward", document.get("reward"))
        facts = {"task_id": str(document.get("session_id") or f"rollout-{place}"), "question": "", "answers": []}
        ours = {"version": VERSION, "stage": "eval", "step": 0, "group": place, "status": "completed", **facts}
        ours |= {"reward": reward, "sample": {"foreign": document}}  # its ids have been taken out
    return {**ours, "turns": [_join_turn(kept, *ids) for *ids, kept in found]}


def _list_steps(document: Document) -> list[Document]:
    """Return the calls of a trajectory and of its sub-agents."""
    steps = [step for step in document["steps"] if step["source"] == "agent" and step.get("llm_call_count") != 0]
    return steps + [step for each in document.get("subagent_trajectories") or () for step in _list_steps(each)]


def _read_step(step: Document) -> tuple[list[int], list[int], list[float], Document]:
    metrics = step["metrics"]
    ids = metrics.pop("prompt_token_ids"), metrics.pop("completion_token_ids"), metrics.pop("logprobs")
    return *ids, (step.get("extra") or {}).get(OURS) or _describe([not step.get("is_copied_context")], step)


def _describe(mask: Sequence[int], turn: Document) -> Document:
    """Return the fields of a turn that somebody else recorded."""
    reason = next((choice.get("finish_reason") for choice in turn.get("response", {}).get("choices", ())), None)
    named = {"role": "policy", "trained": any(mask), "weight_version": "0"}
    return {**named, "finish_reason": reason if reason in ("length", "abort") else "stop"}
