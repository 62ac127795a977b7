"""Is a short answer right? Equal once normalised, or else, where there is one, an LLM judge says so.

As ToolOrchestra grades questions (arXiv 2511.21689, section 3.2); its released code compares in lower case alone.
An empty answer, and one of more than 500 words, is wrong unasked.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Literal

from core.rewards.judge import Ask, Judge
from core.rewards.qa import normalize_answer

MAX_WORDS = 500

By = Literal["no_answer", "too_long", "equal", "different", "judge", "no_verdict", "no_reply"]
"""The last two: the judge that was to decide did not; the answer counts as wrong."""


class AnswerGrader:
    """`counts` says how often each rule decided, and what the judge said (core/rewards/judge.py)."""

    def __init__(self, judge: Ask | None = None):
        self.counts: Counter[str] = Counter()
        self._judge = None if judge is None else Judge(judge, self.counts, subject="question")

    async def grade(self, question: str, prediction: str, answers: Sequence[str]) -> tuple[bool, By]:
        """Whether `prediction` equals any of `answers`, and the rule that decided."""
        correct, by = await self._grade(question, prediction, answers)
        self.counts[by] += 1
        return correct, by

    async def _grade(self, question: str, prediction: str, answers: Sequence[str]) -> tuple[bool, By]:
        if not prediction.strip():
            return False, "no_answer"
        if len(prediction.split()) > MAX_WORDS:
            return False, "too_long"
        if any(prediction.strip().lower() == a.strip().lower() or _same(prediction, a) for a in answers):
            return True, "equal"
        if self._judge is None:
            return False, "different"
        verdict = await self._judge.verdict(question, prediction, answers, rule=False)
        return verdict == "same", "judge" if verdict == "same" else verdict


_MARKS = re.compile(r"\d|[+*/^%=<>$€£#]|\.(?=\d)|(?<!\w)-(?=\S)|-(?=\d)")
"""What normalising takes away and a number or a formula cannot spare: signs, points, operators, units."""


def _same(prediction: str, answer: str) -> bool:
    """Equal once normalised, and something left of it: "the" normalises to nothing, and so does "+". Nor may it have
    taken away what tells -28 from 28, or 1.5 from 15."""
    prediction, answer = (text.replace("−", "-") for text in (prediction, answer))
    plain = normalize_answer(answer)
    return bool(plain) and normalize_answer(prediction) == plain and _marks(prediction) == _marks(answer)


def _marks(text: str) -> str:
    return "".join(_MARKS.findall(text))
