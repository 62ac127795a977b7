r"""Reads answers in `\boxed{}` and gives MemAgent's training reward, pinned to its code by tests/golden/ruler.

`strip_latex` and `boxed_reward` follow MemAgent (arXiv 2507.02259; verl/utils/reward_score/hotpotqa.py). It keeps only
the first half of MATH's normalisation: no fractions, roots, units or `x=`.
"""

from __future__ import annotations

from collections.abc import Iterable

ANSWER_CHARACTERS = 300
"""Counts the characters at the end of a response that MemAgent's reward looks at."""

MARKS = (
    ("\n", ""),
    ("\\!", ""),
    ("\\\\", "\\"),
    ("tfrac", "frac"),
    ("dfrac", "frac"),
    ("\\left", ""),
    ("\\right", ""),
    ("^{\\circ}", ""),
    ("^\\circ", ""),
    ("\\$", ""),
)
"""Pairs what MATH drops or writes otherwise with what stands there then."""


def find_boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`, braces matched; None if there is none or it never closes.

    Like the official scorers, it prefers `\boxed 42$` (a space instead of a brace) wherever it stands, and reads it up
    to the next `$`.
    """
    if "\\boxed " in text:
        return text.rsplit("\\boxed ", 1)[1].split("$", 1)[0]
    start = text.rfind("\\boxed")
    if start < 0 or not text.startswith("\\boxed{", start):
        return None
    start += len("\\boxed{")
    depth = 1
    for position in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[start:position]
    return None


def strip_latex(text: str) -> str:
    r"""Drop what does not change a value: line breaks, spaces, `\!`, `\left`, degree, `\$` and `\%` marks."""
    for mark, plain in MARKS:
        text = text.replace(mark, plain)
    return text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.").replace(" ", "")


def boxed_reward(text: str, answers: Iterable[str]) -> float:
    r"""Return MemAgent's training reward: 1.0 if the last `\boxed{}` equals any accepted answer, else 0.0.

    Only the last 300 characters count; both sides are lower-cased and compared after `strip_latex`.
    """
    boxed = find_boxed(text[-ANSWER_CHARACTERS:].lower())
    if boxed is None:
        return 0.0
    boxed = strip_latex(boxed)
    return float(any(boxed == strip_latex(answer.lower()) for answer in answers))
