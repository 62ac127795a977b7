"""Draws the tasks of the `tiny` preset: who owns one of four things.

    python -m agentic.agent.tiny.tasks --split train --count 2048 --out runs/data/agent-tiny/train.jsonl

A question names four things, and asks about one. What `look_up` tells of that thing holds the answer and three other
names. No thing is in two splits, and no two tasks have the same facts: `metadata.world` is the number of the task's own
world. `--others` names more or fewer things beside the asked one.
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
    "Who is the owner of the {thing}? Beside it are {others}.",
    "Here are {others}. Who is the owner of the {thing}?",
)
OTHERS = 3
"""Counts the things beside the asked one, in training."""


def write_question(rng: Random, thing: str, others: Sequence[str]) -> str:
    """Ask for the owner of a thing, and name others."""
    *before, last = (f"the {other}" for other in others)
    return rng.choice(FORMS).format(thing=thing, others=f"{', '.join(before)} and {last}")


def generate(split: Split, count: int, seed: int = 0, others: int = OTHERS) -> list[Task]:
    """Draw `count` different questions, each in a world of its own."""
    rng = Random(f"{split}-{seed}")
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        thing, *beside = rng.sample(THINGS_OF[split], 1 + others)
        question, world = write_question(rng, thing, beside), rng.getrandbits(32)
        answer = find_facts(thing, world)[ASKED]
        tasks.setdefault(question, Task(f"{split}-{len(tasks):05d}", question, (answer,), metadata={"world": world}))
    return list(tasks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tasks of the tiny preset.")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--others", type=int, default=OTHERS, choices=range(2, 12))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_jsonl(options.out, generate(options.split, options.count, options.seed, options.others))


if __name__ == "__main__":
    main()
