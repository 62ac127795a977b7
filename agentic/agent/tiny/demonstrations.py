"""Writes conversations for the `tiny` preset's warm start. They show the form of calls and answers, and nothing else.

A call looks up any of the things that the question names, and an answer gives any of the names that the tool told; what
the tool says is made up. So nobody tells the policy which thing to look up, which name to answer, or any fact.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from agentic.agent.tiny.tasks import OTHERS, write_question
from agentic.agent.tiny.world import LOOK_UP, THINGS, describe, draw_facts


@dataclass(frozen=True, slots=True)
class LookupDemonstration:
    """Holds a conversation: the question, the call, what the tool says, and the answer."""

    question: str
    call: str
    result: str
    answer: str


def demonstrate(rng: Random) -> LookupDemonstration:
    """Draw a conversation. Names and things begin with a space, as words inside of a sentence do."""
    asked, *others = rng.sample(THINGS, 1 + OTHERS)
    facts = draw_facts(rng)
    thing, name = rng.choice((asked, *others)), rng.choice(list(facts.values()))
    question = write_question(rng, asked, others)
    return LookupDemonstration(question, write_call(f" {thing}"), describe(thing, facts), f" {name}")


def write_call(thing: str) -> str:
    call = json.dumps({"name": LOOK_UP.name, "arguments": {"thing": thing}})
    return f"<tool_call>\n{call}\n</tool_call>"
