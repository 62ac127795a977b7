"""1,000 seeded predictions for the scorers, mixing what breaks them: cases, articles, braces, substrings, nothing."""

from __future__ import annotations

import random
from typing import NamedTuple

WORDS = (
    "Paris paris the a an The 19 1995 95 yes no noanswer Yes. north northern New York new-york York's "
    "1234567 0.5 \\frac12 \\frac{1}{2} 1/2 3,000 café 北京 U.S. U.S.A. John's, (Johnson) *bold* answer is"
).split()
ANSWERS = (
    "Paris", "paris", "New York", "the", "19", "1995", "yes", "no", "north", "1234567", "0.5", "1/2", "\\frac{1}{2}",
    "John's", "U.S.", "The answer", "café", "北京", "A", "3,000", "\\text{ cm}", "York",
)  # fmt: skip
LATEX = (
    "1", "2", "3", "x", "=", "k=", "0.5", ".5", " .5", "\\frac12", "\\frac{1}{2}", "\\frac1{72}", "\\dfrac{3}{4}",
    "\\tfrac34", "1/2", "a/b", "\\sqrt3", "\\sqrt{3}", "\\sqrt", "\\frac", "\\left(", "\\right)", "\\!", " ", "\\$",
    "\\%", "^\\circ", "^{\\circ}", "\\text{ cm}", "{", "}", "\\\\", "\n", "/",
)  # fmt: skip


class Case(NamedTuple):
    """`latex` holds two expressions to compare."""

    response: str
    answers: list[str]
    latex: tuple[str, str]


def cases(count: int = 1000, seed: int = 0) -> list[Case]:
    rng = random.Random(seed)
    return [Case(_response(rng, answers := _answers(rng)), answers, _latex(rng)) for _ in range(count)]


def _answers(rng: random.Random) -> list[str]:
    return rng.sample(ANSWERS, rng.randint(1, 4))


def _response(rng: random.Random, answers: list[str]) -> str:
    if rng.random() < 0.15:
        answer = rng.choice(answers)
        return rng.choice((answer, f"The {answer}.", answer.upper(), f"{answer} {answer}"))
    words = [rng.choice([*WORDS, *answers, *answers]) for _ in range(rng.choice((0, 1, 1, 2, 5, 12, 60)))]
    text = rng.choice((" ", ", ", "\n")).join(words)
    inner = rng.choice([*answers, *answers, rng.choice(WORDS), text[:20]])
    text += rng.choice(
        (
            "",
            "",
            f" \\boxed{{{inner}}}",
            f" \\boxed{{{inner.upper()} }}.",
            f" \\boxed{{{inner}",
            f" \\boxed {inner}$ .",
            f" \\fbox{{{inner}}}",
            f" \\boxed{{x}} \\boxed{{ {inner} }}",
            f" \\boxed{{\\text{{{inner}}}}}",
            f" therefore, the answer is {inner}.",
            f" the answer is **{inner}**..",
            f" The answer is {inner}",
            f" \\boxed{{{inner}}}" + " pad" * rng.choice((10, 70, 90)),
        )
    )
    return text


def _latex(rng: random.Random) -> tuple[str, str]:
    first = "".join(rng.choice(LATEX) for _ in range(rng.randint(0, 4)))
    second = rng.choice(
        (
            first.replace(" ", ""),
            first.replace("\\frac12", "\\frac{1}{2}").replace("1/2", "\\frac{1}{2}"),
            first.replace("dfrac", "frac").replace("\\%", ""),
            first.replace("\\sqrt3", "\\sqrt{3}").replace("0.5", ".5"),
            first + rng.choice(LATEX),
            "".join(rng.choice(LATEX) for _ in range(rng.randint(0, 2))),
        )
    )
    return first, second
