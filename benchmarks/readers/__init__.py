"""Compares MemAgent, its options, RLM, compaction and full context on the same tasks, at three lengths."""
