"""Makes variable tracking (RULER, arXiv 2404.06654, section 3.2): a chain of assignments hidden in noise.

As in MemAgent's data, without RULER's worked example in front.
"""

from __future__ import annotations

import random
import string
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.ruler.haystack import RULER_NOISE, Depths, Placement, noise_lines, weave
from benchmarks.ruler.sample import Draft, Metric, Needle, SampleKey, Sized
from benchmarks.ruler.templates import VT
from benchmarks.ruler.words import draw_distinct

HOPS = 4
"""Counts the copies of the first variable, as in RULER's setting: one chain of five variables."""


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
