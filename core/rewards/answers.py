r"""Reads the answer in a text: without thoughts, from the last box, with one form of each quote, dash and accent.

Every grader of ours reads with these functions. The published scorers (qa.py, boxed.py) share SQuAD's normalisation
alone.
"""

from __future__ import annotations

import re
import string
import unicodedata

LAYERS = 8
"""Limits the layers of marks around an answer."""

SPACELESS = "\u0e00-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
"""Matches, within [], the scripts that put no spaces between words: Thai to Burmese, Khmer, Japanese, Chinese."""

WORD = re.compile(rf"(?=\w)[{SPACELESS}]|[^\W{SPACELESS}]+")
"""Matches a word; of scripts without spaces, a character."""

SPACELESS_CHARACTER = re.compile(f"[{SPACELESS}]")
_QUOTES = "‘’‚‛′`´ʼ“”„‟″«»「」『』《》〈〉"
_DASHES = "‐‑‒–—―−⁻﹣－"
_SAME = str.maketrans(
    {
        **dict.fromkeys(_QUOTES[:8], "'"), **dict.fromkeys(_QUOTES[8:], '"'), **dict.fromkeys(_DASHES, "-"),
        "。": ". ", "、": ", ", "【": "[", "】": "]", **dict.fromkeys("•‧・", "·"),
    }
)  # fmt: skip
_NO_SPACE = re.compile(rf"(?<=[{SPACELESS}])[ ·]++(?=[{SPACELESS}])|(?<=[{SPACELESS}]) ++|(?<! ) ++(?=[{SPACELESS}])")
"""Matches what some people write beside a script without spaces, and some do not: 5 月, 达·芬奇."""
_HIDDEN = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufe0f\ufeff]")
_RAISED = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻]+")
_FRACTION = re.compile("(?<![0-9])[¼-¾⅐-⅞]")
_BOX = re.compile(r"\\boxed\s*")
_BRACE = re.compile(r"\\[\\{}]|[{}]")
_DOLLARS = re.compile(r"\$([^$]*)\$")
_WRAPPED = re.compile(
    r"\\\((.*)\\\)|\\\[(.*)\\\]|\*\*(.*)\*\*"
    r"|(?:\\(?:boxed|text(?:bf|rm|it)?|mathbf|mathrm|boldsymbol|bf))? ?\{(.*)\}",
)
_EMPHASIS = re.compile(r"(?<![\w*)}\]])(\*{1,3})(?=[^\s*])(.{1,200}?)(?<=[^\s*])\1(?![\w*({\[\\])")
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_THINK, _END_THINK = "<think>", "</think>"


def fold_text(text: str) -> str:
    """Return `text` with plain quotes, dashes and full stops, accents in one character, no hidden characters.

    10² becomes 10^{2}, and 。 a full stop with a space: no space follows it. A script without spaces has none.
    """
    if text.isascii():
        return text
    text = _FRACTION.sub(lambda match: unicodedata.normalize("NFKC", match[0]).replace("⁄", "/"), text)
    text = _RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    # NFKC would make x₂ the same as x2, and 1½ the same as 11/2.
    kept = ("<sub>", "<super>", "<fraction>")
    text = "".join(
        each if unicodedata.decomposition(each).startswith(kept) else unicodedata.normalize("NFKC", each)
        for each in _HIDDEN.sub("", text).translate(_SAME)
    )
    return _NO_SPACE.sub("", unicodedata.normalize("NFC", text).translate(_SAME))


def normalize_answer(text: str) -> str:
    """Return `text` as SQuAD does: lower case, no ASCII punctuation, English articles and surplus white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def count_words(text: str) -> int:
    """Count the words of a text; of scripts without spaces, two characters are a word."""
    spaced, spaceless = SPACELESS_CHARACTER.subn(" ", text)
    return len(spaced.split()) + spaceless // 2


def strip_thoughts(text: str) -> str:
    """Return what follows the last thought; a thought that never ends goes on to the end of the text."""
    return text.rpartition(_END_THINK)[2].partition(_THINK)[0]


def find_box(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}` after the thoughts; None if there is none, or it never closes.

    A box without braces, `\boxed 42`, needs the space, and is read up to a `$` or the end of its line. If a brace there
    has no partner, the model wrote no box.
    """
    boxes = list(_BOX.finditer(text := strip_thoughts(text)))
    if not boxes:
        return None
    start = boxes[-1].end()
    if not text.startswith("{", start):
        content = text[start:] if text[start - 1].isspace() else ""
        line = re.split(r"[$\n]", content, maxsplit=1)[0].strip()
        return line if line and line.count("{") == line.count("}") else None
    depth = 0
    for brace in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start + 1 : brace.start()].strip() or None
    return None


def unwrap(text: str) -> str:
    """Return `text` with single spaces and without the marks around it: `$`, `\\text{}`, quotes, a full stop.

    Nor has it Markdown's emphasis: `*Dune* (1965)` is Dune (1965).
    """
    text = _EMPHASIS.sub(r"\2", " ".join(text.split()))
    for _ in range(LAYERS):
        text = _DOLLARS.sub(r"\1", text.strip(" ~≈'\"").removeprefix("\\approx")).strip(" ~")
        text = text[:-1] if text.endswith((".", ",", ";")) and text[-2:-1] != "\\" else text
        match = _WRAPPED.fullmatch(text)
        text = text if match is None else match[match.lastindex or 0]
    return text.strip()
