"""This module converts records into Tasks. The fields of a record tell its format; the first that fits is taken:

| format | fields | from |
|---|---|---|
| own | task_id, question, answers, context, earlier_messages, metadata | `write_jsonl` |
| FlashRAG | question, golden_answers, id, data_source, context | FlashRAG's data sets on the hub; Search-R1's parquet |
| training row | prompt, context, reward_model.ground_truth, data_source, extra_info | verl; MemAgent's parquet |
| slime | prompt, label, context or metadata.context, metadata.ground_truth | slime-agentic |
| ruler | input, outputs, context, answer_prefix, length, index | MemAgent's eval_{task}_{length}.json |
| evaluation | input, answers, context, num_docs, index | MemAgent's eval_{N}.json |
| orchestration | problem, answer, tools, context, category, pref_vec, ... at the top or in metadata | ToolOrchestra |
| any other | a question, an answer, id, context, url, year, source, wiki_links, metadata | GSM8K, TRL, FRAMES, HLE |

In the last one, QUESTIONS and ANSWERS below name the fields of question and answer; of several, the first counts. A
prompt may be a list of messages: the user's last one is the question, and a Task keeps those before it. Without an
answer, a reply that ends `messages` is the answer. A solution that ends in `#### 72`, as GSM8K's, is the answer 72.

benchmarks.ruler.hqa reads raw HotpotQA items, which are documents and not tasks.
"""

from __future__ import annotations

import hashlib
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, Unpack

from core.data.fields import Fields
from core.data.files import DataError, SourceLocation, read_records
from core.types import Task

Record = Mapping[str, Any]
CheckTask = Callable[[Task], tuple[str, str, str] | None]
"""Maps a task to what is wrong with its record, as (field, problem, fix), or to None."""

QUESTIONS = ("messages", "prompt", "question", "problem", "Prompt")
ANSWERS = ("answers", "answer", "expected_answer", "label", "ground_truth", "solution", "Answer")
NUMBERING = frozenset({"id", "idx", "index", "uid", "uuid"})
"""Names metadata that number a record and do not make it another task."""


@dataclass(slots=True)
class Notes:
    """Counts what a reading left out or guessed, to tell it once for the file."""

    told: Counter[str] = field(default_factory=Counter)
    records: int = 0
    repeated: int = 0

    def describe(self) -> list[str]:
        """Return what to tell, one line each."""
        lines = [f"{what} ({count:,} of {self.records:,} records)" for what, count in self.told.items()]
        if self.repeated:
            different = self.records - self.repeated
            lines.append(f"{self.records:,} records are {different:,} different tasks; an evaluation takes each once")
        return lines

    def tell(self, path: str | Path) -> None:
        """Write the notes on the console, beside the results."""
        for line in self.describe():
            print(f"note: {path}: {line}", file=sys.stderr)


class ReadingOptions(TypedDict, total=False):
    """Says what a reader of tasks needs, and what it can keep."""

    require_context: bool | None
    """Refuses a task without context (the default). False takes it, and notes one with a context; None takes both."""
    check: CheckTask | None
    keep_messages: bool
    """Takes prompts with messages before the question; they are refused by default, for they would be dropped."""
    short_answers: bool
    """Refuses answers that no final answer equals, such as a whole solution (the default)."""
    distinct: bool
    """Takes a task once that the file repeats. By default it is taken as often as it occurs."""
    notes: Notes | None
    """Collects what was left out or guessed."""


def iter_tasks(path: str | Path, **options: Unpack[ReadingOptions]) -> Iterator[Task]:
    """Yield the tasks of a file, one at a time. A record without an id is called `{file stem}-{index}`.

    Raises:
        DataError: the file is missing, a line is broken, a format is unknown, a field is missing, empty or wrong, an id
            occurs twice, or the record is not what the `options` ask for.
    """
    return convert_records(read_records(path), Path(path).stem, **options)


