"""Routing between a weak and a strong model: quality against calls, with RouteLLM's measures."""
