r"""Grades a mathematical answer by an integer rule, then by math-verify, then, if there is one, by an LLM judge.

| rule | decides | because |
|---|---|---|
| integer | labels and answer are integers, whatever their form: 073, 73.0, $73$, 1,000 | AIME and DAPO have no others |
| math_verify | the answer is an expression | it runs in a process that can be killed (math_verifier.py) |
| judge | math-verify did not find the two equal, and the label is no integer | used if one is given (judge.py) |

Only the last `\boxed{}` of a text counts. A text that is nothing but an integer needs no box.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from core.rewards.boxed import find_boxed
from core.rewards.judge import Ask, Judge
from core.rewards.math_verifier import MathVerifier

LAYERS = 8
"""Limits the layers of marks around an integer."""

MathRule = Literal["integer", "math_verify", "judge", "no_verdict", "no_reply", "timeout", "error", "no_answer"]


@dataclass(frozen=True, slots=True)
class Grade:
    """Holds a verdict, the rule `by` which it was reached, and the answer that was read (None if there was none).

    `timeout` and `error`: math-verify was killed or failed. `no_verdict` and `no_reply`: the judge was to decide and
    failed. `no_answer`: there is no finished box. The answer counts as wrong in all five.
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
        self._judge = Judge()
        self._verifier = MathVerifier(timeout_s=timeout_s, workers=workers)

    async def grade(self, question: str, text: str, answers: Sequence[str], judge: Ask | None = None) -> Grade:
        """Return whether the answer in `text` equals any of `answers`, and by which rule. `judge` asks an LLM.

        Raises:
            ValueError: `answers` is empty.
        """
        grade = grade_integer(text, answers) or await self._verify(text, answers)
        settled = grade.correct or all(parse_integer(answer) is not None for answer in answers)
        if judge is not None and grade.parsed is not None and not settled:
            verdict = await self._judge.compare(judge, question, grade.parsed, answers)
            if verdict != "different":
                grade = replace(grade, correct=verdict == "same", by="judge" if verdict == "same" else verdict)
        return grade

    async def close(self) -> None:
        """End the processes of math-verify."""
        await asyncio.to_thread(self._verifier.close)

    async def _verify(self, text: str, answers: Sequence[str]) -> Grade:
        answer = find_answer(text)
        if answer is None:
            return Grade(False, "no_answer", None)
        outcome = await self._verifier.compare(answer, answers)
        if outcome == "equal" or outcome == "different":
            return Grade(outcome == "equal", "math_verify", answer)
        return Grade(False, outcome, answer)


def grade_integer(text: str, answers: Sequence[str]) -> Grade | None:
    """Apply the integer rule alone; return None if an accepted answer or the text's answer is not a plain integer.

    If the accepted answers are integers, a text without an answer is wrong by `no_answer`.

    Raises:
        ValueError: `answers` is empty.
    """
    if not answers or isinstance(answers, str):
        raise ValueError(f"answers must be a list with at least one answer, got {answers!r}")
    wanted = [parse_integer(answer) for answer in answers]
    if None in wanted:
        return None
    answer = find_answer(text)
    if answer is None:
        return Grade(False, "no_answer", None)
    found = parse_integer(answer)
    return None if found is None else Grade(found in wanted, "integer", found)


def find_answer(text: str) -> str | None:
    r"""Return the content of the last box, or `text` itself if it is an integer; None if the box never closes."""
    _, box, after = text.rpartition("\\boxed")
    answer = find_boxed(box + after) if box else text if parse_integer(text) is not None else None
    return answer.strip() or None if answer is not None else None


def parse_integer(text: str) -> str | None:
    r"""Return the integer that `text` writes, as digits without leading zeros and maybe a minus; None if it is not one.

    These make no difference: zeros in front, a point with zeros behind, thousands separated by `,` `{,}` or `\,`, math
    and text marks around (`$`, `\(`, `\text{}`), a degree sign. Two numbers side by side are not an integer, nor is one
    behind more than LAYERS of marks. It takes time linear in the text, whatever a model wrote.
    """
    plain = text.strip()
    for _ in range(LAYERS):
        plain = _unwrap(plain)
    match = _INTEGER.fullmatch(_SEPARATOR.sub(",", plain))
    if match is None:
        return None
    digits = match["digits"].replace(",", "").lstrip("0") or "0"
    return f"-{digits}" if match["sign"] in ("-", "−") and digits != "0" else digits


_INTEGER = re.compile(r"(?P<sign>[+−-]?)\s*(?P<digits>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.0*)?")
_SEPARATOR = re.compile(r"\{,\}|,\\!|\\,")
_WRAPPED = re.compile(
    r"\\\((.*)\\\)|\\\[(.*)\\\]|(?:\\(?:text(?:bf|rm)?|mathbf|mathrm|boldsymbol|bf))?\s*\{(.*)\}", re.DOTALL
)
_BEHIND = re.compile(r"(?:\^\s*\{?\\circ\}?|°|(?<=[$})\]])\.)$")


def _unwrap(text: str) -> str:
    """Return `text` without one layer of marks around it; text that holds no integer will not become one."""
    text = _BEHIND.sub("", text.strip(" \t\n\r~")).removeprefix("\\$")
    if text.startswith("$") and text.endswith("$"):
        return text.strip("$").strip()
    match = _WRAPPED.fullmatch(text)
    return text if match is None else match[match.lastindex or 0].strip()
