r"""Reads answers in `\boxed{}`, normalises them as MATH does, and gives MemAgent's training reward.

The behaviour follows two public scorers, pinned by tests/golden/ruler:
- `normalize_math`, `is_equiv`: the string normalisation of MATH (Hendrycks et al. 2021) as carried by verl and
  lm-evaluation-harness.
- `strip_latex`, `boxed_reward`: MemAgent (arXiv 2507.02259, section 1.4 of its facts; verl/utils/reward_score/
  hotpotqa.py), which keeps only the first half of that normalisation: no fractions, roots, units or `x=`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

ANSWER_CHARACTERS = 300
"""Counts the characters at the end of a response that MemAgent's reward looks at."""


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
    return _strip_marks(text).replace(" ", "")


def normalize_math(text: str) -> str:
    r"""Apply `strip_latex`, cut units off, drop `k=`, and write `\sqrt3`, `\frac12`, `0.5` and `1/2` with braces.

    Raises:
        ValueError: the text is malformed LaTeX (for example a `\frac` without arguments).
    """
    text = _strip_marks(text, units=True)
    if text.startswith("."):
        text = "0" + text
    left, equals, right = text.partition("=")
    if equals and "=" not in right and len(left) <= 2:
        text = right
    text = _brace_sqrt(text).replace(" ", "")
    text = _brace_fractions(text)
    if text == "0.5":
        return "\\frac{1}{2}"
    return _slash_to_fraction(text)


def is_equiv(first: str, second: str) -> bool:
    """Return whether two answers are the same after `normalize_math`; malformed ones must be the same text."""
    try:
        return normalize_math(first) == normalize_math(second)
    except ValueError:
        return first == second


def boxed_reward(text: str, answers: Iterable[str]) -> float:
    r"""Return MemAgent's training reward: 1.0 if the last `\boxed{}` equals any accepted answer, else 0.0.

    Only the last 300 characters count; both sides are lower-cased and compared after `strip_latex`.
    """
    boxed = find_boxed(text[-ANSWER_CHARACTERS:].lower())
    if boxed is None:
        return 0.0
    boxed = strip_latex(boxed)
    return float(any(boxed == strip_latex(answer.lower()) for answer in answers))


def _strip_marks(text: str, units: bool = False) -> str:
    for mark, plain in (
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
    ):
        text = text.replace(mark, plain)
    if units and "\\text{ " in text:
        if text.count("\\text{ ") > 1:
            raise ValueError(f"more than one unit in {text!r}")
        text = text.partition("\\text{ ")[0]
    return text.replace("\\%", "").replace(" .", " 0.").replace("{.", "{0.")


def _brace_sqrt(text: str) -> str:
    if text.endswith("\\sqrt") or "\\sqrt\\sqrt" in text:
        raise ValueError(f"\\sqrt without an argument in {text!r}")
    return re.sub(r"\\sqrt([^{])", r"\\sqrt{\1}", text, flags=re.DOTALL)


def _brace_fractions(text: str) -> str:
    head, *tails = text.split("\\frac")
    out = head
    for tail in tails:
        if not tail:
            raise ValueError(f"\\frac without arguments in {text!r}")
        if tail[0] == "{":
            out += "\\frac" + tail
        elif len(tail) < 2:
            return text
        elif tail[1] == "{":
            out += f"\\frac{{{tail[0]}}}{tail[1:]}"
        else:
            out += f"\\frac{{{tail[0]}}}{{{tail[1]}}}{tail[2:]}"
    return out


def _slash_to_fraction(text: str) -> str:
    parts = text.split("/")
    if len(parts) != 2:
        return text
    above, below = int(parts[0]), int(parts[1])
    return f"\\frac{{{above}}}{{{below}}}" if text == f"{above}/{below}" else text
