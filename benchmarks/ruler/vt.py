"""Makes variable tracking (RULER, arXiv 2404.06654, section 3.2): chains of assignments hidden in noise.

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


@dataclass(frozen=True)
class VariableTracking:
    """Hides `num_chains` chains of `num_hops` copies; the question asks for every variable of the first chain."""

    name: str = "vt"
    num_chains: int = 1
    num_hops: int = 4
    placement: Placement = "uniform"
    noise: tuple[str, ...] = RULER_NOISE

    metric: Metric = "string_match_all"
    new_tokens: int = VT.new_tokens

    def __post_init__(self) -> None:
        if self.num_chains < 1 or self.num_hops < 0:
            raise ValueError(f"{self.name}: at least one chain and no negative hops, got {self}")

    def draw(self, key: SampleKey) -> Sized:
        rng = key.rng("chains")
        size = self.num_hops + 1
        names = draw_distinct(_variable, size * self.num_chains, rng)
        numbers = draw_distinct(lambda r: str(r.randrange(10_000, 99_999)), self.num_chains, rng)
        chains = [names[i * size : (i + 1) * size] for i in range(self.num_chains)]
        depths = [Depths(size, self.placement, key.rng(f"depths/{i}"), lines=True) for i in range(self.num_chains)]
        facts = [
            (variable, value, i == 0)
            for i, (chain, number) in enumerate(zip(chains, numbers, strict=True))
            for variable, value in [(chain[0], number), *((copy, f"VAR {source} ") for source, copy in pairwise(chain))]
        ]

        def build(units: int) -> Draft:
            slots = [slot for chain in depths for slot in sorted(chain.slots(units))]
            inserts = [
                (slot, f"VAR {variable} = {value}") for slot, (variable, value, _) in zip(slots, facts, strict=True)
            ]
            context, starts = weave(noise_lines(self.noise, units), inserts, "\n")
            needles = tuple(
                Needle(variable, value.strip(), queried, start)
                for (variable, value, queried), start in zip(facts, starts, strict=True)
            )
            return VT.fill(context, tuple(chains[0]), needles, query=numbers[0], count=size)

        return Sized(build, smallest=size)


def _variable(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_uppercase, k=5))
