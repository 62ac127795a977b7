"""Records into Tasks. The format is told by the fields:

| format | fields | from |
|---|---|---|
| own | task_id, question, answers, context, metadata | `write_jsonl` |
| training row | prompt, context, reward_model.ground_truth, extra_info | MemAgent's parquet or JSON |
| evaluation | input, answers, context, num_docs, index | MemAgent's eval_{N}.json |
| ruler | input, outputs, context, answer_prefix, length, index | MemAgent's eval_{task}_{length}.json |
| slime | prompt, label, metadata.context, metadata.ground_truth | slime-agentic |
| orchestration | problem, answer, tools, category, pref_vec, ... at the top or in metadata | ToolOrchestra |
| frames | Prompt, Answer, wiki_links, reasoning_types; or id, question, answer | FRAMES on the hub; ToolOrchestra's |
| hle | question, answer, answer_type, image, category, id | Humanity's Last Exam on the hub |
| mathematics | problem, answer or expected_answer, id | AIME as published on the hub and with evalchemy |

Raw HotpotQA items are documents, not tasks: benchmarks.ruler.hqa reads those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from core.data.files import DataError, Place, read_records
from core.types import Task

Record = Mapping[str, Any]


def iter_tasks(path: str | Path, *, require_context: bool = True) -> Iterator[Task]:
    """Tasks of a file, one at a time. Records without an id are called `{file stem}-{index}`.

    Raises:
        DataError: a missing file, a broken line, an unknown format, a missing or empty field, an id twice, or (unless
            `require_context` is off) a record without context.
    """
    return tasks_of(read_records(path), Path(path).stem, require_context=require_context)


def tasks_of(records: Iterable[tuple[Place, Record]], name: str, *, require_context: bool = True) -> Iterator[Task]:
    """Tasks of records read already; those without an id are called `{name}-{index}`. Errors as `iter_tasks`."""
    seen: set[str] = set()
    for place, record in records:
        task = _detect(record, place)(record, place)
        if require_context and not task.context.strip():
            raise place.error("context", "is missing or empty", "give the document that the question is about")
        if not task.task_id:
            task = replace(task, task_id=f"{name}-{len(seen)}")
        if task.task_id in seen:
            raise place.error("task_id", f"{task.task_id!r} occurs twice", "make ids unique within the file")
        seen.add(task.task_id)
        yield task


def read_tasks(path: str | Path, *, limit: int | None = None, require_context: bool = True) -> list[Task]:
    """The first `limit` tasks of a file (all by default); errors as `iter_tasks`."""
    return list(islice(iter_tasks(path, require_context=require_context), limit))


def _detect(record: Record, place: Place) -> Callable[[Record, Place], Task]:
    fields = record.keys()
    if {"supporting_facts", "question", "answer"} <= fields:
        raise DataError(
            f"{place}: a raw HotpotQA item, which is documents and not yet a task. Fix: build tasks from the file with "
            "`tokentrue data ruler --task hqa --hotpotqa FILE`."
        )
    for marks, convert in _FORMATS:
        if marks <= fields:
            return convert
    known = "; ".join(", ".join(sorted(marks)) for marks, _ in _FORMATS)
    raise DataError(
        f"{place}: unknown format with fields {', '.join(map(str, fields)) or '(none)'}. "
        f"Fix: give the fields of one known format: {known}."
    )


def _own(record: Record, place: Place) -> Task:
    metadata = _mapping(record.get("metadata"), "metadata", place)
    return Task(
        task_id=_text(record, "task_id", place),
        question=_text(record, "question", place),
        answers=_answers(record["answers"], "answers", place, metadata),
        context=_context(record.get("context"), place),
        metadata=metadata,
    )


def _training_row(record: Record, place: Place) -> Task:
    truth = _mapping(record["reward_model"], "reward_model", place).get("ground_truth")
    info = _mapping(record.get("extra_info"), "extra_info", place)
    return Task(
        task_id="",
        question=_prompt(record["prompt"], place),
        answers=_answers(truth, "reward_model.ground_truth", place),
        context=_context(record.get("context"), place),
        metadata={**info, "data_source": record.get("data_source")},
    )


def _evaluation(record: Record, place: Place) -> Task:
    return Task(
        task_id="",
        question=_text(record, "input", place),
        answers=_answers(record["answers"], "answers", place),
        context=_context(record.get("context"), place),
        metadata={name: record[name] for name in ("num_docs", "index") if name in record},
    )


def _ruler(record: Record, place: Place) -> Task:
    return Task(
        task_id="",
        question=_text(record, "input", place),
        answers=_answers(record["outputs"], "outputs", place),
        context=_context(record.get("context"), place),
        metadata={
            **{name: record[name] for name in ("index", "answer_prefix", "length") if name in record},
            "metric": "string_match_part" if place.path.stem.startswith("eval_qa") else "string_match_all",
        },
    )


def _slime(record: Record, place: Place) -> Task:
    metadata = dict(_mapping(record.get("metadata"), "metadata", place))
    context = metadata.pop("context", None)
    if (truth := metadata.pop("ground_truth", None)) is None:
        answers = _answers(record["label"], "label", place, metadata)
    else:
        answers = _answers(truth, "metadata.ground_truth", place)
    return Task(
        task_id="",
        question=_prompt(record["prompt"], place),
        answers=answers,
        context=_context(context, place),
        metadata=metadata,
    )


def _orchestration(record: Record, place: Place) -> Task:
    rest = {name: value for name, value in record.items() if name not in ("problem", "answer", "metadata")}
    metadata = {**rest, **_mapping(record.get("metadata"), "metadata", place)}
    if metadata.get("category") == "func_call" and not record["problem"]:
        record = {**record, "problem": _wish(metadata.get("example"))}
    return Task(
        task_id=str(metadata.get("eid") or metadata.get("index") or ""),
        question=_text(record, "problem", place),
        answers=_answers(record["answer"], "answer", place, metadata),
        metadata=metadata,
    )


def _wish(example: Any) -> Any:
    """What the user of a conversation wants: a func_call of the released data has no problem of its own."""
    for field in ("user_scenario", "instructions", "task_instructions"):
        if isinstance(example, Mapping):
            example = example.get(field)
    return example


def _mathematics(record: Record, place: Place) -> Task:
    field = "answer" if "answer" in record else "expected_answer"
    answer = record[field]
    return Task(
        task_id="" if record.get("id") is None else str(record["id"]),
        question=_text(record, "problem", place),
        answers=_answers(str(answer) if type(answer) is int else answer, field, place),
        metadata={name: record[name] for name in ("url", "year", "source") if name in record},
    )


def _frames(record: Record, place: Place) -> Task:
    question, answer = ("Prompt", "Answer") if "Prompt" in record else ("question", "answer")
    metadata = {name: record[name] for name in ("wiki_links", "reasoning_types") if name in record}
    return Task(
        task_id=str(record.get("id") or ""),
        question=_text(record, question, place),
        answers=_answers(record[answer], answer, place),
        metadata={**metadata, "kind": metadata["reasoning_types"]} if "reasoning_types" in metadata else metadata,
    )


def _hle(record: Record, place: Place) -> Task:
    return Task(
        task_id=str(record.get("id") or ""),
        question=_text(record, "question", place),
        answers=_answers(record["answer"], "answer", place),
        metadata={
            "kind": str(record.get("category") or "unknown"),
            "answer_type": record["answer_type"],
            "image": bool(record.get("image")),
        },
    )


_FORMATS: tuple[tuple[frozenset[str], Callable[[Record, Place], Task]], ...] = (
    (frozenset({"task_id", "question", "answers"}), _own),
    (frozenset({"prompt", "reward_model"}), _training_row),
    (frozenset({"prompt", "label"}), _slime),
    (frozenset({"input", "outputs"}), _ruler),
    (frozenset({"input", "answers"}), _evaluation),
    (frozenset({"problem", "answer", "tools"}), _orchestration),
    (frozenset({"problem", "answer"}), _mathematics),
    (frozenset({"problem", "expected_answer"}), _mathematics),
    (frozenset({"Prompt", "Answer"}), _frames),
    (frozenset({"question", "answer", "answer_type"}), _hle),
    (frozenset({"id", "question", "answer"}), _frames),
)


def _text(record: Record, field: str, place: Place) -> str:
    value = record[field]
    if not isinstance(value, str) or not value.strip():
        raise place.error(field, f"must be a non-empty string, is {value!r}", "write the text there")
    return value


def _prompt(value: Any, place: Place) -> str:
    """A prompt is a string or a chat whose last message holds the question."""
    if isinstance(value, list) and value and isinstance(value[-1], dict):
        return _text({"prompt": value[-1].get("content")}, "prompt", place)
    return _text({"prompt": value}, "prompt", place)


def _answers(value: Any, field: str, place: Place, metadata: Record | None = None) -> tuple[str, ...]:
    """At least one; but a conversation with an environment (category func_call), which grades it, need have none."""
    if not value and (metadata or {}).get("category") == "func_call":
        return ()
    answers = [value] if isinstance(value, str) else value
    if not isinstance(answers, list) or not answers:
        raise place.error(field, f"must be one or more texts, is {value!r}", "list at least one accepted answer")
    if not all(isinstance(answer, str) and answer.strip() for answer in answers):
        raise place.error(field, f"must hold non-empty strings, is {answers!r}", "quote numbers, drop empty answers")
    return tuple(answers)


def _context(value: Any, place: Place) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list) and value and isinstance(value[0], int):
        raise place.error(
            "context",
            "holds document numbers (MemAgent's format above 10,000 documents) and not their text",
            "build the task with `tokentrue data ruler --task hqa --num-docs N`",
        )
    raise place.error("context", f"must be a string, is a {type(value).__name__}", "join the documents into one text")


def _mapping(value: Any, field: str, place: Place) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise place.error(field, f"must be an object, is a {type(value).__name__}", "write it as a JSON object")
    return value
