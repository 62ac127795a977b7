"""Measures a router as RouteLLM does (arXiv 2406.18665, section 3.2): quality against the share of strong calls.

A router scores each prompt. The prompts of the highest scores go to the strong model. PGR is the share of the gap
between weak and strong that is recovered. It is measured at 11 shares of calls, 0 to 100 %. APGR is the area under it,
by the trapezoidal rule as in the released code, so chance has 0.5. CPT(x) is the least share of calls with a PGR of x.

Between two measured shares the curve is straight. Prompts of equal scores come in random order, so among them
the curve is straight. The released code cuts the scores into quantiles, which is the same where no scores are equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

SHARES: Numbers = np.linspace(0.0, 1.0, 11)
DRAWS = 1000
"""Counts the bootstrap samples of an interval."""


@dataclass(frozen=True)
class Outcomes:
    """Holds for each prompt whether the weak and the strong model answer it right, as 0 and 1."""

    weak: Numbers
    strong: Numbers

    def quality(self, pgr: Numbers) -> Numbers:
        """Return the share of right answers at a PGR."""
        return self.weak.mean() + pgr * (self.strong.mean() - self.weak.mean())


def recover_gap(scores: Numbers, outcomes: Outcomes, counts: Numbers | None = None) -> Numbers:
    """Return the PGR at each of SHARES; `counts` says how often each prompt is in the sample, by default once.

    Raises:
        ValueError: the strong model is not better than the weak one, so there is no gap.
    """
    counts = np.ones(len(scores)) if counts is None else counts
    order = np.argsort(-scores, kind="stable")
    gains = (counts * (outcomes.strong - outcomes.weak))[order]
    if gains.sum() <= 0:
        raise ValueError("the strong model is not better than the weak one; take more prompts")
    last = np.append(np.diff(scores[order]) != 0, True)  # marks the last prompt of each run of equal scores
    calls = np.append(0.0, np.cumsum(counts[order])[last]) / counts.sum()
    return np.interp(SHARES, calls, np.append(0.0, np.cumsum(gains)[last]) / gains.sum())


def average_recovery(pgr: Numbers) -> float:
    """Return APGR."""
    return float((pgr[1:] + pgr[:-1]).mean() / 2)


def call_threshold(pgr: Numbers, wanted: float) -> float:
    """Return CPT(wanted): the least share of calls at which the curve reaches a PGR of `wanted`, below 1."""
    place = int(np.argmax(pgr >= wanted))  # the last point is 1
    return float(np.interp(wanted, pgr[place - 1 : place + 1], SHARES[place - 1 : place + 1]))


def measure(pgr: Numbers) -> Numbers:
    """Return APGR, CPT(50) and CPT(80)."""
    return np.array([average_recovery(pgr), call_threshold(pgr, 0.5), call_threshold(pgr, 0.8)])


@dataclass(frozen=True)
class Measured:
    """Holds APGR, CPT(50) and CPT(80), their bootstrap draws, and the quality at each of SHARES."""

    values: Numbers
    draws: Numbers
    quality: Numbers

    def interval(self, place: int) -> tuple[float, float]:
        low, high = np.quantile(self.draws[:, place], [0.025, 0.975])
        return float(low), float(high)

    def to_json(self) -> dict[str, Any]:
        names = ("apgr", "cpt_50", "cpt_80")
        measured = {name: [float(self.values[i]), *self.interval(i)] for i, name in enumerate(names)}
        return {**measured, "quality": dict(zip(SHARES.round(1).tolist(), self.quality.tolist(), strict=True))}


def measure_router(scores: Numbers, outcomes: Outcomes, seed: int = 0, draws: int = DRAWS) -> Measured:
    """Measure a router, with bootstrap draws over prompts. Routers of the same prompts and `seed` share the draws."""
    rng, n = np.random.default_rng(seed), len(scores)
    curve = recover_gap(scores, outcomes)
    samples = (np.bincount(rng.integers(n, size=n), minlength=n).astype(float) for _ in range(draws))
    drawn = np.array([measure(recover_gap(scores, outcomes, counts)) for counts in samples])
    return Measured(measure(curve), drawn, outcomes.quality(curve))


def average(measured: Sequence[Measured]) -> Measured:
    """Return the mean over splits. Their draws are independent of each other."""
    columns = [np.mean([getattr(one, name) for one in measured], axis=0) for name in ("values", "draws", "quality")]
    return Measured(*columns)
