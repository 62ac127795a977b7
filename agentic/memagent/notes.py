"""Reads what the policy wrote after a section: the memory, and the words of the options that stand behind it.

    text               is the new memory
    KEEP               leaves the memory as it was (gate_update)
    ... RECALL words   behind either: asks for the earlier memory that these words find (recall)
    ... STOP           last of all: no further section is read (gate_exit)

The memory keeps the ids that were sampled; only the ids of these words, and the white space before them, are cut off.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentic.memagent.config import MemAgentSection
from agentic.memagent.prompts import KEEP, RECALL, STOP
from core.policy.base import Decode
from core.text.tokenizer import Ids


@dataclass(frozen=True, slots=True)
class Note:
    """Holds the memory after one section, whether it is the old one, what to recall (or ""), and whether to stop."""

    memory: Ids
    kept: bool = False
    query: str = ""
    stops: bool = False


def read_note(written: Ids, memory: Ids, config: MemAgentSection, decode: Decode) -> Note:
    """Read `written`, a completion without its special tokens, that followed `memory`.

    Where nothing stands before RECALL or STOP, the memory stays as it was, too.
    """
    rest, query, stops = written, "", False
    if config.gate_exit and decode(rest).split()[-1:] == [STOP]:
        rest, _ = split_before(rest, STOP, decode)
        stops = True
    if config.recall and RECALL in decode(rest).split():
        rest, query = split_before(rest, RECALL, decode)
    nothing = rest != written and not rest
    kept = nothing or (config.gate_update and decode(rest).strip() == KEEP)
    return Note(memory if kept else rest, kept, query, stops)


def split_before(ids: Ids, word: str, decode: Decode) -> tuple[Ids, str]:
    """Return the ids before the last `word`, without white space at their end, and the text behind it."""
    start = next(place for place in reversed(range(len(ids))) if word in decode(ids[place:]))
    behind = decode(ids[start:]).rpartition(word)[2].strip()
    while start and not decode(ids[start - 1 : start]).strip():
        start -= 1
    return ids[:start], behind
