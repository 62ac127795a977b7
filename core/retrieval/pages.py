"""Finds pages of a corpus. A page is all passages with one title: the first line of each, without quotes around it."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import numpy.typing as npt

from core.retrieval.corpus import Corpus

MAX_PASSAGES = 16_384
"""Bounds the passages of a page: of more, which may share a title such as `Untitled`, only the first are read."""


class Pages:
    """Gives the text of pages, to one thread.

    The first call reads the whole corpus; 16 bytes of each passage stay in memory.
    """

    def __init__(self, corpus: Corpus):
        self._corpus = corpus

    def find(self, name: str) -> str | None:
        """Return the page with this title, or else that of the passage with this id; None if there is neither.

        It is the text of its passages in the order of the corpus, without their titles, a line each.
        """
        titles, ids = self._hashes  # of 64 bits, so two titles are taken for one with a chance of 1 in 10^12
        rows = np.flatnonzero(titles == hash(_read_title(name)))
        if not rows.size and (named := np.flatnonzero(ids == hash(name.strip()))).size:
            rows = np.flatnonzero(titles == titles[named[0]])
        parts = [self._corpus[row].contents.partition("\n") for row in rows[:MAX_PASSAGES].tolist()]
        return "\n".join(text if end else title for title, end, text in parts) if parts else None

    @cached_property
    def _hashes(self) -> npt.NDArray[np.int64]:
        """The hashes of titles and ids, int64 [2, passages]. A passage without a title is a page of its own."""
        passages = map(self._corpus.__getitem__, range(len(self._corpus)))
        hashes = (hash(key) for p in passages for key in (_read_title(p.contents) or (p.id,), str(p.id)))
        return np.fromiter(hashes, np.int64, 2 * len(self._corpus)).reshape(-1, 2).T.copy()


def _read_title(text: str) -> str:
    return text.partition("\n")[0].strip().strip(' \t"')
