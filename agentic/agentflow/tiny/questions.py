"""The `tiny` preset's questions: a small grammar, and the right next step for any question and results so far.

| | question | right steps |
|---|---|---|
| compute | What is 37 times 48? | python_coder |
| look up | What is the price of lamp? | base_generator |
| look up, compute | What is the price of lamp minus 12? | base_generator, python_coder |
| compute, look up | Which item has number 37 times 48? | python_coder, base_generator |
| twice, compute | What is the price of lamp plus the age of boat? | base_generator twice, python_coder |
| all three | Which item has number 37 times the age of boat? | base_generator, python_coder, base_generator |
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

CODER, GENERATOR = "python_coder", "base_generator"
SYMBOLS = {"plus": "+", "minus": "-", "times": "*"}

Operand = int | str
"""A number, or what is to be looked up, such as `price of lamp`."""


@dataclass(frozen=True, slots=True)
class Question:
    """The value of `left`, or of `left operation right`, or the item that has that number."""

    left: Operand
    operation: str | None = None
    right: Operand = 0
    item: bool = False

    @classmethod
    def read(cls, text: str) -> Question:
        """The question of a text. Raises ValueError if it is none of the grammar's."""
        operand = r"(\d+|the \w+ of \w+)"
        asked = re.fullmatch(rf"(What is|Which item has number) {operand}(?: ({'|'.join(SYMBOLS)}) {operand})?\?", text)
        if not asked:
            raise ValueError(f"not a question of the tiny preset (agentic/agentflow/tiny/questions.py): {text!r}")
        left, right = (int(o) if o.isdigit() else o.removeprefix("the ") for o in (asked[2], asked[4] or "0"))
        return cls(left, asked[3], right, item=asked[1].startswith("Which"))

    @property
    def text(self) -> str:
        left, right = (f"the {o}" if isinstance(o, str) else str(o) for o in (self.left, self.right))
        asked = f"{left} {self.operation} {right}" if self.operation else left
        return f"{'Which item has number' if self.item else 'What is'} {asked}?"

    @property
    def facts(self) -> tuple[str, ...]:
        """What is to be looked up before anything can be computed."""
        operands = (self.left, self.right) if self.operation else (self.left,)
        return tuple(dict.fromkeys(o for o in operands if isinstance(o, str)))

    @property
    def numbers(self) -> tuple[str, ...]:
        operands = (self.left, self.right) if self.operation else (self.left,)
        return tuple(str(o) for o in operands if isinstance(o, int))

    @property
    def needs(self) -> int:
        """How many results the answer takes: a matter of the question's form alone."""
        return len(self.facts) + (self.operation is not None) + self.item

    def next_step(self, results: Mapping[str, str]) -> tuple[str, str] | None:
        """The right tool and sub-goal after `results` (by sub-goal); None when nothing is left to do."""
        for fact in self.facts:
            if fact not in results:
                return GENERATOR, fact
        left, right = (results[o] if isinstance(o, str) else str(o) for o in (self.left, self.right))
        value = left
        if self.operation:
            expression = f"{left} {SYMBOLS[self.operation]} {right}"
            if expression not in results:
                return CODER, expression
            value = results[expression]
        if self.item and f"item {value}" not in results:
            return GENERATOR, f"item {value}"
        return None


def compute(expression: str) -> str:
    """The value of `37 * 48`, `+` and `-` likewise: what the grammar itself says, beside what the sandbox says."""
    left, symbol, right = expression.split()
    a, b = int(left), int(right)
    return str({"+": a + b, "-": a - b, "*": a * b}[symbol])
