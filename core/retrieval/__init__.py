"""Retrieves passages: a service over a corpus, an encoder and a FAISS index, and its client."""
