"""Grades a short answer: it must be equal once normalised, or else an LLM judge, if there is one, decides.

ToolOrchestra grades questions this way (arXiv 2511.21689, section 3.2); its released code compares in lower case alone.
An empty answer, and one of more than 500 words, is wrong without asking the judge.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from core.rewards.judge import Ask, Judge
from core.rewards.qa import normalize_answer

MAX_WORDS = 500

AnswerRule = Literal["no_answer", "too_long", "equal", "different", "judge", "no_verdict", "no_reply"]
"""Names the rule that decided. `no_verdict` and `no_reply`: the judge gave no verdict; the answer counts as wrong."""


class AnswerGrader:
    """Grades short answers, by the `judge` where they are not equal once normalised."""

    def __init__(self, judge: Ask | None = None):
        self._ask = judge
        self._judge = Judge("question")

    async def grade(self, question: str, prediction: str, answers: Sequence[str]) -> tuple[bool, AnswerRule]:
        """Return whether `prediction` equals any of `answers`, and the rule that decided."""
        if not prediction.strip():
            return False, "no_answer"
        if len(prediction.split()) > MAX_WORDS:
            return False, "too_long"
        if any(prediction.strip().lower() == a.strip().lower() or _is_same(prediction, a) for a in answers):
            return True, "equal"
        if self._ask is None:
            return False, "different"
        verdict = await self._judge.compare(self._ask, question, prediction, answers)
        return verdict == "same", "judge" if verdict == "same" else verdict


_MARKS = re.compile(r"\d|[+*/^%=<>$€£#]|\.(?=\d)|(?<!\w)-(?=\S)|-(?=\d)")
"""Matches what normalising removes although a number or a formula needs it: signs, points, operators, units."""


def _is_same(prediction: str, answer: str) -> bool:
    """Return whether both are equal once normalised, with something left: "the" normalises to nothing, and so does "+".

    Normalising must not have removed what distinguishes -28 from 28, or 1.5 from 15.
    """
    prediction, answer = (text.replace("−", "-") for text in (prediction, answer))
    plain = normalize_answer(answer)
    return bool(plain) and normalize_answer(prediction) == plain and _find_marks(prediction) == _find_marks(answer)


def _find_marks(text: str) -> str:
    return "".join(_MARKS.findall(text))
