"""Makes frequent words extraction (RULER, arXiv 2404.06654, 3.3): coded words with Zipf counts; asks for ranks 2-4.

The word of rank k comes floor(units * k^-alpha / zeta(alpha)) times; rank 1 is written as dots and is not asked for.
Documents are at least so long that rank 4 comes more often than rank 5.
"""

from __future__ import annotations

import math
import random
import string
from dataclasses import dataclass

from benchmarks.ruler.sample import Draft, Metric, SampleKey, Sized
from benchmarks.ruler.templates import FWE
from benchmarks.ruler.words import draw_distinct

ASKED = 3


@dataclass(frozen=True)
class FrequentWords:
    """Asks for the most frequent coded words of six letters, of one for each 50 tokens of the limit, as in RULER."""

    name: str = "fwe"
    alpha: float = 2.0
    metric: Metric = "string_match_all"
    new_tokens: int = FWE.new_tokens

    def __post_init__(self) -> None:
        if self.alpha <= 1:
            raise ValueError(f"{self.name}: alpha must be above 1, got {self.alpha}")

    def draw(self, key: SampleKey) -> Sized:
        size = max((key.length - self.new_tokens) // 50, ASKED + 2)
        vocabulary = ["...", *draw_distinct(_draw_word, size - 1, key.rng("vocabulary"))]
        norm = zeta(self.alpha)

        def build(units: int) -> Draft:
            counts = (int(units * rank**-self.alpha / norm) for rank in range(1, size + 1))
            text = [word for word, count in zip(vocabulary, counts, strict=True) for _ in range(count)]
            key.rng("order").shuffle(text)
            return FWE.fill(" ".join(text), tuple(vocabulary[1 : 1 + ASKED]))

        rank = 1 + ASKED
        smallest = math.ceil(norm / (rank**-self.alpha - (rank + 1) ** -self.alpha))
        return Sized(build, smallest=smallest)


def _draw_word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=6))


def zeta(s: float, terms: int = 1000) -> float:
    """Return Riemann's zeta for s > 1: the first terms, and the Euler-Maclaurin tail (error far below 1e-12)."""
    head = sum(k**-s for k in range(1, terms))
    return head + terms ** (1 - s) / (s - 1) + terms**-s / 2 + s * terms ** (-s - 1) / 12