def convert_records(
    records: Iterable[tuple[SourceLocation, Record]], name: str, **options: Unpack[ReadingOptions]
) -> Iterator[Task]:
    """Yield records as tasks. A record without an id is called `{name}-{index}`. Raises the errors of `iter_tasks`."""
    task_ids, seen = set[str](), set[bytes]()
    notes, check = options.get("notes"), options.get("check")
    for number, (location, record) in enumerate(records):
        fields = Fields(record, location)
        convert = _choose_converter(record, location)
        task = convert(fields, options.get("short_answers", True))
        if options.get("require_context", True) and not task.context.strip():
            raise location.error(
                "context", "is missing, empty or no text", "give the document that the question is about"
            )
        if task.earlier_messages and not options.get("keep_messages"):
            roles = ", ".join(message["role"] for message in task.earlier_messages)
            problem = f"there are messages before the question ({roles}): this method's prompts have no place for them"
            raise location.error("messages", problem, "write what matters into the question, and leave them out")
        if check is not None and (fault := check(task)):
            raise location.error(*fault)
        if not task.task_id:
            task = replace(task, task_id=f"{name}-{number}")
        if task.task_id in task_ids:
            raise location.error("task_id", f"{task.task_id!r} occurs twice", "make ids unique within the file")
        task_ids.add(task.task_id)
        numbers_count = convert is _convert_own or not task.answers
        identity = _identify(task, numbers_count) if options.get("distinct") or notes is not None else b""
        repeated = bool(identity) and identity in seen
        seen.add(identity)
        if notes is not None:
            notes.told.update([*(f"field {name} is not used" for name in fields.find_unused()), *fields.notes])
            if task.context.strip() and options.get("require_context") is False:
                notes.told["field context is not asked for: see whether a prompt shows it"] += 1
            notes.records += 1
            notes.repeated += repeated
        if not (repeated and options.get("distinct")):
            yield task


def read_tasks(
    path: str | Path, *, limit: int | None = None, tell: bool = False, **options: Unpack[ReadingOptions]
) -> list[Task]:
    """Read the first `limit` tasks of a file, by default all; `tell` writes what was left out or guessed.

    Raises the errors of `iter_tasks`.
    """
    notes = options.setdefault("notes", Notes() if tell else None)
    tasks = list(islice(iter_tasks(path, **options), limit))
    if tell and notes is not None:
        notes.tell(path)
    return tasks


def _identify(task: Task, numbers_count: bool) -> bytes:
    """Return a hash of all that makes a task what it is: not its id, nor metadata that number a record of other tools.

    A number in our own format, or beside no answer, is for an agent or an environment, and says which task it is.
    """
    metadata = {name: value for name, value in task.metadata.items() if numbers_count or name not in NUMBERING}
    parts = (task.question, task.answers, task.context, task.earlier_messages, metadata)
    return hashlib.sha256(repr(parts).encode(errors="surrogatepass")).digest()


def _choose_converter(record: Record, location: SourceLocation) -> Callable[[Fields, bool], Task]:
    fields = record.keys()
    if {"supporting_facts", "question", "answer"} <= fields:
        count = sum(1 for _ in islice(read_records(location.path), 128)) if location.path.is_file() else 128
        raise DataError(
            f"{location}: a raw HotpotQA item, which is documents and not yet a task. Fix: build tasks from the file "
            f"with `tokentrue data ruler --task hqa --hotpotqa {shlex.quote(str(location.path))} --tokenizer MODEL "
            f"--num-docs {50 if count == 128 else 10} --count {count} --out tasks.jsonl`; --num-docs makes longer ones."
        )
    for marks, convert in _FORMATS:
        if marks <= fields:
            return convert
    if any(name in fields for name in QUESTIONS):
        return _convert_any
    raise DataError(
        f"{location}: unknown format with fields {', '.join(map(str, fields)) or '(none)'}. Fix: name the question "
        f"{', '.join(QUESTIONS[:-1])} or {QUESTIONS[-1]}, and the answer {', '.join(ANSWERS[:-1])} or {ANSWERS[-1]}."
    )


def _convert_own(read: Fields, short: bool) -> Task:
    metadata = read.open("metadata").all()
    return Task(
        task_id=read.text("task_id"),
        question=read.text("question"),
        answers=read.answers("answers", short=short, empty=_needs_no_answer(metadata)),
        context=read.context(),
        metadata=metadata,
        earlier_messages=read.messages("earlier_messages"),
    )


def _convert_training_row(read: Fields, short: bool) -> Task:
    earlier, question, _ = read.chat("prompt")
    return Task(
        task_id="",
        question=question,
        answers=read.open("reward_model").answers("ground_truth", short=short, numbers=True),
        context=read.context(),
        metadata={**read.open("extra_info").all(), **read.keep("data_source")},
        earlier_messages=earlier,
    )


def _convert_flashrag(read: Fields, short: bool) -> Task:
    """Convert a record whose id is unique only within its source: Search-R1 trains on NQ and HotpotQA together."""
    source, name = read.name("data_source"), read.name("id")
    return Task(
        task_id="-".join(filter(None, (source, name))) if name else "",
        question=read.text("question"),
        answers=read.answers("golden_answers", short=short),
        context=_read_context(read),
        metadata={"kind": source} if source else {},
    )


def _convert_evaluation(read: Fields, short: bool) -> Task:
    """Convert MemAgent's evaluation records; those of RULER have `outputs`, and the file's name tells their metric."""
    kind = "part" if read.location.path.stem.startswith("eval_qa") else "all"
    metric = {"metric": f"string_match_{kind}"} if "outputs" in read.values else {}
    return Task(
        task_id="",
        question=read.text("input"),
        answers=read.answers("outputs" if metric else "answers", short=short),
        context=read.context(),
        metadata={**read.keep("num_docs", "index", "answer_prefix", "length"), **metric},
    )


