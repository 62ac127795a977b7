"""Draws the tasks of the `tiny` preset: who owns a thing, or where its owner lives.

    python -m agentic.search_r1.tiny.tasks --split train --count 4096 --out runs/data/search_r1-tiny/train.jsonl

The first kind takes one search. The second takes two, and only what the first one finds says what to search for next.
A question names another thing beside the asked one; `--others` names more.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from random import Random

from agentic.search_r1.tiny.world import OF_A_PERSON, OF_A_THING, SPLITS, THINGS, Split, find_facts
from core.data import write_jsonl
from core.types import Task

OWNER, HOME = OF_A_THING[0], OF_A_PERSON[0]
"""Are the facts that questions ask for."""
ASKS = {1: f"Who is the {OWNER} of the {{}}?", 2: f"Where is the {HOME} of the {OWNER} of the {{}}?"}
"""Maps the number of searches that a question takes to its words."""
FORMS = ("{ask} Beside it {others}.", "Here {others}. {ask}")
OTHERS = 1
"""Counts the things beside the asked one, in training."""


def write_question(rng: Random, searches: int, thing: str, others: Sequence[str]) -> str:
    """Ask about a thing, and name others before or after it."""
    listed = " and ".join(f"the {other}" for other in others)
    ask = ASKS[searches].format(thing)
    return rng.choice(FORMS).format(ask=ask, others=f"{'is' if len(others) == 1 else 'are'} {listed}")


def draw_task(rng: Random, task_id: str, split: Split, others: int = OTHERS) -> Task:
    """Draw a task of either kind."""
    thing, *beside = rng.sample(THINGS[split], 1 + others)
    searches = rng.choice(list(ASKS))
    owner = find_facts(thing)[OWNER]
    answer = owner if searches == 1 else find_facts(owner)[HOME]
    return Task(task_id, write_question(rng, searches, thing, beside), (answer,), metadata={"searches": searches})


def generate(split: Split, count: int, seed: int = 0, others: int = OTHERS) -> list[Task]:
    """Draw `count` tasks with different questions."""
    rng = Random(f"{split}-{seed}")
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        task = draw_task(rng, f"{split}-{len(tasks):05d}", split, others)
        tasks.setdefault(task.question, task)
    return list(tasks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tasks of the tiny preset.")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--others", type=int, default=OTHERS, choices=range(1, 7))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    write_jsonl(options.out, generate(options.split, options.count, options.seed, options.others))


if __name__ == "__main__":
    main()
