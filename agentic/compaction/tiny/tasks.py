"""Draws the tasks of the `tiny` preset: pages that say who has what, and a question about one of the animals.

    python -m agentic.compaction.tiny.tasks --split train --count 4096 --pages 3 6 --out train.jsonl

No fact can be guessed, nothing tells the asked fact from the others, and it stands on a page drawn at random.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from random import Random

from agentic.compaction.tiny.words import ANIMALS, THINGS
from core.data import write_jsonl
from core.types import Task

QUESTION = "What does the {} have?"
FACT = " {} has {}."
FACTS_OF_A_PAGE = (2, 4)
MOST_PAGES = len(ANIMALS) // FACTS_OF_A_PAGE[1]


def draw_task(rng: Random, task_id: str, pages: tuple[int, int]) -> Task:
    """Draw a task of so many pages, at least and at most; every animal of it has one thing."""
    sizes = [rng.randint(*FACTS_OF_A_PAGE) for _ in range(rng.randint(*pages))]
    owners = rng.sample(ANIMALS, sum(sizes))
    facts = {owner: FACT.format(owner, rng.choice(THINGS)) for owner in owners}
    lines = iter(facts.values())
    context = "\n\n".join("".join(next(lines) for _ in range(size)) for size in sizes)
    asked = rng.choice(owners)
    return Task(task_id, QUESTION.format(asked), (facts[asked].strip(),), context, {"pages": len(sizes)})


def generate(split: str, count: int, pages: tuple[int, int], seed: int = 0) -> list[Task]:
    """Draw the `count` tasks of a split."""
    rng = Random(f"{split}-{seed}")
    return [draw_task(rng, f"{split}-{number:05d}", pages) for number in range(count)]


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tasks of the tiny preset.")
    parser.add_argument("--split", required=True, help="names the tasks: each split has tasks of its own")
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--pages", type=int, nargs=2, required=True, metavar=("LEAST", "MOST"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    least, most = options.pages
    if not 1 <= least <= most <= MOST_PAGES:
        sys.exit(f"error: --pages {least} {most}: give two numbers from 1 to {MOST_PAGES}, the smaller one first")
    write_jsonl(options.out, generate(options.split, options.count, (least, most), options.seed))


if __name__ == "__main__":
    main()
