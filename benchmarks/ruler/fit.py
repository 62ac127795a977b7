"""Fits documents to a wanted token length: how many units fit, found with two or three tokenizations of the whole."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import BeforeValidator

JUMP = 32
"""How far beyond the last measured size a rate is trusted."""

TOLERANCE = 0.001
"""Share of the limit that may stay unused, where that is more than one unit."""


def parse_length(text: str) -> int:
    """Read a number of tokens: 7168, 7K (7 x 1024) or 3.5M (3.5 x 1024 x 1024)."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KkMm]?)", text.strip())
    tokens = float(match[1]) * {"": 1, "k": 1024, "m": 1024**2}[match[2].lower()] if match else 0.0
    if tokens < 1 or not tokens.is_integer():
        raise ValueError(f"length {text!r}: not a number of tokens. Write 7168, 7K (7 x 1024) or 3.5M")
    return int(tokens)


Length = Annotated[int, BeforeValidator(parse_length)]


def token_counter(tokenizer: Any) -> Callable[[str], int]:
    """Return a function from a text to its number of tokens, without special tokens.

    `tokenizer` is a Hugging Face tokenizer, or any callable from text to a list of ids.
    """
    if hasattr(tokenizer, "convert_ids_to_tokens"):
        return lambda text: len(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
    return lambda text: len(tokenizer(text))


def fit_units(
    tokens: Callable[[int], int], limit: int, *, smallest: int = 1, largest: int | None = None
) -> tuple[int, int]:
    """Return the number of units that fill `limit` tokens to within one unit or 0.1%, and their exact token count.

    `tokens(units)` should grow with `units`. A secant search inside a bracket: each probe aims by the tokens per unit
    seen so far, so most probes are small and only the last one or two are of full size. The result depends on the
    arguments alone.

    Raises:
        ValueError: even `smallest` units are too many, or `largest` too few to come near the limit.
    """
    low, low_tokens, high = smallest, tokens(smallest), None
    if low_tokens > limit:
        raise ValueError(f"the smallest sample ({smallest} units) has {low_tokens} tokens, over the limit of {limit}")
    margin = limit * TOLERANCE
    rate = max(low_tokens / max(smallest, 1), 1e-3)
    while limit - low_tokens > margin and (high is None or high - low > 1):
        if low == largest:
            if limit - low_tokens > max(2 * rate, 10 * margin):
                raise ValueError(f"all {largest} units together have {low_tokens} tokens, too few for {limit}")
            break
        aim = limit - low_tokens - margin / 2
        if high is not None and limit - low_tokens < rate:
            break
        probe = min(low + max(1, int(aim / rate)), JUMP * max(low, 1))
        probe = min(bound for bound in (probe, largest, high and high - 1) if bound is not None)
        probe_tokens = tokens(probe)
        if probe_tokens > limit or probe - low >= low / JUMP:
            rate = max((probe_tokens - low_tokens) / (probe - low), 1e-3)
        if probe_tokens > limit:
            high = probe
        else:
            low, low_tokens = probe, probe_tokens
    return low, low_tokens
