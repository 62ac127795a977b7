"""Hides needles in a haystack (RULER, arXiv 2404.06654, section 3.1): all eight variants are parameters of `Niah`.

`VariableTracking` hides a chain of assignments (section 3.2), as in MemAgent's data without RULER's worked example.

Departures from RULER: keys of one sample differ from each other and from every distractor; values differ; depths are
uniform unless `placement` is `official`; samples are independent of each other.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from benchmarks.ruler.haystack import RULER_NOISE, Depths, Essay, Placement, noise_lines, weave
from benchmarks.ruler.sample import Draft, Metric, Needle, SampleKey, Sized
from benchmarks.ruler.templates import NIAH, NIAH_BARE, VT, Template
from benchmarks.ruler.words import Kind, draw_distinct, drawer

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
HOPS = 4
"""Counts the copies of the first variable, as in RULER's setting: one chain of five variables."""


@dataclass(frozen=True)
class Niah:
    """Hides `num_k` keys with `num_v` values each, and asks for `num_q` of the keys.

    `haystack`: `noise` repeats the lines of `noise`, `essay` cuts from `essay`, `needle` is made of needles with other
    keys. `key_words` and `value_words` replace RULER's adjective-noun pairs where the type is `words`. `bare_question`
    leaves out RULER's introduction.
    """

    name: str = "niah"
    haystack: Literal["noise", "essay", "needle"] = "noise"
    key_type: Kind = "words"
    value_type: Kind = "numbers"
    num_k: int = 1
    num_v: int = 1
    num_q: int = 1
    placement: Placement = "uniform"
    noise: tuple[str, ...] = RULER_NOISE
    essay: Essay | None = None
    key_words: tuple[str, ...] | None = None
    value_words: tuple[str, ...] | None = None
    bare_question: bool = False

    metric: Metric = "string_match_all"

    def __post_init__(self) -> None:
        if min(self.num_k, self.num_v, self.num_q) < 1:
            raise ValueError("num_k, num_v and num_q must be at least 1")
        if self.haystack == "essay" and self.essay is None:
            raise ValueError(f"{self.name}: the essay haystack needs `essay` (`--essays FOLDER`)")
        if self.haystack == "noise" and not any(line.strip() for line in self.noise):
            raise ValueError(f"{self.name}: `noise` holds no text")
        needed = {"key_words": self._keys + (self.haystack == "needle"), "value_words": self._keys * self.num_v}
        for option, least in needed.items():
            words = getattr(self, option)
            if words is not None and len(set(words)) < least:
                raise ValueError(f"{self.name}: `{option}` has {len(set(words))} different words; {least} are needed")

    @property
    def template(self) -> Template:
        return NIAH_BARE if self.bare_question else NIAH

    @property
    def new_tokens(self) -> int:
        return self.template.new_tokens

    @property
    def _keys(self) -> int:
        """Return the number of keys: RULER raises it to the number of queries."""
        return max(self.num_k, self.num_q)

    def draw(self, key: SampleKey) -> Sized:
        rng = key.rng("needles")
        draw_value = drawer(self.value_type, self.value_words)
        keys = draw_distinct(drawer(self.key_type, self.key_words), self._keys, rng)
        values = draw_distinct(draw_value, self._keys * self.num_v, rng)
        facts = [(name, values[i * self.num_v + j]) for i, name in enumerate(keys) for j in range(self.num_v)]
        asked = rng.sample(keys, self.num_q)
        answers = tuple(value for name in asked for fact, value in facts if fact == name)
        depths = Depths(len(facts), self.placement, key.rng("depths"), lines=self.haystack != "essay")

        distractors = self._distractors(key, keys)
        lines: list[str] = []

        def build(units: int) -> Draft:
            if self.haystack == "essay" and self.essay is not None:
                pieces, joiner = self.essay.sentences(units), " "
            elif self.haystack == "noise":
                pieces, joiner = noise_lines(self.noise, units), "\n"
            else:
                lines.extend(next(distractors) for _ in range(units - len(lines)))
                pieces, joiner = lines[:units], "\n"
            slots = depths.slots(len(pieces))
            texts = [self._sentence(name, value) for name, value in facts]
            context, starts = weave(pieces, list(zip(slots, texts, strict=True)), joiner)
            needles = [
                Needle(name, value, name in asked, start) for (name, value), start in zip(facts, starts, strict=True)
            ]
            return self._fill(context, asked, answers, tuple(needles))

        return Sized(build, smallest=len(facts) if self.placement == "official" else 1)

    def _fill(self, context: str, asked: list[str], answers: tuple[str, ...], needles: tuple[Needle, ...]) -> Draft:
        query = asked[0] if len(asked) == 1 else ", ".join(asked[:-1]) + ", and " + asked[-1]
        one = len(answers) == 1
        template, kind = (self.template.singular(), self.value_type[:-1]) if one else (self.template, self.value_type)
        return template.fill(context, answers, needles, kind=kind, query=query)

    def _sentence(self, name: str, value: str) -> str:
        return NEEDLE.format(kind=self.value_type, key=name, value=value)

    def _distractors(self, key: SampleKey, keys: list[str]) -> Iterator[str]:
        """Yield needles that nobody asks for, without end."""
        rng = key.rng("haystack")
        draw_key, draw_value = drawer(self.key_type, self.key_words), drawer(self.value_type, self.value_words)
        while True:
            yield self._sentence(draw_distinct(draw_key, 1, rng, avoid=keys)[0], draw_value(rng))


@dataclass(frozen=True)
class VariableTracking:
    """Hides one chain of copies; the question asks for every variable of it."""

    name: str = "vt"
    placement: Placement = "uniform"
    noise: tuple[str, ...] = RULER_NOISE

    metric: Metric = "string_match_all"
    new_tokens: int = VT.new_tokens

    def draw(self, key: SampleKey) -> Sized:
        rng = key.rng("chains")
        chain = draw_distinct(_variable, HOPS + 1, rng)
        number = str(rng.randrange(10_000, 99_999))
        depths = Depths(len(chain), self.placement, key.rng("depths/0"), lines=True)
        facts = [(chain[0], number), *((copy, f"VAR {source} ") for source, copy in pairwise(chain))]

        def build(units: int) -> Draft:
            slots = sorted(depths.slots(units))
            inserts = [
                (slot, f"VAR {variable} = {value}") for slot, (variable, value) in zip(slots, facts, strict=True)
            ]
            context, starts = weave(noise_lines(self.noise, units), inserts, "\n")
            needles = tuple(
                Needle(variable, value.strip(), queried=True, start=start)
                for (variable, value), start in zip(facts, starts, strict=True)
            )
            return VT.fill(context, tuple(chain), needles, query=number, count=len(chain))

        return Sized(build, smallest=len(chain))


def _variable(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_uppercase, k=5))
