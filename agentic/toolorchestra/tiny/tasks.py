"""Draws the tasks of the `tiny` preset: questions of five kinds about made-up facts, each with a user's preference.

    python -m agentic.toolorchestra.tiny.tasks --split train --count 2048 --out runs/data/toolorchestra-tiny/train.jsonl

The table shows the best route for each kind and preference; a wrong answer is worth nothing. A test in
tests/unit/agentic/toolorchestra finds the same routes: it runs every route of up to three calls through the real
experts and the real reward.

| kind | question | cheap | fast | own (answer-2) |
|---|---|---|---|---|
| easy | What is the first letter of lamp? | answer-3 | answer-1 | answer-2 |
| fact | What is the price of lamp? | search-1, answer-3 | answer-1 | search-1, answer-2 |
| sum | What is 37 plus 48? | answer-2 | answer-1 | answer-2 |
| mixed | What is the price of lamp plus 12? | search-1, answer-2 | answer-1 | search-1, answer-2 |
| hard | What is 37 times 48? | answer-1 | answer-1 | answer-1 |

No question, and no thing or expression in one, is in two splits. `--other-preference` writes the same questions, each
with another preference, and `--other-wishes` with the same preference in other sentences.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from agentic.toolorchestra.tiny.facts import ATTRIBUTES, SPLITS, THINGS, Split, assign_split
from agentic.toolorchestra.tiny.scripted_experts import EXPERTS, answer
from core.data import write_jsonl
from core.types import Task

Route = tuple[str, ...]
SEARCH, STRONG, OWN, CHEAP = "search-1", "answer-1", "answer-2", "answer-3"
MODEL_MAPPING = {SEARCH: "scout", STRONG: "sage", OWN: "abacus", CHEAP: "reader"}

PRICES = {"sage": (10.0, 30.0), "abacus": (0.6, 1.8), "reader": (0.2, 0.6), "scout": (0.4, 1.2)}
"""Gives dollars for a million tokens in and out, before a record's own factor."""
FACTORS = (0.8, 1.0, 1.25)


@dataclass(frozen=True, slots=True)
class Preference:
    """Describes what a user cares for: weights of the reward, the share of such users, and ways to say it.

    Nobody says `other_wishes` in training; `--other-wishes` asks with them.
    """

    weights: Mapping[str, float]
    share: float
    wishes: tuple[str, ...]
    other_wishes: tuple[str, ...]


PREFERENCES: Mapping[str, Preference] = {
    "cheap": Preference(
        {"accuracy": 0.4, "cost": 1.0},
        0.5,
        (
            "Keep it cheap.",
            "Spend as little as you can.",
            "Mind the cost.",
            "Do not spend much.",
            "I want a cheap answer.",
            "My money is short.",
            "Keep the price down.",
            "Please save money.",
            "A low cost matters most.",
            "I care about the price.",
        ),
        (
            "Please mind the price.",
            "I do not want to spend much money.",
            "The cost matters most to me.",
            "Keep the answer cheap.",
            "Save as much money as you can.",
        ),
    ),
    "fast": Preference(
        {"accuracy": 0.4, "latency": 1.0},
        0.15,
        (
            "Be quick.",
            "I am in a hurry.",
            "Answer fast.",
            "Do not take long.",
            "I want a quick answer.",
            "My time is short.",
            "Keep the wait down.",
            "Please save time.",
            "A short wait matters most.",
            "I care about the speed.",
        ),
        (
            "Please hurry.",
            "I do not want to wait long.",
            "The speed matters most to me.",
            "Keep the answer quick.",
            "Save as much time as you can.",
        ),
    ),
    "own": Preference(
        {"accuracy": 0.4, OWN: 1.0, "cost": 0.25},
        0.35,
        (
            f"Use our own model {OWN}.",
            f"I trust {OWN} most.",
            f"Leave it to {OWN}.",
            f"Please ask {OWN}.",
            f"I want an answer of {OWN}.",
            f"{OWN} is my favourite.",
        ),
        (
            f"I want you to use {OWN}.",
            f"Leave the answer to our own {OWN}.",
            f"{OWN} matters most to me.",
        ),
    ),
}

BEST: Mapping[str, Mapping[str, Route]] = {
    "easy": {"cheap": (CHEAP,), "fast": (STRONG,), "own": (OWN,)},
    "fact": {"cheap": (SEARCH, CHEAP), "fast": (STRONG,), "own": (SEARCH, OWN)},
    "sum": {"cheap": (OWN,), "fast": (STRONG,), "own": (OWN,)},
    "mixed": {"cheap": (SEARCH, OWN), "fast": (STRONG,), "own": (SEARCH, OWN)},
    "hard": {"cheap": (STRONG,), "fast": (STRONG,), "own": (STRONG,)},
}

