"""Scripted turns for the `tiny` preset's warm start, by an annotator who reads and writes well and routes by habit.

He thinks first: of which kind is the question, and what does the user care for? Then he calls, by habits that chance
gave him (`Annotator`): for each kind and wish there is an expert whom he favours, good for it or not, and he searches
once or not at all. Now and then his call cannot be used. The policy learns to read and to write from him. Which expert is
good at what, who is dear or slow, and what a kind or a wish asks for, is left to RL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from agentic.toolorchestra.scripted_experts import search_query
from agentic.toolorchestra.tasks import CHEAP, OWN, SEARCH, STRONG, SWIFT, draw
from agentic.toolorchestra.world import ATTRIBUTES, THINGS, split_of
from core.types import Task

ANSWERERS = (STRONG, SWIFT, OWN, CHEAP)


@dataclass(frozen=True, slots=True)
class Annotator:
    """How often he lets his favourite answer, the odds of answer-1 to answer-4 if not, and how often he errs."""

    favour: float = 0.6
    odds: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25)
    malformed: float = 0.03

    def searches(self, kind: str, preference: str) -> float:
        """How often he searches, once at the most."""
        return Random(f"search {kind} {preference}").choice((0.2, 0.8))

    def answerer(self, rng: Random, kind: str, preference: str) -> str:
        favourite = Random(f"favourite {kind} {preference}").choice(ANSWERERS)
        return favourite if rng.random() < self.favour else rng.choices(ANSWERERS, self.odds)[0]


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn of the orchestrator as text; `lines` are what the rollout has gathered before it."""

    task: Task
    lines: tuple[str, ...]
    thought: str
    call: str


def demonstrate(rng: Random, annotator: Annotator, max_turns: int = 4) -> Iterator[Demonstration]:
    """The turns of one rollout on a training task. What a search finds is made up."""
    task, lines = draw(rng, "train", "demonstration"), list[str]()
    kind, preference = task.metadata["kind"], task.metadata["preference"]
    thought = f" {kind} {preference}"
    found_before = False
    for _ in range(max_turns):
        if rng.random() < annotator.malformed:
            yield Demonstration(task, tuple(lines), thought, " answer")
            lines.append("? = missing argument")
        elif not found_before and rng.random() < annotator.searches(kind, preference):
            yield Demonstration(task, tuple(lines), thought, f" search {SEARCH}")
            lines.append(found(rng, task.question))
            found_before = True
        else:
            yield Demonstration(task, tuple(lines), thought, f" answer {annotator.answerer(rng, kind, preference)}")
            return


def found(rng: Random, question: str, count: int = 1) -> str:
    """A line as the rollout keeps it of a search: the fact asked for first, if one is, with any value."""
    asked = search_query(question)
    facts = [asked] if asked != question else []
    while len(facts) < count:
        facts.append(f"{rng.choice(ATTRIBUTES)} of {rng.choice([t for t in THINGS if split_of(t) == 'train'])}")
    texts = (
        f"[{place}] {fact.rpartition(' ')[2]} The {fact} is {rng.randint(10, 99)}."
        for place, fact in enumerate(facts, 1)
    )
    return " ".join((f"search {SEARCH} =", *texts))
