"""Counts of words (RULER, arXiv 2404.06654, section 3.3): cwe asks for the common words of a numbered list, fwe for the
frequent ones of a coded text.

cwe is as in MemAgent's data, without RULER's worked example in front. Where a document needs more words than the list
has (RULER then turns to a second, 8 MB word list), adjective-noun pairs of the same list follow.

In fwe the coded word of rank k comes floor(units / k^2 / zeta(2)) times (RULER's alpha is 2). Rank 1 is written as dots
and is not asked for; ranks 2 to 4 are. Documents are at least so long that rank 4 comes more often than rank 5.
"""

from __future__ import annotations

import math
import random
import string
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.ruler.sample import Draft, Metric, SampleKey, Sized
from benchmarks.ruler.templates import CWE, FWE
from benchmarks.ruler.words import all_words, draw_distinct, drawer

SHORT = 4096
"""Below this many tokens RULER repeats words less often."""
COMMON = 10
ASKED = 3
ZETA = math.pi**2 / 6
"""Holds the sum of 1 / rank^2 over all ranks."""


@dataclass(frozen=True)
class CommonWords:
    """Asks for the ten most common words: they come 30 times, all others three times (6 and 1 below 4,096 tokens)."""

    name: str = "cwe"
    metric: Metric = "string_match_all"
    new_tokens: int = CWE.new_tokens

    def draw(self, key: SampleKey) -> Sized:
        pool = all_words()
        often, rarely = (6, 1) if key.length < SHORT else (30, 3)
        more = self._pairs(key)
        drawn = key.rng("words").sample(pool, len(pool))
        common = drawn[:COMMON]

        def build(units: int) -> Draft:
            drawn.extend(next(more) for _ in range(units - len(drawn)))
            listed = common * often + drawn[COMMON:units] * rarely
            key.rng("order").shuffle(listed)
            context = " ".join(f"{number}. {word}" for number, word in enumerate(listed, start=1))
            return CWE.fill(context, tuple(common), count=COMMON)

        return Sized(build, smallest=COMMON + 1)

    def _pairs(self, key: SampleKey) -> Iterator[str]:
        rng, draw, seen = key.rng("pairs"), drawer("words"), set(all_words())
        while True:
            if (pair := draw(rng)) not in seen:
                seen.add(pair)
                yield pair


@dataclass(frozen=True)
class FrequentWords:
    """Asks for the most frequent coded words of six letters, of one for each 50 tokens of the document, as in RULER."""

    name: str = "fwe"
    metric: Metric = "string_match_all"
    new_tokens: int = FWE.new_tokens

    def draw(self, key: SampleKey) -> Sized:
        size = max((key.length - self.new_tokens) // 50, ASKED + 2)
        vocabulary = ["...", *draw_distinct(_draw_word, size - 1, key.rng("vocabulary"))]

        def build(units: int) -> Draft:
            counts = (int(units * rank**-2 / ZETA) for rank in range(1, size + 1))
            text = [word for word, count in zip(vocabulary, counts, strict=True) for _ in range(count)]
            key.rng("order").shuffle(text)
            return FWE.fill(" ".join(text), tuple(vocabulary[1 : 1 + ASKED]))

        rank = 1 + ASKED
        smallest = math.ceil(ZETA / (rank**-2 - (rank + 1) ** -2))
        return Sized(build, smallest=smallest)


def _draw_word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=6))
