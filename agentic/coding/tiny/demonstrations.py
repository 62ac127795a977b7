"""Writes conversations for the `tiny` preset's warm start. They show the form of an edit, and nothing of the repair.

Each shows a function with a wrong sign in its comparison. It repeats how the docstring compares, and then puts another
sign there at random, drawn like the bugs. So nobody tells the policy which sign the words ask for: one edit in
three happens to be right.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from agentic.coding.prompts import EDIT
from agentic.coding.repairs.functions import RECORDS, SIMPLE_WORDS, draw_report
from agentic.coding.repairs.mutations import draw_other_sign

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
    function = draw_report(rng, "train", (record, field), words=rng.choice(SIMPLE_WORDS))
    broken = draw_other_sign(rng, function.source).source
    path, text = f"{record}s.py", f"{broken}\n"
    edits = (draw_other_sign(rng, broken).source for _ in range(EDITS))
    return [EditDemonstration(path, text, write_turn(path, text, edited)) for edited in edits]


def write_turn(path: str, before: str, after: str) -> str:
    """Write how the docstring compares, and the call that makes `after` of `before`."""
    words = next(words for words in SIMPLE_WORDS if f" {words} the limit" in before)
    return f"It is {words} the limit.\n{write_edit(path, before, after)}"


def write_edit(path: str, before: str, after: str) -> str:
    """Write the call that makes `after` of `before`, which differs in one line."""
    pairs = enumerate(zip(before.splitlines(), after.splitlines(), strict=True), 1)
    line, text = next((number, new) for number, (old, new) in pairs if old != new)
    call = json.dumps({"name": EDIT.name, "arguments": {"path": path, "line": line, "text": text}})
    return f"<tool_call>\n{call}\n</tool_call>"
