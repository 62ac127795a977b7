"""Draws the tasks of the `tiny` preset: questions of six kinds about made-up facts, with their answers.

    python -m agentic.agentflow.tiny.tasks --split train --count 2048 --out runs/data/agentflow-tiny/train.jsonl

A question belongs to the split of the facts that it looks up, or of its expression if it looks up nothing. So no
question and no fact is in two splits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from agentic.agentflow.tiny.facts import ATTRIBUTES, ENTITIES, OTHER_ENTITIES, SPLITS, Split, assign_split, look_up
from agentic.agentflow.tiny.questions import CODER, SYMBOLS, Operand, ToyQuestion, compute
from core.data import write_jsonl
from core.types import Task


@dataclass(frozen=True, slots=True)
class Domain:
    """Says what questions ask about: the things, and how many digits a number may have, each as likely."""

    entities: Sequence[str] = ENTITIES
    digits: Sequence[int] = (2,)
    required: Literal["numbers", "facts"] | None = None
    """Names what every question of a data file has."""

    def draw_number(self, rng: Random) -> int:
        digits = rng.choice(self.digits)
        return rng.randint(10 ** (digits - 1), 10**digits - 1)

    def draw_fact(self, rng: Random) -> str:
        return f"{rng.choice(ATTRIBUTES)} of {rng.choice(self.entities)}"


DOMAINS = {
    "usual": Domain(),
    "larger-numbers": Domain(digits=(3,), required="numbers"),
    "other-things": Domain(OTHER_ENTITIES, required="facts"),
}
"""Names the domains of tasks. GRPO sees the first alone; a question of another has at least one of its numbers or
things. The warm start has numbers of three digits in its demonstrations, and the other things in its drills."""


def draw_operation(rng: Random) -> str:
    return rng.choice(list(SYMBOLS))


def _computation(rng: Random, domain: Domain, item: bool = False) -> ToyQuestion:
    return ToyQuestion(domain.draw_number(rng), draw_operation(rng), domain.draw_number(rng), item)


def _mixture(rng: Random, domain: Domain, item: bool = False) -> ToyQuestion:
    operands: list[Operand] = [domain.draw_fact(rng), domain.draw_number(rng)]
    rng.shuffle(operands)
    return ToyQuestion(operands[0], draw_operation(rng), operands[1], item)


def _two_facts(rng: Random, domain: Domain) -> ToyQuestion:
    left = right = domain.draw_fact(rng)
    while left == right:
        right = domain.draw_fact(rng)
    return ToyQuestion(left, draw_operation(rng), right)


KINDS: Mapping[str, tuple[float, Callable[[Random, Domain], ToyQuestion]]] = {
    "compute": (0.08, _computation),
    "look_up": (0.08, lambda rng, domain: ToyQuestion(domain.draw_fact(rng))),
    "look_up_compute": (0.22, _mixture),
    "compute_look_up": (0.18, lambda rng, domain: _computation(rng, domain, item=True)),
    "twice_compute": (0.22, _two_facts),
    "all_three": (0.22, lambda rng, domain: _mixture(rng, domain, item=True)),
}
"""Maps each kind to its share of the questions and to the function that draws one."""


def draw_kind(rng: Random) -> str:
    return rng.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]


def draw_question(rng: Random, split: Split, domain: Domain, kind: str) -> ToyQuestion:
    """Draw a question of a kind that belongs to `split`."""
    while True:
        question = KINDS[kind][1](rng, domain)
        if find_split(question) == split:
            return question


def solve(question: ToyQuestion) -> dict[str, str]:
    """Return the results of the right steps, by sub-goal and in their order; the last is the answer."""
    results: dict[str, str] = {}
    while step := question.next_step(results):
        tool, sub_goal = step
        results[sub_goal] = compute(sub_goal) if tool == CODER else look_up(sub_goal)
    return results


def find_split(question: ToyQuestion) -> Split | None:
    """Return the split of a question; None if its facts belong to several splits."""
    steps = list(solve(question))
    facts = [step for step in steps if look_up(step) != "unknown"]
    splits = {assign_split(step) for step in facts or steps}
    return splits.pop() if len(splits) == 1 else None


def generate(split: Split, count: int, seed: int = 0, domain: str = "usual") -> list[Task]:
    """Draw `count` different questions. Raises ValueError if the split has too few."""
    rng = Random(f"{split}-{seed}")
    required = DOMAINS[domain].required
    tasks: dict[str, Task] = {}
    for _ in range(20 * count):
        if len(tasks) == count:
            break
        kind = draw_kind(rng)
        question = draw_question(rng, split, DOMAINS[domain], kind)
        if required and not getattr(question, required):
            continue
        answer = list(solve(question).values())[-1]
        name = f"{split}-{len(tasks):05d}"
        tasks.setdefault(question.text, Task(name, question.text, (answer,), metadata={"kind": kind}))
    else:
        raise ValueError(f"split {split} has fewer than {count} different questions; ask for fewer")
    return list(tasks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tasks of the tiny preset.")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--domain", choices=DOMAINS, default="usual", help="what the questions ask about")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        tasks = generate(options.split, options.count, options.seed, options.domain)
    except ValueError as error:
        sys.exit(f"error: {error}")
    write_jsonl(options.out, tasks)


if __name__ == "__main__":
    main()
