"""Scripted turns for the `tiny` preset's warm start, by an annotator who reads and writes well and routes by habit.

He thinks first: of which kind is the question, and what does the user care for? Then he calls, by arbitrary habits:
for each kind and wish he has a favourite expert, good for it or not, and searches often or seldom. The policy learns
to read and to write from him. Which expert is good at what, who is dear or slow, and what a kind or a wish asks for,
is left to RL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from agentic.toolorchestra.tiny.scripted_experts import search_query
from agentic.toolorchestra.tiny.tasks import CHEAP, KINDS, OWN, PREFERENCES, SEARCH, STRONG, draw
from agentic.toolorchestra.tiny.world import ATTRIBUTES, THINGS, split_of
from core.types import Task

ANSWERERS = (STRONG, OWN, CHEAP)


@dataclass(frozen=True, slots=True)
class Annotator:
    """How often he follows his habits; else chance decides for him.

    They are a pattern that has nothing to do with the experts: the favourite is the right one in 3 of 15 cases (chance
    would be 5), searching often or seldom is right in 7.
    """

    habit: float = 0.7

    def favourite(self, kind: str, preference: str) -> str:
        return ANSWERERS[(list(KINDS).index(kind) + list(PREFERENCES).index(preference)) % len(ANSWERERS)]

    def searches(self, kind: str, preference: str) -> bool:
        return (list(KINDS).index(kind) // 2 + list(PREFERENCES).index(preference)) % 2 == 0


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn of the orchestrator as text; `lines` are what the rollout has gathered before it."""

    task: Task
    lines: tuple[str, ...]
    thought: str
    call: str


def demonstrate(rng: Random, annotator: Annotator) -> Iterator[Demonstration]:
    """The turns of one rollout on a training task. What a search finds is made up."""
    task = draw(rng, "train", "demonstration")
    case = task.metadata["kind"], task.metadata["preference"]
    thought, lines = " ".join(("", *case)), tuple[str, ...]()
    if annotator.searches(*case) if rng.random() < annotator.habit else rng.random() < 0.5:
        yield Demonstration(task, lines, thought, f" {SEARCH}")
        lines = (found(rng, task.question),)
    answerer = annotator.favourite(*case) if rng.random() < annotator.habit else rng.choice(ANSWERERS)
    yield Demonstration(task, lines, thought, f" {answerer}")


def found(rng: Random, question: str) -> str:
    """A line as the rollout keeps it of a search: the fact asked for, if one is, with any value."""
    fact = search_query(question)
    if fact == question:
        fact = f"{rng.choice(ATTRIBUTES)} of {rng.choice([t for t in THINGS if split_of(t) == 'train'])}"
    return f"search {SEARCH} = [1] {fact.rpartition(' ')[2]} The {fact} is {rng.randint(10, 99)}."
