"""Derives seeds from what they are for, so that a run repeats on every machine and in every process."""

from __future__ import annotations

import hashlib


def derive_seed(*parts: object) -> int:
    """Derive a 63-bit seed from values with a stable text; it is the same on every machine and in every process."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
