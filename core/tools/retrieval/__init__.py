"""Retrieval: a corpus, an encoder and a FAISS index behind Search-R1's wire, and the client of that wire."""
