"""Write rollouts in a form that other projects read, or write such a file as our record again.

    tokentrue inspect export RUN --to training-trace --out traces.jsonl   # OpenEnv's TrainingTrace, schema 1
    tokentrue inspect export RUN --to atif --out trajectories.jsonl       # Harbor's ATIF 1.8
    tokentrue inspect export traces.jsonl --to record --out rollouts.jsonl.gz

RUN is a run folder, a record, a dump of slime, TRL or verl, or a file that this command wrote: one rollout a line. What
the other format has no field for stands under `tokentrue`, so that our record comes back equal. A TrainingTrace has no
place beside its turns, so a line holds it as `training_trace`. Lines that others wrote are read as well (`inspect view`
shows them): each call needs its token ids, and what our record has no field for is kept in `sample`.

| ours | OpenEnv's TrainingTrace, schema 1 | Harbor's ATIF 1.8 |
|---|---|---|
| a rollout | `training_trace` of a line | a trajectory |
| a turn | a turn | a step of the agent, with `metrics` |
| `trained` | `loss_mask` | under `tokentrue` |
| what a tool said before the next turn | in the next prompt | the step's `observation` |
| all else, with the text of the ids | `tokentrue`, in the line and in `metadata` of turns | `extra.tokentrue` |

Both want a log-prob of every sampled token, at most 0. Where ours is none, the format gets 0 and, in a TrainingTrace,
the mask 0; `tokentrue` has those of such a turn, so the null comes back. A TrainingTrace has no empty prompt. Our
record trains a turn whole or not at all: a mask in parts from elsewhere stays in `sample`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from core.inspect.dumps import read_dump
from core.inspect.view import find_segments
from core.options import make_command_parser, show_errors
from core.runs.files import append_batch, write_lines
from core.runs.record import VERSION, RecordedRollout, RecordedTurn
from core.runs.run_folder import RunFolder

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


FORMATS = {"training-trace": write_training_trace, "atif": write_atif}


def write_foreign(rollouts: Iterable[RecordedRollout], form: str, out: Path) -> int:
    """Write rollouts to a file in a form of FORMATS, one a line, and return how many."""
    known: set[int] = set()
    lines = []
    for number, rollout in enumerate(rollouts):
        document = FORMATS[form](rollout, _take_pieces(rollout, known))
        if form == "atif":
            document["session_id"] += f"-{number}"  # those of a group are told apart
        lines.append(json.dumps(document) + "\n")
    write_lines(out, lines)
    return len(lines)


def write_record(rollouts: Iterable[RecordedRollout], out: Path) -> int:
    """Write rollouts as a new record, those of a step together, and return how many."""
    known: set[int] = set()
    count = 0
    for _, of_step in groupby(rollouts, key=lambda rollout: (rollout.stage, rollout.step)):
        records = []
        for rollout in of_step:
            record = rollout.model_dump(mode="json", exclude={"pieces"}, exclude_defaults=True)
            records.append({**record, "pieces": _take_pieces(rollout, known)})
        append_batch(out, records)
        count += len(records)
    return count


def _take_pieces(rollout: RecordedRollout, known: set[int]) -> dict[int, Any]:
    """Return the texts of the rollout's ids that are not `known`, and make them known."""
    used = {token for turn in rollout.turns for token in (*turn.prompt, *turn.sampled)}
    new = {token: rollout.pieces[token] for token in sorted(used - known) if token in rollout.pieces}
    known |= new.keys()
    return new


def find_record(path: Path, seed: int | None) -> Path:
    """Return the file of rollouts that a path means: itself, or the record of a run folder or a gateway's.

    Raises:
        ValueError: the run has several seeds, or not this one.
    """
    if path.is_file() or (path := path / "rollouts.jsonl.gz").is_file():
        return path
    folder = RunFolder(path.parent)
    return folder.rollouts_path(folder.choose_seed(seed))


@show_errors(OSError, ValueError, status=2)
def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    if options.out.exists():
        raise ValueError(f"{options.out} is there already; choose another --out")
    rollouts = read_dump(find_record(options.run_dir, options.seed))
    if options.to == "record":
        count = write_record(rollouts, options.out)
    else:
        count = write_foreign(rollouts, options.to, options.out)
    print(f"{options.out}: {count} rollouts as {options.to}")
    return 0 if count else 1


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("inspect export", __doc__)
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="a folder that a run has left, or a file of rollouts")
    parser.add_argument("--to", choices=(*FORMATS, "record"), required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument("--seed", type=int, help="which seed of a run, if there are several")
    return parser
