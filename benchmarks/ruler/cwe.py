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


@dataclass(frozen=True)
class CommonWords:
    """Asks for the most common words: `num_cw` words come `freq_cw` times, all others `freq_ucw` times (6 and 1 below
    4,096 tokens)."""

    name: str = "cwe"
    num_cw: int = 10
    freq_cw: int = 30
    freq_ucw: int = 3
    words: tuple[str, ...] | None = None

    metric: Metric = "string_match_all"
    new_tokens: int = CWE.new_tokens

    def __post_init__(self) -> None:
        if not self.freq_cw > self.freq_ucw >= 1:
            raise ValueError(f"{self.name}: freq_cw must exceed freq_ucw, and that be at least 1")
        if self.words is not None and len(set(self.words)) <= self.num_cw:
            raise ValueError(f"{self.name}: `words` has {len(set(self.words))} words; over {self.num_cw} needed")

    def draw(self, key: SampleKey) -> Sized:
        pool = self.words or all_words()
        often, rarely = (6, 1) if key.length < SHORT else (self.freq_cw, self.freq_ucw)
        more = self._pairs(key)
        drawn = key.rng("words").sample(pool, len(pool))
        common = drawn[: self.num_cw]

        def build(units: int) -> Draft:
            drawn.extend(next(more) for _ in range(units - len(drawn)))
            listed = common * often + drawn[self.num_cw : units] * rarely
            key.rng("order").shuffle(listed)
            context = " ".join(f"{number}. {word}" for number, word in enumerate(listed, start=1))
            return CWE.fill(context, tuple(common), count=self.num_cw)

        return Sized(build, smallest=self.num_cw + 1, largest=None if self.words is None else len(self.words))

    def _pairs(self, key: SampleKey) -> Iterator[str]:
        rng, draw, seen = key.rng("pairs"), drawer("words"), set(all_words())
        while True:
            if (pair := draw(rng)) not in seen:
                seen.add(pair)
                yield pair
