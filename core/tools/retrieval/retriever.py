"""Corpus, encoder and index together: queries to passages."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.tools.retrieval.base import Encoder
from core.tools.retrieval.corpus import Corpus, Passage


@dataclass(frozen=True, slots=True)
class Hit:
    passage: Passage
    score: float


class Retriever:
    def __init__(self, corpus: Corpus, encoder: Encoder, index: Any):
        self.corpus, self.encoder, self.index = corpus, encoder, index

    def search(self, queries: Sequence[str], topks: Sequence[int]) -> list[list[Hit]]:
        """The best passages of each query, best first, at most its top k; none for a query without a word.

        Queries with the same k are searched together, and those with another apart, because an approximate index may
        find others for another k: what a query gets does not depend on who asks beside it.
        """
        vectors = self.encoder.encode(queries, "query")
        found: list[list[Hit]] = [[] for _ in queries]
        asked = [row for row, query in enumerate(queries) if query.strip() and vectors[row].any()]
        for k in {topks[row] for row in asked}:
            rows = [row for row in asked if topks[row] == k]
            scores, ids = self.index.search(np.ascontiguousarray(vectors[rows]), min(k, len(self.corpus)))
            for row, row_scores, row_ids in zip(rows, scores.tolist(), ids.tolist(), strict=True):
                # FAISS fills up with -1 where it finds fewer.
                pairs = zip(row_ids, row_scores, strict=True)
                found[row] = [Hit(self.corpus[id_], score) for id_, score in pairs if id_ >= 0]
        return found
