"""What an encoder of texts is, and the vectors that it returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt

Kind = Literal["query", "passage"]
Vectors = npt.NDArray[np.float32]
"""[texts, dimension], rows of length 1; a text without anything to encode is a row of zeros."""


class EncoderError(ValueError):
    """An encoder that cannot be had; the message names it and the fix."""


class Encoder(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def dimension(self) -> int: ...

    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors: ...


def normalise(vectors: Vectors) -> Vectors:
    """In place; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=vectors, where=lengths > 0)
