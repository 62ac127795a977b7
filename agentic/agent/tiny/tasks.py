"""Draws the tasks of the `tiny` preset: who has to do with one of four things.

    python -m agentic.agent.tiny.tasks --split train --count 2048 --out runs/data/agent-tiny/train.jsonl

A question names four things, and asks about one. What `look_up` tells of that thing holds the answer and three other
names. No thing is in two splits.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from agentic.agent.tiny.world import ATTRIBUTES, SPLITS, THINGS_OF, Split, find_fact
from core.data import write_jsonl
from core.types import Task

FORMS = (
    "Who is the {attribute} of the {thing}? Beside it are the {first}, the {second} and the {third}.",
    "Here are the {first}, the {second} and the {third}. Who is the {attribute} of the {thing}?",
)


def draw_question(rng: Random, known: Sequence[str]) -> tuple[str, list[str], str]:
    """Return the attribute that is asked for, four of the `known` things, of which it is the first's, and the text."""
    attribute, things = rng.choice(ATTRIBUTES), rng.sample(known, 4)
    thing, first, second, third = things
    text = rng.choice(FORMS).format(attribute=attribute, thing=thing, first=first, second=second, third=third)
    return attribute, things, text


def generate(split: Split, count: int, seed: int = 0) -> list[Task]:
    """Draw `count` different questions."""
    rng = Random(f"{split}-{seed}")
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        attribute, things, text = draw_question(rng, THINGS_OF[split])
        name = find_fact(attribute, things[0])
        tasks.setdefault(text, Task(f"{split}-{len(tasks):05d}", text, (f"{attribute} {name}", name)))
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
    sys.exit(main())
