"""Writes conversations for the `tiny` preset's warm start. They show the form of an edit, and nothing of the repair.

Each shows a broken function and an edit that changes one place of it at random: another operator, bound, number, name
or order of arguments, drawn like the bugs. So nobody tells the policy which line is wrong, or what is right there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from agentic.coding.prompts import EDIT
from agentic.coding.repairs.functions import RECORDS, draw_report
from agentic.coding.repairs.mutations import draw_mutation, list_mutations

DONE = "done"
EDITS = 8
"""Counts the edits that are shown of one broken function."""


@dataclass(frozen=True, slots=True)
class EditDemonstration:
    """Holds a file with a bug and the turns of the policy: the call, and after it the end."""

    path: str
    text: str
    call: str
    end: str = DONE


def demonstrate(rng: Random) -> list[EditDemonstration]:
    """Draw a function of training, break it, and show edits of it."""
    record, field = rng.choice(RECORDS)
    broken = change_one_place(rng, draw_report(rng, "train", (record, field)).source)
    path, text = f"{record}s.py", f"{broken}\n"
    mutations = list_mutations(broken)
    edits = (draw_mutation(rng, mutations).source for _ in range(EDITS))
    return [EditDemonstration(path, text, write_edit(path, text, edited)) for edited in edits]


def change_one_place(rng: Random, source: str) -> str:
    """Change one place of a function at random, as the bugs are drawn."""
    return draw_mutation(rng, list_mutations(source)).source


def write_edit(path: str, before: str, after: str) -> str:
    """Write the call that makes `after` of `before`, which differs in one line."""
    pairs = enumerate(zip(before.splitlines(), after.splitlines(), strict=True), 1)
    line, text = next((number, new) for number, (old, new) in pairs if old != new)
    call = json.dumps({"name": EDIT.name, "arguments": {"path": path, "line": line, "text": text}})
    return f"<tool_call>\n{call}\n</tool_call>"
