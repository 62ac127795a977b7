"""Writes conversations for the `tiny` preset's warm start. They show the form of programs and answers, and no meaning.

A program joins a stretch of the question's numbers by operators drawn at random, whatever the words between them. What
it printed is then answered, right or wrong, or another program follows. Now and then one of the question's numbers is
answered at once. So nobody tells the policy what a word means, which stretch to compute, or that it pays to compute.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from agentic.retool.prompts import CODE, CODE_END
from agentic.retool.tiny.tasks import DOMAINS, OPERATORS, QUESTION, Computation, draw_computation

ANSWER = "\\boxed{{ {}}}"
AGAIN = 0.2
"""Says how often another program follows a program; a demonstration has at most two."""


@dataclass(frozen=True, slots=True)
class ReToolDemonstration:
    """Holds a conversation: programs with what they printed, and the answer."""

    question: str
    programs: tuple[tuple[str, str], ...]
    answer: str


def demonstrate(rng: Random, answer_at_once: float) -> ReToolDemonstration:
    """Draw a conversation about a new question of any domain."""
    asked = draw_computation(rng, DOMAINS[rng.choice(list(DOMAINS))])
    question = QUESTION.format(asked)
    if rng.random() < answer_at_once:
        return ReToolDemonstration(question, (), write_answer(rng.choice(asked.numbers)))
    drawn = [draw_program(rng, asked) for _ in range(2 if rng.random() < AGAIN else 1)]
    programs = tuple((write_program(program), str(program.compute())) for program in drawn)
    return ReToolDemonstration(question, programs, write_answer(drawn[-1].compute()))


def draw_program(rng: Random, asked: Computation) -> Computation:
    """Draw a stretch of the numbers that has two or more, and operators to join them."""
    first, last = sorted(rng.sample(range(len(asked.numbers)), 2))
    return Computation(asked.numbers[first : last + 1], tuple(rng.choices(OPERATORS, k=last - first)))


def write_program(program: Computation) -> str:
    return f"{CODE} {program}{CODE_END}"


def write_answer(value: int) -> str:
    return ANSWER.format(value)
