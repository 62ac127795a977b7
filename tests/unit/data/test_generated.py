"""Generated records with one wrong field, 200 for each format: each is read right, or refused with line and field."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from core.data import DataError, read_tasks
from core.types import Task

RECORDS = 200
WHO = [{"role": "user", "content": "Who?"}]
MESSAGES = [{"role": "system", "content": "Be brief."}, *WHO]

# A format: its right record, and what each field is. `text` is a text, `chat` a text or messages, `answer` one or more
# texts, `number` such a text or a number, `name` a text or an integer that may be missing, `kept` metadata of any
# form, `context` a text that may be missing, `object` any object that may be missing, `any` one or anything
# else, `truth` an object that may not be missing.
FORMATS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "own": (
        {"task_id": "a", "question": "Who?", "answers": ["Bob"], "context": "c", "metadata": {"k": 1}},
        {"task_id": "id", "question": "text", "answers": "answer", "context": "context", "metadata": "object"},
    ),
    "flashrag": (
        {"id": "a", "question": "Who?", "golden_answers": ["Bob"], "data_source": "nq"},
        {"id": "name", "question": "text", "golden_answers": "answer", "data_source": "name"},
    ),
    "verl": (
        {"prompt": WHO, "reward_model": {"ground_truth": "Bob"}, "context": "c", "extra_info": {}, "data_source": "d"},
        {
            "prompt": "chat",
            "reward_model": "truth",
            "reward_model.ground_truth": "number",
            "context": "context",
            "extra_info": "object",
            "data_source": "kept",
        },
    ),
    "slime": (
        {"prompt": "Who?", "label": "Bob", "metadata": {"context": "c"}},
        {"prompt": "chat", "label": "number", "metadata": "object", "metadata.context": "context"},
    ),
    "ruler": (
        {"input": "Who?", "outputs": ["Bob"], "context": "c", "answer_prefix": "It is", "length": 9, "index": 1},
        {"input": "text", "outputs": "answer", "context": "context", "answer_prefix": "kept", "length": "kept"},
    ),
    "evaluation": (
        {"input": "Who?", "answers": ["Bob"], "context": "c", "num_docs": 50, "index": 3},
        {"input": "text", "answers": "answer", "context": "context", "num_docs": "kept", "index": "kept"},
    ),
    "orchestration": (
        {"problem": "Who?", "answer": "Bob", "tools": [], "category": "qa", "eid": "a"},
        {"problem": "text", "answer": "answer", "eid": "name"},
    ),
    "frames": ({"Prompt": "Who?", "Answer": "Bob"}, {"Prompt": "chat", "Answer": "number"}),
    "hle": (
        {"id": "a", "question": "Who?", "answer": "Bob", "answer_type": "exactMatch", "category": "Math"},
        {"id": "name", "question": "text", "answer": "answer", "answer_type": "name", "category": "name"},
    ),
    "gsm8k": ({"question": "Who?", "answer": "So.\n#### Bob"}, {"question": "chat", "answer": "number"}),
    "aime": (
        {"id": "a", "problem": "Who?", "answer": "Bob", "url": "u", "year": 2024, "metadata": {}},
        {"id": "name", "problem": "chat", "answer": "number", "url": "kept", "year": "kept", "metadata": "any"},
    ),
    "chat": ({"messages": MESSAGES, "answer": "Bob"}, {"messages": "chat", "answer": "number"}),
    "trl": ({"prompt": MESSAGES, "solution": "Bob"}, {"prompt": "chat", "solution": "number"}),
}
WRONG: dict[str, Any] = {
    "null": None,
    "empty": "",
    "blank": " ",
    "lines": "a\nb",
    "number": 7,
    "float": 7.5,
    "nan": math.nan,
    "true": True,
    "list": ["x"],
    "object": {"x": "y"},
    "nested": [["x"]],
    "deep": {"x": {"y": None}},
}
MISTAKES = (*WRONG, "missing", "repeated")


def make_wrong(record: Mapping[str, Any], field: str, mistake: str) -> str:
    """Return the JSON of a record of which one field is wrong."""
    name, _, inner = field.partition(".")
    parts = []
    for key, value in record.items():
        text = json.dumps(value)
        if key == name and inner:
            text = make_wrong(value, inner, mistake)
        elif key == name and mistake == "missing":
            continue
        elif key == name and mistake == "repeated":
            parts.append(f'"{key}": {text}')
        elif key == name:
            text = json.dumps(WRONG[mistake])
        parts.append(f'"{key}": {text}')
    return "{" + ", ".join(parts) + "}"


def is_right(task: Task, right: Task, field: str, kind: str, mistake: str) -> bool:
    """Say whether `task`, which was read from a record with a mistake, is what that record says."""
    absent = mistake in ("missing", "null")
    same = (task.question, task.answers, task.context) == (right.question, right.answers, right.context)
    match kind:
        case "text" | "chat":
            return mistake == "lines" and task.question == "a\nb" and task.answers == right.answers
        case "answer" | "number":
            numbers = {"number": ("7",), "float": ("7.5",)} if kind == "number" else {}
            expected = {"list": ("x",), **numbers}.get(mistake)
            return task.answers == expected and task.question == right.question
        case "id":
            return same and {"lines": "a\nb", "missing": "x-0"}.get(mistake) == task.task_id
        case "name":
            return same and (absent or mistake in ("empty", "blank", "lines", "number"))
        case "kept":
            value = task.metadata.get(field)
            return same and value == (None if absent or mistake == "nan" else WRONG.get(mistake))
        case "context":
            context = "" if absent else WRONG.get(mistake)
            return task.context == context and (task.question, task.answers) == (right.question, right.answers)
        case "any":
            read = WRONG.get(mistake) if isinstance(WRONG.get(mistake), dict) else {"metadata": WRONG.get(mistake)}
            return same and (absent or mistake == "nan" or read.items() <= task.metadata.items())
        case "object":
            return task.answers == right.answers and (absent or mistake in ("object", "deep"))
    return False


@pytest.mark.parametrize("name", FORMATS)
def test_one_wrong_field_is_read_right_or_refused_by_name(name: str, tmp_path: Path) -> None:
    record, kinds = FORMATS[name]
    rng, path = Random(name), tmp_path / "x.jsonl"

    def read(text: str) -> Task:
        path.write_text(text + "\n")
        return read_tasks(path, require_context=False, keep_messages=True)[0]

    right = read(json.dumps(record))
    assert (right.question, right.answers) == ("Who?", ("Bob",))
    read_right = 0
    for _ in range(RECORDS):
        field, mistake = rng.choice(list(kinds)), rng.choice(MISTAKES)
        text = make_wrong(record, field, mistake)
        try:
            task = read(text)
        except DataError as error:
            message = str(error)
            names = set(field.split(".")) | ({"question", "answer"} if mistake == "missing" else set())
            assert message.startswith(f"{path}:1: "), text
            assert any(part in message for part in names), (text, message)
            assert "Fix: " in message, text
        else:
            assert is_right(task, right, field, kinds[field], mistake), (field, mistake, text, task)
            read_right += 1
    assert 0 < read_right < RECORDS
