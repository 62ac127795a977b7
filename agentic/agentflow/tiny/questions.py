"""Defines the `tiny` preset's questions: a small grammar, and the right next step after any results.

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
"""Is a number, or a fact to look up, such as `price of lamp`."""


@dataclass(frozen=True, slots=True)
class ToyQuestion:
    """Asks for the value of `left`, or of `left operation right`, or for the item that has this value as its number."""

    left: Operand
    operation: str | None = None
    right: Operand = 0
    item: bool = False

    @classmethod
    def read(cls, text: str) -> ToyQuestion:
        """Parse a question. Raises ValueError for a text outside the grammar."""
        operand = r"(\d+|the \w+ of \w+)"
        match = re.fullmatch(rf"(What is|Which item has number) {operand}(?: ({'|'.join(SYMBOLS)}) {operand})?\?", text)
        if not match:
            raise ValueError(f"not a question of the tiny preset (agentic/agentflow/tiny/questions.py): {text!r}")
        left, right = (int(o) if o.isdigit() else o.removeprefix("the ") for o in (match[2], match[4] or "0"))
        return cls(left, match[3], right, item=match[1].startswith("Which"))

    @property
    def text(self) -> str:
        left, right = (f"the {o}" if isinstance(o, str) else str(o) for o in (self.left, self.right))
        value = f"{left} {self.operation} {right}" if self.operation else left
        return f"{'Which item has number' if self.item else 'What is'} {value}?"

    @property
    def facts(self) -> tuple[str, ...]:
        """Return the facts that must be looked up before anything can be computed."""
        operands = (self.left, self.right) if self.operation else (self.left,)
        return tuple(dict.fromkeys(o for o in operands if isinstance(o, str)))

    @property
    def numbers(self) -> tuple[str, ...]:
        operands = (self.left, self.right) if self.operation else (self.left,)
        return tuple(str(o) for o in operands if isinstance(o, int))

    @property
    def needs(self) -> int:
        """Return how many results the answer takes; it follows from the form of the question alone."""
        return len(self.facts) + (self.operation is not None) + self.item

    def next_step(self, results: Mapping[str, str]) -> tuple[str, str] | None:
        """Return the right tool and sub-goal after `results` (sub-goal -> result); None when nothing is left to do."""
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
    """Compute an expression such as `37 * 48`, without the sandbox."""
    left, symbol, right = expression.split()
    a, b = int(left), int(right)
    return str({"+": a + b, "-": a - b, "*": a * b}[symbol])
