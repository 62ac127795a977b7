"""Retrieves passages: a service over a corpus, an encoder and a FAISS index, and its client.

README.md shows what to import. A method needs the client alone, and no FAISS. The modules named in `__all__` are what
a service is made of.
"""

from typing import TYPE_CHECKING

from core.options import open_later

if TYPE_CHECKING:
    from core.retrieval.client import MAX_QUERY_CHARS, Hit, RetrievalClient, RetrievalError

__all__ = [
    "MAX_QUERY_CHARS",
    "Hit",
    "RetrievalClient",
    "RetrievalError",
    "corpus",
    "encoders",
    "index",
    "index_folder",
    "server",
]
__getattr__ = open_later(__name__)