_THINGS = {split: [name for name in THINGS if assign_split(name) == split] for split in SPLITS}


def draw_thing(rng: Random, split: Split) -> str:
    return rng.choice(_THINGS[split])


def draw_fact(rng: Random, split: Split) -> str:
    return f"the {rng.choice(ATTRIBUTES)} of {draw_thing(rng, split)}"


def _expression(rng: Random, split: Split, symbol: str) -> str:
    while True:
        expression = f"{rng.randint(10, 99)} {symbol} {rng.randint(10, 99)}"
        if assign_split(expression) == split:
            return expression


def _mixture(rng: Random, split: Split, symbol: str) -> str:
    return f" {symbol} ".join(rng.sample([draw_fact(rng, split), str(rng.randint(10, 99))], 2))


def _hard(rng: Random, split: Split) -> str:
    return rng.choice((_expression, _mixture))(rng, split, "times")


KINDS: Mapping[str, tuple[float, Callable[[Random, Split], str]]] = {
    "easy": (0.14, lambda rng, split: f"the {rng.choice(('first', 'last'))} letter of {draw_thing(rng, split)}"),
    "fact": (0.26, draw_fact),
    "sum": (0.22, lambda rng, split: _expression(rng, split, rng.choice(("plus", "minus")))),
    "mixed": (0.24, lambda rng, split: _mixture(rng, split, rng.choice(("plus", "minus")))),
    "hard": (0.14, _hard),
}
"""Maps each kind to its share of the questions and to the function that draws one."""


def draw_task(rng: Random, split: Split, name: str) -> Task:
    """Draw one task of `split`."""
    kind = rng.choices(list(KINDS), [share for share, _ in KINDS.values()])[0]
    question = f"What is {KINDS[kind][1](rng, split)}?"
    factor = {model: rng.choice(FACTORS) for model in PRICES}
    metadata = {
        "category": "qa",
        "kind": kind,
        "model_mapping": MODEL_MAPPING,
        "tool_pricing": {
            model: {
                "input_tokens_per_million": round(price[0] * factor[model], 4),
                "output_tokens_per_million": round(price[1] * factor[model], 4),
            }
            for model, price in PRICES.items()
        },
    }
    right = answer(EXPERTS["sage"], question, {})
    preference = rng.choices(list(PREFERENCES), [preference.share for preference in PREFERENCES.values()])[0]
    return set_preference(rng, Task(name, question, (right,), metadata=metadata), preference)


def set_preference(rng: Random, task: Task, name: str, *, other_wishes: bool = False) -> Task:
    """Return the task for a user who has the preference `name`."""
    preference, kind = PREFERENCES[name], task.metadata["kind"]
    user = {
        "preference": name,
        "case": f"{kind}, {name}",
        "instruction": rng.choice(preference.other_wishes if other_wishes else preference.wishes),
        "pref_vec": dict(preference.weights),
    }
    return Task(task.task_id, task.question, task.answers, metadata={**task.metadata, **user})


def with_other_preference(task: Task) -> Task:
    """Return the same question for another user, who has the next of PREFERENCES, or the first after the last."""
    names = list(PREFERENCES)
    following = names[(names.index(task.metadata["preference"]) + 1) % len(names)]
    return set_preference(Random(task.task_id), task, following)


def with_other_wish(task: Task) -> Task:
    """Return the same question for a user who has the same preference and says it as nobody does in training."""
    return set_preference(Random(task.task_id), task, task.metadata["preference"], other_wishes=True)


def generate(split: Split, count: int, seed: int = 0) -> list[Task]:
    """Draw `count` tasks; no two have the same question and instruction. Raises ValueError if the split has too few."""
    rng = Random(f"{split}-{seed}")
    tasks: dict[tuple[str, str], Task] = {}
    repeats = 0
    while len(tasks) < count and repeats < 1000:
        task, before = draw_task(rng, split, f"{split}-{len(tasks):05d}"), len(tasks)
        tasks.setdefault((task.question, task.metadata["instruction"]), task)
        repeats = repeats + 1 if len(tasks) == before else 0
    if len(tasks) < count:
        raise ValueError(f"split {split} has fewer than {count} different tasks; ask for fewer")
    return list(tasks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tasks of the tiny preset.")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--seed", type=int, default=0)
    users = parser.add_mutually_exclusive_group()
    users.add_argument("--other-preference", action="store_true", help="the same questions with other preferences")
    users.add_argument("--other-wishes", action="store_true", help="the same preferences in other sentences")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        tasks = generate(options.split, options.count, options.seed)
    except ValueError as error:
        sys.exit(f"error: {error}")
    if options.other_preference:
        tasks = list(map(with_other_preference, tasks))
    elif options.other_wishes:
        tasks = list(map(with_other_wish, tasks))
    write_jsonl(options.out, tasks)


if __name__ == "__main__":
    main()
