"""Scripts rollouts for the `tiny` preset's warm start. Their annotator reads and writes well and routes by habit.

The annotator first writes down the kind of the question and the user's preference. Then he calls by arbitrary habits:
for each kind and preference he has a favourite expert, suitable or not, and searches often or seldom. The policy learns
to read and to write from him. RL teaches it which expert is good at what, which one is expensive or slow, and what each
kind and preference asks for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from agentic.toolorchestra.tiny.facts import ATTRIBUTES, THINGS, assign_split
from agentic.toolorchestra.tiny.scripted_experts import search_query
from agentic.toolorchestra.tiny.tasks import CHEAP, KINDS, OWN, PREFERENCES, SEARCH, STRONG, draw_task
from core.types import Task

ANSWERERS = (STRONG, OWN, CHEAP)


@dataclass(frozen=True, slots=True)
class HabitualAnnotator:
    """Says how often the annotator follows his habits; otherwise chance decides.

    The habits are a pattern that ignores what the experts can do: the favourite expert is the best one in 3 of 15 cases
    (5 by chance), and the habit of searching is right in 7.
    """

    habit: float = 0.7

    def favourite(self, kind: str, preference: str) -> str:
        return ANSWERERS[(list(KINDS).index(kind) + list(PREFERENCES).index(preference)) % len(ANSWERERS)]

    def searches(self, kind: str, preference: str) -> bool:
        return (list(KINDS).index(kind) // 2 + list(PREFERENCES).index(preference)) % 2 == 0


@dataclass(frozen=True, slots=True)
class RoutingDemonstration:
    """Holds one turn of the orchestrator as text; `lines` are what the rollout gathered before it."""

    task: Task
    lines: tuple[str, ...]
    thought: str
    call: str


def demonstrate(rng: Random, annotator: HabitualAnnotator) -> Iterator[RoutingDemonstration]:
    """Yield the turns of one rollout on a training task. What a search finds is made up."""
    task = draw_task(rng, "train", "demonstration")
    case = task.metadata["kind"], task.metadata["preference"]
    thought, lines = " ".join(("", *case)), tuple[str, ...]()
    if annotator.searches(*case) if rng.random() < annotator.habit else rng.random() < 0.5:
        yield RoutingDemonstration(task, lines, thought, f" {SEARCH}")
        lines = (make_up_search(rng, task.question),)
    answerer = annotator.favourite(*case) if rng.random() < annotator.habit else rng.choice(ANSWERERS)
    yield RoutingDemonstration(task, lines, thought, f" {answerer}")


def make_up_search(rng: Random, question: str) -> str:
    """Return the line that a rollout keeps of a search: the fact that the question asks for, with a random value."""
    fact = search_query(question)
    if fact == question:
        fact = f"{rng.choice(ATTRIBUTES)} of {rng.choice([t for t in THINGS if assign_split(t) == 'train'])}"
    return f"search {SEARCH} = [1] {fact.rpartition(' ')[2]} The {fact} is {rng.randint(10, 99)}."
