"""This module converts records into Tasks. The fields of a record tell its format:

| format | fields | from |
|---|---|---|
| own | task_id, question, answers, context, metadata | `write_jsonl` |
| training row | prompt, context, reward_model.ground_truth, extra_info | MemAgent's parquet or JSON |
| FlashRAG | question, golden_answers, id, data_source | FlashRAG's data sets on the hub; Search-R1's parquet |
| evaluation | input, answers, context, num_docs, index | MemAgent's eval_{N}.json |
| ruler | input, outputs, context, answer_prefix, length, index | MemAgent's eval_{task}_{length}.json |
| slime | prompt, label, metadata.context, metadata.ground_truth | slime-agentic |
| orchestration | problem, answer, tools, category, pref_vec, ... at the top or in metadata | ToolOrchestra |
| frames | Prompt, Answer, wiki_links, reasoning_types; or id, question, answer | FRAMES on the hub; ToolOrchestra's |
| hle | question, answer, answer_type, image, category, id | Humanity's Last Exam on the hub |
| mathematics | problem, answer or expected_answer, id | AIME as published on the hub and with evalchemy |

benchmarks.ruler.hqa reads raw HotpotQA items, which are documents and not tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from core.data.files import DataError, SourceLocation, read_records
from core.types import Task

Record = Mapping[str, Any]
CheckTask = Callable[[Task], tuple[str, str, str] | None]
"""Maps a task to what is wrong with its record, as (field, problem, fix), or to None."""


def iter_tasks(path: str | Path, *, require_context: bool = True, check: CheckTask | None = None) -> Iterator[Task]:
    """Yield the tasks of a file, one at a time. A record without an id is called `{file stem}-{index}`.

    Raises:
        DataError: the file is missing, a line is broken, a format is unknown, a field is missing or empty, an id occurs
            twice, a record has no context (unless `require_context` is off), or `check` finds a fault.
    """
    return convert_records(read_records(path), Path(path).stem, require_context=require_context, check=check)


def convert_records(
    records: Iterable[tuple[SourceLocation, Record]],
    name: str,
    *,
    require_context: bool = True,
    check: CheckTask | None = None,
) -> Iterator[Task]:
    """Yield records as tasks. A record without an id is called `{name}-{index}`. Raises the errors of `iter_tasks`."""
    task_ids: set[str] = set()
    for location, record in records:
        task = _choose_converter(record, location)(record, location)
        if require_context and not task.context.strip():
            raise location.error("context", "is missing or empty", "give the document that the question is about")
        if check is not None and (fault := check(task)):
            raise location.error(*fault)
        if not task.task_id:
            task = replace(task, task_id=f"{name}-{len(task_ids)}")
        if task.task_id in task_ids:
            raise location.error("task_id", f"{task.task_id!r} occurs twice", "make ids unique within the file")
        task_ids.add(task.task_id)
        yield task


def read_tasks(
    path: str | Path, *, limit: int | None = None, require_context: bool = True, check: CheckTask | None = None
) -> list[Task]:
    """Read the first `limit` tasks of a file, by default all. Raises the errors of `iter_tasks`."""
    return list(islice(iter_tasks(path, require_context=require_context, check=check), limit))


def _choose_converter(record: Record, location: SourceLocation) -> Callable[[Record, SourceLocation], Task]:
    fields = record.keys()
    if {"supporting_facts", "question", "answer"} <= fields:
        raise DataError(
            f"{location}: a raw HotpotQA item, which is documents and not yet a task. Fix: build tasks from the file "
            "with `tokentrue data ruler --task hqa --hotpotqa FILE`."
        )
    for marks, convert in _FORMATS:
        if marks <= fields:
            return convert
    known = "; ".join(", ".join(sorted(marks)) for marks, _ in _FORMATS)
    raise DataError(
        f"{location}: unknown format with fields {', '.join(map(str, fields)) or '(none)'}. "
        f"Fix: give the fields of one known format: {known}."
    )


def _convert_own(record: Record, location: SourceLocation) -> Task:
    metadata = _read_mapping(record.get("metadata"), "metadata", location)
    return Task(
        task_id=_read_text(record, "task_id", location),
        question=_read_text(record, "question", location),
        answers=_read_answers(record["answers"], "answers", location, metadata),
        context=_read_context(record.get("context"), location),
        metadata=metadata,
    )


def _convert_training_row(record: Record, location: SourceLocation) -> Task:
    truth = _read_mapping(record["reward_model"], "reward_model", location).get("ground_truth")
    info = _read_mapping(record.get("extra_info"), "extra_info", location)
    return Task(
        task_id="",
        question=_read_prompt(record["prompt"], location),
        answers=_read_answers(truth, "reward_model.ground_truth", location),
        context=_read_context(record.get("context"), location),
        metadata={**info, "data_source": record.get("data_source")},
    )


def _convert_flashrag(record: Record, location: SourceLocation) -> Task:
    """Convert a record whose id is unique only within its source: Search-R1 trains on NQ and HotpotQA together."""
    named = [str(record[field]) for field in ("data_source", "id") if record.get(field) is not None]
    return Task(
        task_id="-".join(named) if record.get("id") is not None else "",
        question=_read_text(record, "question", location),
        answers=_read_answers(record["golden_answers"], "golden_answers", location),
        metadata={"kind": record["data_source"]} if "data_source" in record else {},
    )


def _convert_evaluation(record: Record, location: SourceLocation) -> Task:
    return Task(
        task_id="",
        question=_read_text(record, "input", location),
        answers=_read_answers(record["answers"], "answers", location),
        context=_read_context(record.get("context"), location),
        metadata={name: record[name] for name in ("num_docs", "index") if name in record},
    )


def _convert_ruler(record: Record, location: SourceLocation) -> Task:
    return Task(
        task_id="",
        question=_read_text(record, "input", location),
        answers=_read_answers(record["outputs"], "outputs", location),
        context=_read_context(record.get("context"), location),
        metadata={
            **{name: record[name] for name in ("index", "answer_prefix", "length") if name in record},
            "metric": "string_match_part" if location.path.stem.startswith("eval_qa") else "string_match_all",
        },
    )


def _convert_slime(record: Record, location: SourceLocation) -> Task:
    metadata = dict(_read_mapping(record.get("metadata"), "metadata", location))
    context = metadata.pop("context", None)
    if (truth := metadata.pop("ground_truth", None)) is None:
        answers = _read_answers(record["label"], "label", location, metadata)
    else:
        answers = _read_answers(truth, "metadata.ground_truth", location)
    return Task(
        task_id="",
        question=_read_prompt(record["prompt"], location),
        answers=answers,
        context=_read_context(context, location),
        metadata=metadata,
    )


def _convert_orchestration(record: Record, location: SourceLocation) -> Task:
    rest = {name: value for name, value in record.items() if name not in ("problem", "answer", "metadata")}
    metadata = {**rest, **_read_mapping(record.get("metadata"), "metadata", location)}
    if metadata.get("category") == "func_call" and not record["problem"]:
        record = {**record, "problem": _user_request(metadata.get("example"))}
    return Task(
        task_id=str(metadata.get("eid") or metadata.get("index") or ""),
        question=_read_text(record, "problem", location),
        answers=_read_answers(record["answer"], "answer", location, metadata),
        metadata=metadata,
    )


def _user_request(example: Any) -> Any:
    """Find what the user of a conversation asks for: a func_call of the released data has no problem of its own."""
    for field in ("user_scenario", "instructions", "task_instructions"):
        if isinstance(example, Mapping):
            example = example.get(field)
    return example


def _convert_mathematics(record: Record, location: SourceLocation) -> Task:
    field = "answer" if "answer" in record else "expected_answer"
    answer = record[field]
    return Task(
        task_id="" if record.get("id") is None else str(record["id"]),
        question=_read_text(record, "problem", location),
        answers=_read_answers(str(answer) if type(answer) is int else answer, field, location),
        metadata={name: record[name] for name in ("url", "year", "source") if name in record},
    )


def _convert_frames(record: Record, location: SourceLocation) -> Task:
    question, answer = ("Prompt", "Answer") if "Prompt" in record else ("question", "answer")
    metadata = {name: record[name] for name in ("wiki_links", "reasoning_types") if name in record}
    return Task(
        task_id=str(record.get("id") or ""),
        question=_read_text(record, question, location),
        answers=_read_answers(record[answer], answer, location),
        metadata={**metadata, "kind": metadata["reasoning_types"]} if "reasoning_types" in metadata else metadata,
    )


def _convert_hle(record: Record, location: SourceLocation) -> Task:
    return Task(
        task_id=str(record.get("id") or ""),
        question=_read_text(record, "question", location),
        answers=_read_answers(record["answer"], "answer", location),
        metadata={
            "kind": str(record.get("category") or "unknown"),
            "answer_type": record["answer_type"],
            "image": bool(record.get("image")),
        },
    )


_FORMATS: tuple[tuple[frozenset[str], Callable[[Record, SourceLocation], Task]], ...] = (
    (frozenset({"task_id", "question", "answers"}), _convert_own),
    (frozenset({"question", "golden_answers"}), _convert_flashrag),
    (frozenset({"prompt", "reward_model"}), _convert_training_row),
    (frozenset({"prompt", "label"}), _convert_slime),
    (frozenset({"input", "outputs"}), _convert_ruler),
    (frozenset({"input", "answers"}), _convert_evaluation),
    (frozenset({"problem", "answer", "tools"}), _convert_orchestration),
    (frozenset({"problem", "answer"}), _convert_mathematics),
    (frozenset({"problem", "expected_answer"}), _convert_mathematics),
    (frozenset({"Prompt", "Answer"}), _convert_frames),
    (frozenset({"question", "answer", "answer_type"}), _convert_hle),
    (frozenset({"id", "question", "answer"}), _convert_frames),
)


def _read_text(record: Record, field: str, location: SourceLocation) -> str:
    value = record[field]
    if not isinstance(value, str) or not value.strip():
        raise location.error(field, f"must be a non-empty string, is {value!r}", "write the text there")
    return value


def _read_prompt(value: Any, location: SourceLocation) -> str:
    """Read a prompt: a string, or a chat whose last message holds the question."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        return _read_text({"prompt": value[-1].get("content")}, "prompt", location)
    return _read_text({"prompt": value}, "prompt", location)


def _read_answers(value: Any, field: str, location: SourceLocation, metadata: Record | None = None) -> tuple[str, ...]:
    """Read at least one answer. A conversation (func_call) may have none: its environment grades it."""
    if not value and (metadata or {}).get("category") == "func_call":
        return ()
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, list) or not answers:
        raise location.error(field, f"must be one or more texts, is {value!r}", "list at least one accepted answer")
    if not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise location.error(field, f"must hold non-empty strings, is {answers!r}", "quote numbers, drop empty answers")
    return tuple(answers)


def _read_context(value: Any, location: SourceLocation) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and value and isinstance(value[0], int):
        raise location.error(
            "context",
            "holds document numbers (MemAgent's format above 10,000 documents) and not their text",
            "build the task with `tokentrue data ruler --task hqa --num-docs N`",
        )
    raise location.error(
        "context", f"must be a string, is a {type(value).__name__}", "join the documents into one text"
    )


def _read_mapping(value: Any, field: str, location: SourceLocation) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise location.error(field, f"must be an object, is a {type(value).__name__}", "write it as a JSON object")
    return value
