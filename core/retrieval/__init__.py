"""Retrieves passages: a service over a corpus, an encoder and a FAISS index, and its client.

README.md shows what to import. Only the client is imported here: a method needs no FAISS. The modules named in
`__all__` are what a service is made of.
"""

from core.retrieval.client import Hit, RetrievalClient, RetrievalError

__all__ = ["Hit", "RetrievalClient", "RetrievalError", "corpus", "encoders", "index", "index_folder", "server"]
