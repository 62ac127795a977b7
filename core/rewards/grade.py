r"""Is a mathematical answer right? An integer rule, then math-verify, then, where there is one, an LLM judge.

| rule | decides | because |
|---|---|---|
| integer | labels and answer are integers, whatever their form: 073, 73.0, $73$, 1,000 | AIME and DAPO have no others |
| math_verify | the answer is an expression | run in a process that can be killed (verify.py) |
| judge | math-verify did not find the two equal, and the label is no integer | only with a judge (judge.py) |

Only the last `\boxed{}` of a text counts. A text that is nothing but an integer needs no box.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from core.rewards.judge import Ask, Judge
from core.rewards.math import last_boxed
from core.rewards.verify import Verifier

LAYERS = 8
"""Of marks around an integer, at most."""

By = Literal["integer", "math_verify", "judge", "no_verdict", "no_reply", "timeout", "error", "no_answer"]


@dataclass(frozen=True, slots=True)
class Grade:
    """A verdict, the rule `by` which it was reached, and the answer as it was read (None if there was none).

    `timeout` and `error`: math-verify was killed or failed, the answer counts as wrong. `no_verdict`, `no_reply`: so
    did the judge that was to decide. `no_answer`: no finished box.
    """

    correct: bool
    by: By
    parsed: str | None


class MathGrader:
    """The chain of rules. `counts` says how often each decided and, of the judge, how often it agreed with them.

    `judge` takes a prompt and returns the reply of a model at temperature 0. With `audit` it is asked about every
    answer, without a say where the rules decide: that measures how far it can be trusted. `timeout_s` is for
    one comparison by math-verify; `workers` of them run at once, started when first needed.
    """

    def __init__(self, judge: Ask | None = None, *, timeout_s: float = 10.0, workers: int = 1, audit: bool = False):
        self.counts: Counter[str] = Counter()
        self._judge = None if judge is None else Judge(judge, self.counts)
        self._audit = audit
        self._verifier = Verifier(timeout_s=timeout_s, workers=workers)

    async def grade(self, question: str, text: str, answers: Sequence[str]) -> Grade:
        """Whether the answer in `text` equals any of `answers`.

        Raises ValueError without answers.
        """
        grade = integer_grade(text, answers) or await self._verified(text, answers)
        if self._judge is not None and grade.parsed is not None:
            settled = grade.correct or all(integer(answer) is not None for answer in answers)
            if self._audit or not settled:
                verdict = await self._judge.verdict(question, grade.parsed, answers, rule=grade.correct)
                if not settled and verdict != "different":
                    grade = replace(grade, correct=verdict == "same", by="judge" if verdict == "same" else verdict)
        self.counts[grade.by] += 1
        return grade

    async def close(self) -> None:
        """End the processes of math-verify."""
        await asyncio.to_thread(self._verifier.close)

    async def _verified(self, text: str, answers: Sequence[str]) -> Grade:
        answer = final_answer(text)
        if answer is None:
            return Grade(False, "no_answer", None)
        outcome = await self._verifier.compare(answer, answers)
        if outcome == "equal" or outcome == "different":
            return Grade(outcome == "equal", "math_verify", answer)
        return Grade(False, outcome, answer)


def integer_grade(text: str, answers: Sequence[str]) -> Grade | None:
    """The integer rule alone: a verdict, or None if an answer or the text's answer is not a plain integer.

    With integer answers a text without an answer is wrong by `no_answer`. Raises ValueError without answers.
    """
    if not answers or isinstance(answers, str):
        raise ValueError(f"answers must be a list with at least one answer, got {answers!r}")
    wanted = [integer(answer) for answer in answers]
    if None in wanted:
        return None
    answer = final_answer(text)
    if answer is None:
        return Grade(False, "no_answer", None)
    found = integer(answer)
    return None if found is None else Grade(found in wanted, "integer", found)


def final_answer(text: str) -> str | None:
    r"""What the last box of `text` holds, or `text` itself if that is an integer. None for a box that never closes."""
    _, box, after = text.rpartition("\\boxed")
    answer = last_boxed(box + after) if box else text if integer(text) is not None else None
    return answer.strip() or None if answer is not None else None


def integer(text: str) -> str | None:
    r"""The integer that `text` writes, as digits without leading zeros and maybe a minus; None if it is not one.

    Read as the same: zeros in front, a point with zeros behind, thousands set apart by `,` `{,}` or `\,`, math and text
    marks around (`$`, `\(`, `\text{}`), a degree sign. Two numbers side by side are not an integer, nor is one behind
    more than LAYERS of marks. Takes time linear in the text, whatever a model wrote.
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
    """`text` without one layer of marks around it; what is no integer inside will not become one."""
    text = _BEHIND.sub("", text.strip(" \t\n\r~")).removeprefix("\\$")
    if text.startswith("$") and text.endswith("$"):
        return text.strip("$").strip()
    match = _WRAPPED.fullmatch(text)
    return text if match is None else match[match.lastindex or 0].strip()
