"""Writes conversations for the `tiny` preset's warm start. They show the form of calls and answers, and nothing else.

Which thing is looked up and which name is answered is drawn at random, and what the tool says is made up. So nobody
tells the policy which thing to look up, which name to answer, or any fact: that is left to RL.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

from agentic.agent.tiny.tasks import draw_question
from agentic.agent.tiny.world import ATTRIBUTES, LOOK_UP, NAMES, THINGS, describe


@dataclass(frozen=True, slots=True)
class LookupDemonstration:
    """Holds a conversation: the question, the call, what the tool says, and the answer."""

    question: str
    call: str
    result: str
    answer: str


def demonstrate(rng: Random) -> LookupDemonstration:
    """Draw a conversation. Names and things begin with a space, as words inside of a sentence do."""
    _, things, question = draw_question(rng, THINGS)
    thing, attribute = rng.choice(things), rng.choice(ATTRIBUTES)
    facts = {known: rng.choice(NAMES) for known in ATTRIBUTES}
    result = describe(thing, facts, rng.getrandbits(32))
    return LookupDemonstration(question, write_call(f" {thing}"), result, f" {attribute} {facts[attribute]}")


def write_call(thing: str) -> str:
    call = json.dumps({"name": LOOK_UP.name, "arguments": {"thing": thing}})
    return f"<tool_call>\n{call}\n</tool_call>"
