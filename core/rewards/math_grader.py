r"""Grades a mathematical answer: as a number, as words, by math-verify, then, if there is one, by an LLM judge.

| rule | decides | because |
|---|---|---|
| number | label and answer are numbers, in any form: 073, $73$, 1,000, 18 cm, 55_8 | AIME and DAPO have no others |
| text | the label is words: Monday | math-verify takes a word for a product of its letters |
| math_verify | any other expression | it runs in a process that can be killed (math_verifier.py) |
| judge | no rule found the two equal, and the label is no integer | used if one is given (judge.py) |

Only the last `\boxed{}` after the thoughts counts. A text that is nothing but a number needs no box. README.md says
which forms are the same.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from core.rewards.answer_grader import find_answer, is_same_text
from core.rewards.answers import SPACELESS, fold_text, unwrap
from core.rewards.numbers import HAN_NUMBER, is_same_number, parse_integer, parse_label, parse_number

if TYPE_CHECKING:  # a method's file is imported without them
    from core.rewards.judge import Ask

MathRule = Literal[
    "number", "text", "math_verify", "judge", "no_verdict", "no_reply", "timeout", "error", "no_answer", "too_long"
]

MAX_CHARACTERS = 1000
"""Limits how many more characters than the longest label an answer may have."""


@dataclass(frozen=True, slots=True)
class Grade:
    """Holds a verdict, the rule `by` which it was reached, and the answer that was read (None if there was none).

    `timeout` and `error`: math-verify was killed or failed. `no_verdict` and `no_reply`: the judge was to decide and
    failed. `no_answer`: there is no finished box. `too_long`: no label is so long, and math-verify would take seconds.
    The answer counts as wrong in all six.
    """

    correct: bool
    by: MathRule
    parsed: str | None


class MathGrader:
    """Applies the rules in turn.

    `timeout_s` limits one comparison by math-verify; `workers` comparisons run at once, in processes that start when
    first needed.
    """

    def __init__(self, *, timeout_s: float = 10.0, workers: int = 1):
        from core.rewards.judge import Judge
        from core.rewards.math_verifier import MathVerifier

        self._judge = Judge()
        self._verifier = MathVerifier(timeout_s=timeout_s, workers=workers)

    async def grade(self, question: str, text: str, answers: Sequence[str], judge: Ask | None = None) -> Grade:
        """Return whether the answer in `text` equals any of `answers`, and by which rule. `judge` asks an LLM.

        Raises:
            ValueError: `answers` is empty.
        """
        if not answers or isinstance(answers, str):
            raise ValueError(f"answers must be a list with at least one answer, got {answers!r}")
        answer = find_answer(text)
        if answer is None:
            return Grade(False, "no_answer", None)
        if len(answer) > MAX_CHARACTERS + max(map(len, answers)):
            return Grade(False, "too_long", answer)
        grade = grade_by_rules(answer, answers) or await self._verify(answer, answers)
        settled = grade.correct or all(parse_label(each) and parse_integer(each) for each in answers)
        if judge is not None and not settled:
            verdict = await self._judge.compare(judge, question, answer, answers)
            if verdict != "different":
                grade = replace(grade, correct=verdict == "same", by="judge" if verdict == "same" else verdict)
        return grade

    async def close(self) -> None:
        """End the processes of math-verify."""
        await asyncio.to_thread(self._verifier.close)

    async def _verify(self, answer: str, answers: Sequence[str]) -> Grade:
        outcome = await self._verifier.compare(fold_text(answer), [fold_text(each) for each in answers])
        if outcome == "equal" or outcome == "different":
            return Grade(outcome == "equal", "math_verify", answer)
        return Grade(False, outcome, answer)


def grade_by_rules(answer: str, answers: Sequence[str]) -> Grade | None:
    """Apply the rules for numbers and words; return None where math-verify must decide about one of `answers`.

    An integer is an answer that nobody need compute: 12+13 is wrong where 25 is asked for.
    """
    found, plain = parse_number(answer), unwrap(fold_text(answer))
    by: MathRule = "text"
    is_open = False
    for label in answers:
        wanted, plain_label = parse_label(label), unwrap(fold_text(label))
        if wanted is not None and (found is not None or (parse_integer(label) and _ARITHMETIC.search(plain))):
            right, by = found is not None and is_same_number(found, wanted), "number"
        elif (same := _is_same_in_base(plain, plain_label)) is not None:
            right, by = same, "number"
        elif _WORDS.fullmatch(plain_label):
            right = is_same_text(answer, label)
        else:
            right = plain == plain_label
            is_open |= not right
        if right:
            return Grade(True, by, parse_integer(answer) or answer)
    return None if is_open else Grade(False, by, parse_integer(answer) or answer)


def _is_same_in_base(answer: str, label: str) -> bool | None:
    """Compare digits with their base, as in `55_8`, which math-verify takes for 55.

    Return None if neither has a base, or one is neither that nor a plain number.
    """
    found = [_BASED.fullmatch(text) for text in (answer, label)]
    if not any(found):
        return None
    numbers, bases = [], []
    for text, match in zip((answer, label), found, strict=True):
        digits = re.sub(r"[\s,()]|\\[,!]", "", match[1]) if match else text
        if match is None and parse_number(text) is None:
            return None
        numbers.append(parse_number(digits) or digits.casefold())
        bases.append(int(match[2] or match[3]) if match else 10)
    return bases[0] == bases[1] and numbers[0] == numbers[1]


_BASED = re.compile(
    r"(?:[A-Za-z] ?= ?)?(-?(?=[^_]*\d)\(?[\dA-Za-z](?:[\dA-Za-z, ]|\\[,!])*\)?)_(?:(\d+)|\{\(?(\d+)\)?\})"
)
_WORDS = re.compile(
    rf"(?=.*(?:[^\W\d_]{{3}}|[{SPACELESS}])|no\b)(?!.*\b(?:sin|cos|tan|log|exp|sqrt|inf)\b)"
    r"[^\W\d_][^\d\\{}()^_+=*/<>|\[\]]*",
    re.IGNORECASE,
)
"""Matches words, such as a day or a name. Other labels are expressions."""
_ARITHMETIC = re.compile(
    r"[\d)}!] ?(?:[-+*^×·]|\\(?:times|cdot)\b) ?[-\d({\\]|\\(?:sqrt|[dt]?binom)\b|\d!"
    rf"|\d(?:[ ~]|\\[,;:! ])*\\text ?\{{[^{{}}]*(?:{HAN_NUMBER}|hundred|dozen)"
)
