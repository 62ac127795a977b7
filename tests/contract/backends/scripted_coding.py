"""Coding in real workspaces: repairs, wrong edits, sub-agents, and outputs so long that the conversation is summed up.

So the rollouts of one group become one to several rows each.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from agentic.coding.prompts import SUBAGENT, SUMMARY_REQUEST
from agentic.coding.repairs.generate import apply_patch, draw_record
from agentic.coding.repairs.mutations import list_mutations
from agentic.coding.rollout import SPEC
from agentic.coding.tools import number_lines
from agentic.coding.world import DONE, write_edit
from core.types import Task
from tests.contract.backends.case import REFUSED, Case, load_tiny, refuse_some
from tests.contract.backends.serving import SLOW
from tests.kit import call

RECORDS = [draw_record("train", number, "function") for number in range(8)]


def make_recipe(**rollout: Any) -> dict[str, Any]:
    section = {
        "tools": ["bash", "edit", "delegate"],
        "max_turns": 6,
        "subagent_turns": 3,
        "max_tokens": 400,  # words have more tokens here than in the preset's own vocabulary
        "max_summary_tokens": 100,
        "context_tokens": 1700,
        "test_timeout_s": 200,
        "remember": 0,  # which of two equal diffs is graded first depends on the time
    }
    # A busy machine must not make a rollout fail in one of two plays of the same one.
    return load_tiny(SPEC, {"deadline_s": 280.0} | rollout, section, "model.max_model_len=null")


def coder(prompt: str, chance: Random) -> str:
    """Ends in a third of its answers, and repairs in another; now and then a prompt is refused."""
    refuse_some(prompt, chance)
    if SUMMARY_REQUEST in prompt.rpartition("user\n")[2]:
        return chance.choice(("I have looked at it.", "It is a comparison."))
    if SUBAGENT in prompt:
        return chance.choice((call("bash", command="ls"), "It is in the loop.", "Nobody knows."))
    path, broken, right = next(files for files in map(read_files, RECORDS) if number_lines(files[1]) in prompt)
    wrong = chance.choice(list_mutations(broken.strip())).source
    return chance.choice(
        [
            *[DONE] * 4,
            *[write_edit(path, broken, right)] * 4,
            write_edit(path, broken, wrong),
            call("delegate", question="Where is it?"),
            call("bash", command="seq 300"),
            "<tool_call>{",
        ]
    )


def read_files(record: dict[str, Any]) -> tuple[str, str, str]:
    """Return the path of a task's source, its text, and its text when it is repaired."""
    path, text = next(iter(record["metadata"]["repository"].items()))
    return path, text, apply_patch(text, record["metadata"]["patch"])


def make_tasks(count: int, word: str = "") -> list[Task]:
    return [make_task(f"task-{i}", RECORDS[i % len(RECORDS)], word) for i in range(count)]


def make_task(name: str, record: dict[str, Any], word: str = "") -> Task:
    statement = f"{record['prompt']} {word}"
    metadata = {**record["metadata"], "problem_statement": statement}
    return Task(name, statement, (record["label"],), metadata=metadata)


BROKEN = make_task("bad", RECORDS[0])
CASE = Case(
    spec=SPEC,
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[
        *make_tasks(6),
        *make_tasks(2, REFUSED),
        replace(BROKEN, metadata={**BROKEN.metadata, "workdir": "not/absolute"}),
    ],
    failures={"bad_task": True, "bad_request": False},
    slow=make_task("slow", RECORDS[0], SLOW),
    quick={"metadata": RECORDS[0]["metadata"]},
    reply=coder,
)
