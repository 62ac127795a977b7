"""Encoders that are transformers. Pooling and prefixes are those of each family's model card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch.nn.functional import normalize

from core.tools.retrieval.base import EncoderError, Kind, Vectors


@dataclass(frozen=True, slots=True)
class Family:
    model: str
    """The hub id taken where no other model is named."""
    pooling: Literal["mean", "last"]
    query_prefix: str = ""
    passage_prefix: str = ""
    max_tokens: int = 256
    """What a text is cut to, special tokens included."""


FAMILIES = {
    "minilm": Family("sentence-transformers/all-MiniLM-L6-v2", "mean"),
    "e5": Family("intfloat/e5-base-v2", "mean", "query: ", "passage: "),
    "qwen3-embedding": Family(
        "Qwen/Qwen3-Embedding-8B",
        "last",
        "Instruct: Given a search query, retrieve relevant passages that answer the query\nQuery:",
        max_tokens=1024,
    ),
}


class TransformerEncoder:
    """A Hugging Face checkpoint, in float16 on a GPU and float32 elsewhere."""

    def __init__(self, family: Family, model: str, device: str = "auto", batch_size: int = 64):
        from transformers import AutoModel, AutoTokenizer

        self.name, self._family, self._batch_size = model, family, batch_size
        self._device = torch.device(("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device)
        dtype = torch.float32 if self._device.type == "cpu" else torch.float16
        # With the padding to the left, the last position is the last token of every text.
        side = "left" if family.pooling == "last" else "right"
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(model, padding_side=side)
            self._model = AutoModel.from_pretrained(model, dtype=dtype).to(self._device).eval()
        except (OSError, ValueError) as error:
            raise EncoderError(f"encoder {model}: neither a model folder nor had from the hub ({error})") from error
        self.dimension = int(self._model.config.hidden_size)

    @torch.inference_mode()
    def encode(self, texts: Sequence[str], kind: Kind) -> Vectors:
        prefix = self._family.query_prefix if kind == "query" else self._family.passage_prefix
        vectors = np.empty((len(texts), self.dimension), np.float32)
        by_length = sorted(range(len(texts)), key=lambda row: len(texts[row]))  # less padding in each batch
        for start in range(0, len(texts), self._batch_size):
            rows = by_length[start : start + self._batch_size]
            vectors[rows] = self._encode_batch([prefix + texts[row] for row in rows]).cpu().numpy()
        return vectors

    def _encode_batch(self, texts: list[str]) -> torch.Tensor:
        """float32 [texts, dimension]"""
        inputs = self._tokenizer(
            texts, padding=True, truncation=True, max_length=self._family.max_tokens, return_tensors="pt"
        ).to(self._device)
        hidden = self._model(**inputs).last_hidden_state.float()
        if self._family.pooling == "last":
            return normalize(hidden[:, -1], dim=-1)
        mask = inputs["attention_mask"].unsqueeze(-1)
        return normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)
