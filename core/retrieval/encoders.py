"""Encodes texts by shared words, which needs no download, or by a transformer; `make_encoder` makes either by name.

Pooling and prefixes of the transformers follow each family's model card.
"""

from __future__ import annotations

import logging
import math
import re
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)

TextKind = Literal["query", "passage"]
Vectors = npt.NDArray[np.float32]
"""Holds one row of length 1 for each text, [texts, dimension]; a text without anything to encode is a row of zeros."""


class EncoderError(ValueError):
    """Reports an encoder that cannot be had; the message names it and the fix."""


def normalize_rows(vectors: Vectors) -> Vectors:
    """Scale rows to length 1, in place; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, lengths, out=vectors, where=lengths > 0)


STOP_WORDS = frozenset(
    """a about after all also an and any are as at be because been before being between both but by can could did do
    does during each for from had has have he her hers him his how i if in into is it its itself me more most my no nor
    not of off on once only or other our out over own s same she should so some such t than that the their them then
    there these they this those through to too under until up very was we were what when where which while who whom why
    will with would you your""".split()
)
_SPACELESS = "\u0e00-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_SPACELESS}]|[^\W{_SPACELESS}]+")
"""Matches a word, or one character of Thai to Burmese, Khmer, Japanese or Chinese, which put no spaces between words.

The ranges are those of core/rewards/answers.py, which this library does not import."""
_PAIR_WEIGHT = 0.5
HASHING_DIMENSION = 1024
_MULTIPLIERS = np.random.default_rng(0).integers(1 << 63, size=8, dtype=np.uint64) | np.uint64(1)


class HashingEncoder:
    """Hashes words and pairs of neighbouring words to a few signed dimensions each; counts are damped by 1 + ln.

    It retrieves by shared words, not by meaning. It ignores stop words; weights by document frequency would do the
    same, but they must be fitted and stored. A pair counts half as much as a word. Each feature has several dimensions:
    two features that collide on one of them are a little alike, not equal.
    """

    form = ""

    def __init__(self, dimension: int = HASHING_DIMENSION):
        self.dimension = dimension
        self.name = f"hashing-{dimension}"

    def encode(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        vectors = np.zeros((len(texts), self.dimension), np.float32)
        for vector, text in zip(vectors, texts, strict=True):
            plain = unicodedata.normalize("NFC", text.lower())
            words = [word for word in _WORD.findall(plain) if word not in STOP_WORDS]
            weights = {word: 1 + math.log(count) for word, count in Counter(words).items()}
            for pair, count in Counter(pairwise(words)).items():
                weights[" ".join(pair)] = _PAIR_WEIGHT * (1 + math.log(count))
            vector[:] = self._add_features(weights)
        return normalize_rows(vectors)

    def _add_features(self, weights: Mapping[str, float]) -> npt.NDArray[np.float64]:
        """Return the weighted sum of the features' vectors: [dimension]."""
        # codes, dimensions and signs: [features, 8], one column for each multiplier.
        # CRC-32 is the same in every process, which Python's own hash is not; the multipliers make several of it.
        codes = np.array([zlib.crc32(feature.encode()) for feature in weights], np.uint64)[:, None] * _MULTIPLIERS
        dimensions = (codes >> np.uint64(33)) % np.uint64(self.dimension)
        signs = np.where(codes >> np.uint64(32) & np.uint64(1), 1.0, -1.0)
        signed = signs * np.fromiter(weights.values(), float)[:, None]
        return np.bincount(dimensions.ravel().astype(np.intp), signed.ravel(), self.dimension).astype(np.float64)


@dataclass(frozen=True, slots=True)
class EncoderFamily:
    model: str
    """Names the model on the hub that is used if no other is given."""
    pooling: Literal["mean", "last"]
    query_prefix: str = ""
    passage_prefix: str = ""
    max_tokens: int = 256
    """Limits the tokens of a text, with special tokens."""


FAMILIES = {
    "minilm": EncoderFamily("sentence-transformers/all-MiniLM-L6-v2", "mean"),
    "e5": EncoderFamily("intfloat/e5-base-v2", "mean", "query: ", "passage: "),
    "qwen3-embedding": EncoderFamily(
        "Qwen/Qwen3-Embedding-8B",
        "last",
        "Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
        max_tokens=1024,
    ),
}


