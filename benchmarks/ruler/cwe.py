"""Common words extraction (RULER, arXiv 2404.06654, section 3.3): which words of a numbered list come up most often.

As in MemAgent's data, without RULER's worked example in front. Where a document needs more words than the list has
(RULER then turns to a second, 8 MB word list), adjective-noun pairs of the same list follow.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks.ruler.sample import Draft, Metric, SampleKey, Sized
from benchmarks.ruler.templates import CWE
from benchmarks.ruler.words import all_words, drawer

SHORT = 4096
"""Below this many tokens RULER repeats words less often."""


COMMON = 10


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
