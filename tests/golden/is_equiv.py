r"""MATH's string normalisation (Hendrycks et al. 2021), as carried by verl and lm-evaluation-harness.

tests/golden/ruler pins it to verl's code, and with it the marks that core/rewards/boxed.py drops. tests/golden/graders
compares our graders with it.
"""

from __future__ import annotations

import re

from core.rewards.boxed import MARKS


def normalize_math(text: str) -> str:
    r"""Drop marks, units and `k=`, and write `\sqrt3`, `\frac12`, `0.5` and `1/2` with braces.

    Raises:
        ValueError: the text is malformed LaTeX (for example a `\frac` without arguments).
    """
    text = _strip_marks(text)
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


def _strip_marks(text: str) -> str:
    for mark, plain in MARKS:
        text = text.replace(mark, plain)
    if "\\text{ " in text:
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
