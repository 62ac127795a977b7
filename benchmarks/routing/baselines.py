"""Routers that need no language model: what a trained policy has to be better than.

| router | score of a prompt |
|---|---|
| random | the same for all prompts |
| length | its characters |
| ridge | ridge regression on TF-IDF of words and pairs of words; the target is the gain |
| oracle | the gain itself: a bound |

The gain is 1 where only the strong model is right, -1 where only the weak one is, else 0.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.routing.curve import Numbers

REGULARIZATION = 3.0
ITERATIONS = 100
MIN_DOCUMENTS = 2
"""Leaves out words in fewer training prompts."""

Places = NDArray[np.int64]

Prompts = Sequence[Mapping[str, Any]]
"""Holds records with `prompt`, `set`, `weak` and `strong`."""


def gains(prompts: Prompts) -> Numbers:
    return np.array([float(p["strong"]) - float(p["weak"]) for p in prompts])


def score_by_ridge(train: Prompts, test: Prompts) -> Numbers:
    """Fit the weights by conjugate gradients, so that nothing but the words that occur is in memory."""
    texts = [count_words(p["prompt"]) for p in train]
    documents = Counter(word for text in texts for word in text)
    words = {word: i for i, word in enumerate(word for word, n in documents.items() if n >= MIN_DOCUMENTS)}
    idf = np.array([1 + np.log((1 + len(train)) / (1 + documents[word])) for word in words])
    rows, columns, values = weigh_words(texts, words, idf)
    target = gains(train)
    target = target - target.mean()

    def apply(weights: Numbers) -> Numbers:
        seen = add_up(rows, values * weights[columns], len(train))
        return add_up(columns, values * seen[rows], len(words)) + REGULARIZATION * weights

    rest = add_up(columns, values * target[rows], len(words))
    weights, direction = np.zeros(len(words)), rest
    for _ in range(ITERATIONS):
        if (square := rest @ rest) < 1e-12:
            break
        applied = apply(direction)
        step = square / (direction @ applied)
        weights = weights + step * direction
        rest = rest - step * applied
        direction = rest + (rest @ rest) / square * direction
    rows, columns, values = weigh_words([count_words(p["prompt"]) for p in test], words, idf)
    return add_up(rows, values * weights[columns], len(test))


def add_up(places: Places, values: Numbers, size: int) -> Numbers:
    """Return the sum of the values at each place."""
    return np.bincount(places, values, size).astype(np.float64)


def count_words(text: str) -> Counter[str]:
    """Count the words of a text and its pairs of neighbouring words."""
    words = re.findall(r"\w\w+", text.lower())
    return Counter([*words, *map(" ".join, pairwise(words))])


def weigh_words(
    texts: Sequence[Counter[str]], words: Mapping[str, int], idf: Numbers
) -> tuple[Places, Places, Numbers]:
    """Return rows, columns and values of the TF-IDF matrix, whose rows have length 1."""
    found = [
        (row, words[word], 1 + np.log(n)) for row, text in enumerate(texts) for word, n in text.items() if word in words
    ]
    rows, columns = (np.array([entry[i] for entry in found], dtype=np.int64) for i in (0, 1))
    values = np.array([entry[2] for entry in found]) * idf[columns]
    return rows, columns, values / np.sqrt(add_up(rows, values**2, len(texts)))[rows]


BASELINES: Mapping[str, Callable[[Prompts, Prompts], Numbers]] = {
    "random": lambda train, test: np.zeros(len(test)),
    "length": lambda train, test: np.array([float(len(p["prompt"])) for p in test]),
    "ridge": score_by_ridge,
    "oracle": lambda train, test: gains(test),
}
