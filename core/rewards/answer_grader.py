"""Grades a short answer: the same number, or equal once normalised, or else an LLM judge, if there is one, decides.

ToolOrchestra grades questions this way (arXiv 2511.21689, section 3.2); its released code compares in lower case alone.
An empty answer, and one of more than 500 words, is wrong without asking the judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Literal

from core.rewards.answers import SPACELESS, count_words, find_box, fold_text, normalize_answer, strip_thoughts, unwrap
from core.rewards.numbers import HAN_SCALE, UNITS, is_same_number, parse_label, parse_number

if TYPE_CHECKING:  # methods that ask no judge import this file
    from core.rewards.judge import Ask

MAX_WORDS = 500

AnswerRule = Literal["no_answer", "too_long", "equal", "different", "judge", "no_verdict", "no_reply"]
"""Names the rule that decided. `no_verdict` and `no_reply`: the judge gave no verdict; the answer counts as wrong."""


class AnswerGrader:
    """Grades short answers, by the `judge` where they are not equal once normalised."""

    def __init__(self, judge: Ask | None = None):
        from core.rewards.judge import Judge

        self._ask = judge
        self._judge = Judge("question")

    async def grade(self, question: str, prediction: str, answers: Sequence[str]) -> tuple[bool, AnswerRule]:
        """Return whether `prediction` equals any of `answers`, and the rule that decided."""
        prediction = open_answer(prediction)
        if not prediction:
            return False, "no_answer"
        if count_words(prediction) > MAX_WORDS:
            return False, "too_long"
        if is_accepted(prediction, answers):
            return True, "equal"
        if self._ask is None:
            return False, "different"
        verdict = await self._judge.compare(self._ask, question, prediction, answers)
        return verdict == "same", "judge" if verdict == "same" else verdict


def find_answer(text: str) -> str | None:
    r"""Return the content of the last box after the thoughts; without a box, the text itself if it is a number."""
    text = strip_thoughts(text)
    if "\\boxed" in text:
        return find_box(text)
    return text.strip() if parse_number(text) is not None else None


def open_answer(text: str) -> str:
    """Return an answer without thoughts, and what its box holds, if it has one."""
    box = find_box(text)
    return strip_thoughts(text).strip() if box is None else box


def is_accepted(answer: str | None, answers: Sequence[str]) -> bool:
    """Return whether a short answer is one of `answers`; None, for no answer, is not."""
    return answer is not None and any(is_same_answer(open_answer(answer), each) for each in answers)


_NUMBER = re.compile(rf"(?<![^\W{SPACELESS}])(?<!\.)-?\d+(?:,\d{{3}})*(?:\.\d+)?(?![^\W{SPACELESS}])")


YES_NO = frozenset("yes no 是 是的 否 不 不是 对 不对 有 没有 はい いいえ".split())


def holds_answer(text: str, answers: Sequence[str]) -> bool:
    """Return whether a text holds one of `answers`: a number by its value, another as whole words, a yes or no never.

    Any text may have the word `no` in it, so it is no evidence.
    """
    from core.rewards.qa import strict_string_match_part  # graders of answers do without

    numbers = set(_find_numbers(fold_text(text)))
    for answer in (fold_text(answer).strip() for answer in answers):
        if _NUMBER.fullmatch(answer):
            if _read_number(answer) in numbers:
                return True
        elif answer.lower() not in YES_NO and strict_string_match_part(text, [answer]):
            return True
    return False


def reward_finding(text: str, known: str, answers: Sequence[str]) -> float | None:
    """Return 1 for a text that holds an answer which what was `known` before does not, else 0; None without answers."""
    return float(holds_answer(text, answers) and not holds_answer(known, answers)) if answers else None


def _find_numbers(text: str) -> Iterator[Decimal]:
    for found in _NUMBER.finditer(text):
        if (scale := _HAN_SCALE.match(text, found.end())) is None:
            yield _read_number(found[0])
        elif number := parse_number(found[0] + scale[0]):  # 3万 is not 3
            yield number.value


_HAN_SCALE = re.compile(f"{HAN_SCALE}+")


def _read_number(text: str) -> Decimal:
    return Decimal(text.replace(",", ""))


def is_same_answer(answer: str, label: str) -> bool:
    """Return whether both are the same number or the same text once normalised."""
    found, wanted = parse_number(answer), parse_label(label)
    if found is None or wanted is None:
        return is_same_text(answer, label)
    if _NAME.search(label) and not found.unit and wanted.unit not in UNITS.values():
        return False
    return is_same_number(found, wanted)


_NAME = re.compile(r"\d\s+[A-Z][a-z]{2}")
"""Matches a number that begins a name or a date: 432 Park Avenue, 22 November. The number alone is no answer."""
_MARKS = re.compile(
    r"\d|[+*/^%=<>$€£#]|\.(?=\d)|(?<!\w)-(?=\S)|-(?=\d)|(?<![^\s(\[{\"'*])a\b(?=\W*\Z)"
    r"|(?<=\d)[^\w\s](?=\d)|(?<=\d)!|(?<=\b[a-z])-(?=\W*\Z)"
)
"""Matches what normalising removes although it is needed: signs, points, operators, units, an A at the end, what stands
between two digits (7:30 is not 730), the minus of a mark."""
_SAME = {"是的": "是", "不是": "否", "不是的": "否"}
_CHOICES = re.compile("[a-h](?:[,;] ?[a-h])+")
"""Matches several options of a question, such as A、B、D, which is A, B, D by now. In `A, B` the A is no article."""
_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def is_same_text(answer: str, label: str) -> bool:
    """Return whether both are equal once normalised, with something left: "the" normalises to nothing.

    Normalising must not have removed what distinguishes -28 from 28, 1.5 from 15, or vitamin A from a vitamin.
    """
    answer, label = (_SAME.get(text, text) for text in (unwrap(fold_text(each)).casefold() for each in (answer, label)))
    plain, marks = normalize_answer(label), _find_marks(label)
    if answer == label or not (plain or marks):
        return bool(label) and answer == label
    if _CHOICES.fullmatch(answer) or _CHOICES.fullmatch(label):
        return re.sub("[,; ]", "", answer) == re.sub("[,; ]", "", label)
    return normalize_answer(answer) == plain and _find_marks(answer) == marks


def _find_marks(text: str) -> str:
    return "".join(_MARKS.findall(_THOUSANDS.sub("", text)))
