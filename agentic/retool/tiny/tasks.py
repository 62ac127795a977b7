"""Draws the tasks of the `tiny` preset: computations whose operators are made-up words.

    python -m agentic.retool.tiny.tasks --split train --count 2048 --out runs/data/retool-tiny/train.jsonl

`What is 352 blick 48 dax 71?` asks for 352 * 48 + 71 if `blick` means `*` and `dax` means `+`. No text says what a word
means. No two splits share a question, and no answer stands in its question or has a single digit.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal, get_args

from core.data import write_jsonl
from core.seeds import derive_seed
from core.types import Task

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

MEANINGS = {"blick": "*", "dax": "+", "fep": "-", "kiv": "%"}
"""Maps each word to the operator of Python that it means, with its precedence."""
OPERATORS = tuple(MEANINGS.values())
QUESTION = "What is {}?"


@dataclass(frozen=True, slots=True)
class Domain:
    """Says how many words a question has, one of `words`, and how many digits its first and other numbers have."""

    words: Sequence[int] = (1, 2)
    first_digits: int = 3
    other_digits: int = 2


DOMAINS: Mapping[str, Domain] = {
    "usual": Domain(),
    "larger-numbers": Domain(first_digits=5, other_digits=4),
    "longer": Domain(words=(3,)),
}
"""Names the domains of tasks. GRPO sees the first alone; the warm start has the form of all."""


@dataclass(frozen=True, slots=True)
class Computation:
    """Holds numbers and the operators between them: made-up words or those of Python."""

    numbers: tuple[int, ...]
    operators: tuple[str, ...]

    def __str__(self) -> str:
        pairs = zip(self.operators, self.numbers[1:], strict=True)
        return " ".join([str(self.numbers[0]), *(f"{operator} {number}" for operator, number in pairs)])

    @classmethod
    def read(cls, question: str) -> Computation:
        """Read the computation of a question."""
        words = re.findall(r"[^\s?]+", question)[2:]
        return cls(tuple(map(int, words[::2])), tuple(words[1::2]))

    def translate(self) -> Computation:
        """Return the program that computes the answer."""
        return Computation(self.numbers, tuple(MEANINGS[word] for word in self.operators))

    def compute(self) -> int:
        """Return the value of a program. Our own generator wrote it: numbers of two digits or more, and operators."""
        return int(eval(str(self), {"__builtins__": {}}))


def draw_computation(rng: Random, domain: Domain) -> Computation:
    """Draw a question's computation, whose answer cannot be read off the question."""
    while True:
        count = rng.choice(domain.words)
        digits = (domain.first_digits, *[domain.other_digits] * count)
        numbers = tuple(rng.randrange(10 ** (n - 1), 10**n) for n in digits)
        drawn = Computation(numbers, tuple(rng.choices(list(MEANINGS), k=count)))
        value = abs(drawn.translate().compute())
        if value > 9 and value not in numbers:
            return drawn


def find_split(question: str) -> Split:
    """Return the split of a question: six of eight belong to training."""
    place = derive_seed(question) % 8
    return "dev" if place == 0 else "test" if place == 1 else "train"


def generate(split: Split, count: int, seed: int = 0, domain: str = "usual") -> list[Task]:
    """Draw `count` different questions of a split."""
    rng = Random(f"{split}-{seed}")
    tasks: dict[str, Task] = {}
    while len(tasks) < count:
        drawn = draw_computation(rng, DOMAINS[domain])
        question = QUESTION.format(drawn)
        if find_split(question) == split:
            name, answer = f"{split}-{len(tasks):05d}", str(drawn.translate().compute())
            metadata = {"words": len(drawn.operators)}
            tasks.setdefault(question, Task(name, question, (answer,), metadata=metadata))
    return list(tasks.values())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write tasks of the tiny preset.")
    parser.add_argument("--split", choices=SPLITS, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--domain", choices=DOMAINS, default="usual", help="how long and how large computations are")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    if options.count > 4096:
        sys.exit(f"error: --count {options.count}: give at most 4096")
    write_jsonl(options.out, generate(options.split, options.count, options.seed, options.domain))


if __name__ == "__main__":
    main()
