"""RULER-HQA as published, in percent (MemAgent, arXiv 2507.02259): what a run of `--data hotpotqa` is set against.

Lengths are the published averages of 50, 100, ... documents; ours are token limits of the same name.
"""

from __future__ import annotations

from typing import Any

_PAPER = "arXiv 2507.02259v1, Table 2"
_FIGURE = "arXiv 2507.02259v1, Figure 5, read off"
_SEED = "slime-agentic's model card, best of 5 runs"

_ROWS: tuple[tuple[str, str, str, tuple[float, ...]], ...] = (
    # model, our variant, source, scores at 7K, 14K, ...
    ("RL-MemAgent-14B", "trained", _PAPER, (83.59, 82.03, 84.38, 80.47, 76.56, 81.25, 75.00, 77.34)),
    ("RL-MemAgent-7B", "trained", _PAPER, (82.03, 79.69, 78.91, 77.34, 79.69, 72.66, 74.22, 76.56)),
    ("MemAgent_Slime_Agentic_Qwen2.5_7B", "trained", _SEED, (78.12, 76.56, 75.78, 74.22, 77.34, 72.66, 69.53)),
    ("MemAgent-7B without RL", "untrained", _FIGURE, (59.4, 52.3, 51.6, 47.7, 35.9, 34.4, 39.1, 37.5)),
    ("Qwen2.5-7B, YaRN", "full-context", _FIGURE, (52.3, 57.0, 51.6, 44.5, 33.0, 13.3, 6.3, 1.6)),
    ("Qwen2.5-7B-1M", "full-context", _PAPER, (61.72, 56.25, 53.91, 55.47, 51.56, 33.59, 12.50, 0.00)),
    ("Qwen2.5-14B-1M", "full-context", _PAPER, (60.16, 60.94, 50.00, 57.03, 50.00, 37.50, 8.59, 0.00)),
)

DEPARTURES = (
    "answers are boxed, as in training; the official evaluation asks for 'the answer is'",
    "documents are cut to a token limit; the official ones have a fixed number of documents",
    "each seed draws its own distractors and their order",
)


def published_rows() -> list[dict[str, Any]]:
    """Rows for `RunFolder.save_published`."""
    return [
        {"name": name, "data": "hqa", "length": 7168 << i, "score": percent / 100, "source": source, "variant": variant}
        for name, variant, source, scores in _ROWS
        for i, percent in enumerate(scores)
    ]
