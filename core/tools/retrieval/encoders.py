"""The hashing encoder, which needs no download, and encoders by name."""

from __future__ import annotations

import math
import re
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from core.tools.retrieval.base import Encoder, EncoderError, Kind, Vectors, normalise

STOP_WORDS = frozenset(
    """a about after all also an and any are as at be because been before being between both but by can could did do
    does during each for from had has have he her hers him his how i if in into is it its itself me more most my no nor
    not of off on once only or other our out over own s same she should so some such t than that the their them then
    there these they this those through to too under until up very was we were what when where which while who whom why
    will with would you your""".split()
)
_WORD = re.compile(r"\w+")
_PAIR_WEIGHT = 0.5
HASHING_DIMENSION = 1024
_MULTIPLIERS = np.random.default_rng(0).integers(1 << 63, size=8, dtype=np.uint64) | np.uint64(1)


class HashingEncoder:
    """Words and pairs of neighbouring words, each hashed to a few signed dimensions; counts are damped by 1 + ln.

    Retrieves by shared words, not by meaning. Stop words are left out, which does here what weights by document
    frequency would do, without anything to be fitted and stored. A pair counts half as much as a word. On one dimension
    each, two features that collide would be the same; on several, they are a little alike.
    """

    def __init__(self, dimension: int = HASHING_DIMENSION):
        self.dimension = dimension
        self.name = f"hashing-{dimension}"

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            words = [word for word in _WORD.findall(text.lower()) if word not in STOP_WORDS]
            weights = {word: 1 + math.log(count) for word, count in Counter(words).items()}
            for pair, count in Counter(pairwise(words)).items():
                weights[" ".join(pair)] = _PAIR_WEIGHT * (1 + math.log(count))
            vector[:] = self._sum(weights)
        return normalise(vectors)

    def _sum(self, weights: Mapping[str, float]) -> npt.NDArray[np.float64]:
        """The weighted sum of the features' vectors: [dimension]"""
        # CRC-32 is the same in every process, which Python's own hash is not; the multipliers make several of it.
        codes = np.array([zlib.crc32(feature.encode()) for feature in weights], np.uint64)[:, None] * _MULTIPLIERS
        places = (codes >> np.uint64(33)) % np.uint64(self.dimension)
        signs = np.where(codes >> np.uint64(32) & np.uint64(1), 1.0, -1.0)
        signed = signs * np.fromiter(weights.values(), float)[:, None]
        return np.bincount(places.ravel().astype(np.intp), signed.ravel(), self.dimension).astype(np.float64)


def make_encoder(name: str, device: str = "auto") -> Encoder:
    """`hashing`, `hashing=DIMENSION`; a family of `transformer.FAMILIES`, FAMILY=PATH_OR_HUB_ID; or a path or hub id
    that has a family's name in it.

    Raises:
        EncoderError: no such encoder, or its model cannot be loaded.
    """
    family, _, model = name.partition("=")
    if family == "hashing":
        if model and not (model.isdecimal() and int(model) > 0):
            raise EncoderError(f"encoder {name!r}: {model!r} is no dimension; write hashing or, say, hashing=1024")
        return HashingEncoder(int(model or HASHING_DIMENSION))
    from core.tools.retrieval.transformer import FAMILIES, TransformerEncoder

    if not model and family not in FAMILIES:
        model = name
        family = next((known for known in FAMILIES if known in model.lower()), "")
    if family not in FAMILIES:
        known = ", ".join(("hashing", *FAMILIES))
        raise EncoderError(f"encoder {name!r}: not one of {known}; for another model write FAMILY=PATH_OR_HUB_ID")
    return TransformerEncoder(FAMILIES[family], model or FAMILIES[family].model, device)
