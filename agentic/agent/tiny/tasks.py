"""Draws the tasks of the `tiny` preset: who owns one of four things.

    python -m agentic.agent.tiny.tasks --split train --count 2048 --out runs/data/agent-tiny/train.jsonl

A question names four things, and asks about one. What `look_up` tells of that thing holds the answer and three other
names. No thing is in two splits.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

from agentic.agent.tiny.world import ASKED, SPLITS, THINGS_OF, Split, find_facts
from core.data import write_jsonl
from core.types import Task

FORMS = (
    "Who is the owner of the {thing}? Beside it are the {first}, the {second} and the {third}.",
    "Here are the {first}, the {second} and the {third}. Who is the owner of the {thing}?",
)


def write_question(rng: Random, thing: str, others: Sequence[str]) -> str:
    """Ask for the owner of a thing, and name three others."""
    first, second, third = others
    return rng.choice(FORMS).format(thing=thing, first=first, second=second, third=third)


def generate(split: Split, count: int, seed: int = 0) -> list[Task]:
    """Draw `count` different questions."""
    rng = Random(f"{split}-{seed}")
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        thing, *others = rng.sample(THINGS_OF[split], 4)
        question = write_question(rng, thing, others)
        tasks.setdefault(question, Task(f"{split}-{len(tasks):05d}", question, (find_facts(thing)[ASKED],)))
    return list(tasks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tasks of the tiny preset.")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_jsonl(options.out, generate(options.split, options.count, options.seed))


if __name__ == "__main__":
    main()
