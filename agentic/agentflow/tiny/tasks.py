"""Tasks of the `tiny` preset: questions of six kinds about a made-up world, with their answers.

    python -m agentic.agentflow.tiny.tasks --split train --count 2048 --out runs/data/agentflow-tiny/train.jsonl

A question is of the split to which all that it looks up belongs (of the split of its expression if it looks up
nothing), so no question, and no fact, is in two splits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

from agentic.agentflow.tiny.questions import CODER, SYMBOLS, Operand, Question, compute
from agentic.agentflow.tiny.world import ATTRIBUTES, ENTITIES, SPLITS, Split, know, split_of
from core.data import write_jsonl
from core.types import Task


def number(rng: Random) -> int:
    return rng.randint(10, 99)


def fact(rng: Random) -> str:
    return f"{rng.choice(ATTRIBUTES)} of {rng.choice(ENTITIES)}"


def operation(rng: Random) -> str:
    return rng.choice(list(SYMBOLS))


def _mixed(rng: Random, item: bool = False) -> Question:
    operands: list[Operand] = [fact(rng), number(rng)]
    rng.shuffle(operands)
    return Question(operands[0], operation(rng), operands[1], item)


def _two_facts(rng: Random) -> Question:
    left = right = fact(rng)
    while left == right:
        right = fact(rng)
    return Question(left, operation(rng), right)


KINDS: Mapping[str, tuple[float, Callable[[Random], Question]]] = {
    "compute": (0.08, lambda rng: Question(number(rng), operation(rng), number(rng))),
    "look_up": (0.08, lambda rng: Question(fact(rng))),
    "look_up_compute": (0.22, _mixed),
    "compute_look_up": (0.18, lambda rng: Question(number(rng), operation(rng), number(rng), item=True)),
    "twice_compute": (0.22, _two_facts),
    "all_three": (0.22, lambda rng: _mixed(rng, item=True)),
}
"""Share of each kind, and how one is drawn."""


def draw(rng: Random, split: Split) -> tuple[str, Question]:
    """A kind, and a question of it that belongs to `split`."""
    kind = rng.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
    while True:
        question = KINDS[kind][1](rng)
        if split_of_question(question) == split:
            return kind, question


def solve(question: Question) -> dict[str, str]:
    """The results of the right steps, by sub-goal and in their order; the last is the answer."""
    results: dict[str, str] = {}
    while step := question.next_step(results):
        tool, sub_goal = step
        results[sub_goal] = compute(sub_goal) if tool == CODER else know(sub_goal)
    return results


def split_of_question(question: Question) -> Split | None:
    """None if what it looks up is of several splits."""
    steps = list(solve(question))
    looked_up = [step for step in steps if know(step) != "unknown"]
    splits = {split_of(step) for step in looked_up or steps}
    return splits.pop() if len(splits) == 1 else None


def generate(split: Split, count: int, seed: int = 0) -> list[Task]:
    """`count` different questions. Raises ValueError if the split has not so many."""
    rng = Random(f"{split}-{seed}")
    tasks: dict[str, Task] = {}
    for _ in range(20 * count):
        if len(tasks) == count:
            break
        kind, question = draw(rng, split)
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
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        tasks = generate(options.split, options.count, options.seed)
    except ValueError as error:
        sys.exit(f"error: {error}")
    write_jsonl(options.out, tasks)


if __name__ == "__main__":
    main()
