"""Scripts single turns for the `tiny` preset's warm start. They have the right form and show no route.

A turn first writes down the kind of the question and what the user wants. Some users name the tool to call, which is
then called. Where a user has a preference instead, chance draws the call, with or without a search before it. The
policy learns to read, to write, and to mind what the user wants. RL teaches it which expert is good at what, which one
is expensive or slow, and what each kind and preference asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from agentic.toolorchestra.tiny.facts import ATTRIBUTES, THINGS, assign_split
from agentic.toolorchestra.tiny.scripted_experts import search_query
from agentic.toolorchestra.tiny.tasks import CHEAP, OWN, SEARCH, STRONG, draw_task
from core.types import Task

CALLS = (SEARCH, STRONG, OWN, CHEAP)
REQUESTS = ("Call {alias}.", "{alias}, please.", "Call {alias} and no other.", "Only {alias} will do.")
"""Are wishes of users who order a tool. No user of a task does; users of the preference `own` name it as a
favourite, and chance draws their calls too."""
REQUESTED = 0.4
"""Is the share of such users."""


@dataclass(frozen=True, slots=True)
class RoutingDemonstration:
    """Holds one turn of the orchestrator as text; `lines` are what the rollout gathered before it."""

    task: Task
    lines: tuple[str, ...]
    thought: str
    call: str


def draw_demonstration(rng: Random) -> RoutingDemonstration:
    """Draw one turn on a training task, half of them after a search. What a search finds is made up."""
    task = draw_task(rng, "train", "demonstration")
    call = rng.choice(CALLS)
    lines = (make_up_search(rng, task.question),) if rng.random() < 0.5 else ()
    if rng.random() >= REQUESTED:
        return RoutingDemonstration(task, lines, write_thought(task, task.metadata["preference"]), f" {call}")
    wish = {"instruction": rng.choice(REQUESTS).format(alias=call)}
    return RoutingDemonstration(
        replace(task, metadata={**task.metadata, **wish}), lines, write_thought(task, call), f" {call}"
    )


def write_thought(task: Task, wanted: str) -> str:
    return f" {task.metadata['kind']} {wanted}"


def make_up_search(rng: Random, question: str) -> str:
    """Return the line that a rollout keeps of a search: the fact that the question asks for, with a random value."""
    fact = search_query(question)
    if fact == question:
        fact = f"{rng.choice(ATTRIBUTES)} of {rng.choice([t for t in THINGS if assign_split(t) == 'train'])}"
    return f"search {SEARCH} = [1] {fact.rpartition(' ')[2]} The {fact} is {rng.randint(10, 99)}."