def _convert_slime(read: Fields, short: bool) -> Task:
    earlier, question, _ = read.chat("prompt")
    inner = read.open("metadata")
    metadata = {name: value for name, value in inner.all().items() if name not in ("context", "ground_truth")}
    if inner.values.get("ground_truth") is None:
        empty = _needs_no_answer(metadata)
        answers = read.answers("label", short=short, numbers=True, empty=empty)
    else:
        answers = inner.answers("ground_truth", short=short, numbers=True)
    return Task(
        task_id="",
        question=question,
        answers=answers,
        context=inner.context() or _read_context(read),
        metadata=metadata,
        earlier_messages=earlier,
    )


def _convert_orchestration(read: Fields, short: bool) -> Task:
    inner, rest, context = read.open("metadata").all(), read.all(), _read_context(read)
    taken = {"problem", "answer", "metadata", *(["context"] if context else [])}
    metadata = {name: value for name, value in rest.items() if name not in taken} | inner
    is_conversation, named = _is_conversation(metadata), replace(read, values=metadata)
    if is_conversation and not rest.get("problem"):
        read = replace(read, values={**rest, "problem": _user_request(metadata.get("example"))})
    return Task(
        task_id=named.name(named.first(("eid", "index")) or "eid") or "",
        question=read.text("problem"),
        answers=read.answers("answer", short=short, empty=is_conversation),
        context=context,
        metadata=metadata,
    )


def _needs_no_answer(metadata: Record) -> bool:
    """Return whether an environment grades a task: one of tau2, or one that the record names."""
    return _is_conversation(metadata) or ("environment" in metadata and isinstance(metadata.get("index"), int))


def _is_conversation(metadata: Record) -> bool:
    """Return whether a task is a conversation of tau2 (func_call), which its environment grades."""
    return metadata.get("category") == "func_call"


def _user_request(example: Any) -> Any:
    """Find what the user of a conversation asks for: a func_call of the released data has no problem of its own."""
    for name in ("user_scenario", "instructions", "task_instructions"):
        if isinstance(example, Mapping):
            example = example.get(name)
    return example


def _read_frames(read: Fields) -> dict[str, Any]:
    """Return FRAMES's metadata; a question's kind is its types of reasoning."""
    metadata = {name: read.take(name) for name in ("wiki_links", "reasoning_types") if name in read.values}
    return {**metadata, "kind": metadata["reasoning_types"]} if "reasoning_types" in metadata else metadata


def _read_hle(read: Fields) -> dict[str, Any]:
    """Return HLE's metadata; nothing for a record of another set that has an answer_type."""
    if "answer_type" not in read.values or not {"category", "image"} & read.values.keys():
        return {}
    kind, kept = read.name("category") or "unknown", read.name("answer_type")
    return {"kind": kind, "answer_type": kept, "image": bool(read.take("image"))}


def _read_context(read: Fields) -> str:
    """Return the field `context` if it is a text."""
    return read.context() if isinstance(read.values.get("context"), str) else ""


def _convert_any(read: Fields, short: bool) -> Task:
    name, answer = read.first(QUESTIONS) or "", read.first(ANSWERS)
    earlier, question, reply = read.chat(name, may_reply=name == "messages")
    if answer is not None:
        answers = read.answers(answer, short=short, numbers=True)
    elif reply is not None:
        answers = (read.read_answer(reply, name, short),)
    else:
        raise read.error("answer", "is missing", 'add the final answer, such as "answer": "72"')
    if reply is not None:
        read.notes.add("the last reply is the answer" if answer is None else "the reply after the question is not used")
    metadata = read.keep("metadata")
    with suppress(DataError):  # what is no object is kept as it is
        metadata = read.open("metadata").all()
    return Task(
        task_id=read.name(read.first(("task_id", "id")) or "id") or "",
        question=question,
        answers=answers,
        context=_read_context(read),
        metadata={**_read_hle(read), **metadata, **read.keep("url", "year", "source"), **_read_frames(read)},
        earlier_messages=earlier,
    )


_FORMATS: tuple[tuple[frozenset[str], Callable[[Fields, bool], Task]], ...] = (
    (frozenset({"task_id", "question", "answers"}), _convert_own),
    (frozenset({"question", "golden_answers"}), _convert_flashrag),
    (frozenset({"prompt", "reward_model"}), _convert_training_row),
    (frozenset({"prompt", "label"}), _convert_slime),
    (frozenset({"input", "outputs"}), _convert_evaluation),
    (frozenset({"input", "answers"}), _convert_evaluation),
    (frozenset({"problem", "answer", "tools"}), _convert_orchestration),
)
