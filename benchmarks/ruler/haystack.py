"""What needles are hidden in: lines of noise, essays, or other text in pieces; and how they are put there."""

from __future__ import annotations

import random
import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Literal

Placement = Literal["uniform", "official"]

RULER_NOISE = ("The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.",)
OFFICIAL_DEPTHS = tuple(round(step * 100 / 39) for step in range(40))
"""Lists RULER's depths in percent: 40 points from 0 to 100, rounded."""

_SENTENCE_END = re.compile(r"([.!?][\"')\]]*) ")


def noise_lines(lines: Sequence[str], count: int) -> list[str]:
    """Return `count` lines, the given ones in a cycle."""
    return (list(lines) * (count // len(lines) + 1))[:count]


class Essay:
    """Holds a long text by sentences, and repeats it where more words are wanted.

    Sentences end at `.`, `!` or `?` before white space. RULER uses NLTK's punkt, which differs at abbreviations.
    """

    def __init__(self, text: str):
        text = " ".join(text.split())
        self._sentences = _SENTENCE_END.sub(r"\1\n", text).splitlines()
        self._ends = list(accumulate(len(sentence.split()) for sentence in self._sentences))
        if not self._sentences:
            raise ValueError("the essay haystack is empty")

    @classmethod
    def from_folder(cls, folder: str | Path) -> Essay:
        """Join all .txt files of a folder, by name."""
        files = sorted(Path(folder).glob("*.txt"))
        if not files:
            raise ValueError(f"{folder}: no .txt files. Fix: `tokentrue data download essays`.")
        return cls(" ".join(file.read_text(encoding="utf-8", errors="replace") for file in files))

    def sentences(self, words: int) -> list[str]:
        """Return the first `words` words, by sentence; the last sentence may be cut."""
        rounds, rest = divmod(words, self._ends[-1])
        whole = bisect_right(self._ends, rest)
        sentences = self._sentences * rounds + self._sentences[:whole]
        if left := rest - (self._ends[whole - 1] if whole else 0):
            sentences.append(" ".join(self._sentences[whole].split()[:left]))
        return sentences


def weave(pieces: Sequence[str], inserts: Sequence[tuple[int, str]], joiner: str) -> tuple[str, list[int]]:
    """Put each `(slot, text)` before `pieces[slot]`; return the joined text and the character where each insert starts.

    Inserts of one slot keep their order.
    """
    parts: list[str] = []
    starts = [0] * len(inserts)
    done = position = 0
    for which in sorted(range(len(inserts)), key=lambda i: inserts[i][0]):
        slot, text = inserts[which]
        if pieces[done:slot]:
            parts.append(joiner.join(pieces[done:slot]))
            position += len(parts[-1]) + len(joiner)
            done = slot
        starts[which] = position
        parts.append(text)
        position += len(text) + len(joiner)
    parts.extend(pieces[done:])
    return joiner.join(parts), starts


class Depths:
    """Says where `count` inserts go, as shares of the document, whatever its size.

    `uniform`: each anywhere, independently. `official`: RULER's, without repetition from 40 fixed depths (essays), or
    from all line numbers (lines).
    """

    def __init__(self, count: int, placement: Placement, rng: random.Random, *, lines: bool):
        self._count = count
        self._lines = lines and placement == "official"
        self._state = rng.getrandbits(64)
        if placement == "uniform":
            self._shares = [rng.random() for _ in range(count)]
        elif not lines:
            if count > len(OFFICIAL_DEPTHS):
                raise ValueError(f"{count} needles, but the official placement has {len(OFFICIAL_DEPTHS)} depths")
            self._shares = [depth / 100 for depth in rng.sample(OFFICIAL_DEPTHS, count)]

    def slots(self, pieces: int) -> list[int]:
        """Return one slot in 0..pieces for each insert."""
        if self._lines:
            return random.Random(self._state).sample(range(pieces), self._count)
        return [min(int(share * (pieces + 1)), pieces) for share in self._shares]