def _answers(model: str) -> bool:
    """Return whether the hub answers to the id `model`; loading would try for a minute to reach one that does not."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        HfApi().model_info(model, timeout=10)
    except HfHubHTTPError:  # it says no, and loading says so better
        return True
    except Exception:  # the transport has kinds of its own
        return False
    return True


class TransformerEncoder:
    """Encodes with a Hugging Face checkpoint, in float16 on a GPU and float32 elsewhere."""

    def __init__(self, family: EncoderFamily, model: str, device: str = "auto", batch_size: int = 64):
        import torch  # neither is needed to serve the hashing encoder
        from transformers import AutoModel, AutoTokenizer

        self.name = model
        self.form = f"{family.pooling} of at most {family.max_tokens} tokens behind {family.passage_prefix!r}"
        self._family = family
        self._batch_size = batch_size
        self._cut_kinds: set[TextKind] = set()
        self._device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        dtype = torch.float32 if self._device.type == "cpu" else torch.float16
        # Padding is on the left: the last position is the last token of every text.
        side = "left" if family.pooling == "last" else "right"
        try:
            cached = {"local_files_only": not (Path(model).is_dir() or _answers(model))}
            self._tokenizer = AutoTokenizer.from_pretrained(model, padding_side=side, **cached)
            self._model = AutoModel.from_pretrained(model, dtype=dtype, **cached).to(self._device).eval()
        except (OSError, ValueError) as error:
            raise EncoderError(f"encoder {model}: neither a model folder nor had from the hub ({error})") from error
        self.dimension = int(self._model.config.hidden_size)

    def encode(self, texts: Sequence[str], kind: TextKind) -> Vectors:
        import torch

        prefix = self._family.query_prefix if kind == "query" else self._family.passage_prefix
        vectors = np.empty((len(texts), self.dimension), np.float32)
        by_length = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # less padding in each batch
        for start in range(0, len(texts), self._batch_size):
            rows = by_length[start : start + self._batch_size]
            with torch.inference_mode():
                vectors[rows] = self._encode_batch([prefix + texts[row] for row in rows], kind).cpu().numpy()
        return vectors

    def _encode_batch(self, texts: list[str], kind: TextKind) -> torch.Tensor:
        """Return float32 vectors: [texts, dimension]. The first text of a kind that is cut gives a warning."""
        from torch.nn.functional import normalize

        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._family.max_tokens, return_tensors="pt"
        ).to(self._device)
        if kind not in self._cut_kinds and any(each.overflowing for each in inputs.encodings or ()):
            self._cut_kinds.add(kind)
            lost = {"query": "searched for", "passage": "found"}[kind]
            about = "%s: reads the first %d tokens of a %s, and one has more; what stands behind them is not %s"
            logger.warning(about, self.name, self._family.max_tokens, kind, lost)
        # hidden: [texts, tokens, dimension]; mask: [texts, tokens, 1]
        hidden = self._model(**inputs).last_hidden_state.float()
        if self._family.pooling == "last":
            return normalize(hidden[:, -1], dim=-1)
        mask = inputs["attention_mask"].unsqueeze(-1)
        return normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)


Encoder = HashingEncoder | TransformerEncoder


def make_encoder(name: str, device: str = "auto") -> Encoder:
    """Make an encoder by name.

    A name is `hashing`, `hashing=DIMENSION`, a family of `FAMILIES`, FAMILY=PATH_OR_HUB_ID, or a path or hub id whose
    last part has a family's name in it.

    Raises:
        EncoderError: there is no such encoder, or its model cannot be loaded.
    """
    family, _, model = name.partition("=")
    if family == "hashing":
        if model and not (model.isdecimal() and int(model) > 0):
            raise EncoderError(f"encoder {name!r}: {model!r} is no dimension; write hashing or, say, hashing=1024")
        return HashingEncoder(int(model or HASHING_DIMENSION))
    if not model and family not in FAMILIES:
        model = name
        words = f"-{re.sub(r'[^a-z0-9]+', '-', Path(model).name.lower())}-"
        # Relatives such as e5-mistral-7b-instruct pool otherwise, or have other prefixes.
        family = next((known for known in FAMILIES if f"-{known}-" in words and "-instruct-" not in words), "")
    if family not in FAMILIES:
        known = ", ".join(("hashing", *FAMILIES))
        raise EncoderError(f"encoder {name!r}: not one of {known}; for another model write FAMILY=PATH_OR_HUB_ID")
    return TransformerEncoder(FAMILIES[family], model or FAMILIES[family].model, device)
