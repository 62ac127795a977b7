"""Makes up the facts of the `tiny` preset: what things cost, weigh and so on, and which item has which number.

Every fact follows from a hash, so nobody can guess it. Every fact belongs to one split, so the facts of training say
nothing about a held-out question.
"""

from __future__ import annotations

import re
from typing import Literal, get_args

from core.seeds import derive_seed

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

ATTRIBUTES = ("price", "weight", "length", "age")
ENTITIES = tuple(
    """
    anchor apple basket bell bench blanket boat bottle brick broom brush bucket button camera candle canoe carpet cart
    chain chair clock coat compass cradle crown curtain desk drum engine feather fence flag flute fork globe glove
    guitar hammer hat helmet jacket jar kettle kite knife ladder lamp lantern mirror nail needle oven paddle pencil
    piano pillow pipe plate pump rope saddle sail shovel spoon
    """.split()
)
OTHER_ENTITIES = (
    "stove sword table tent towel tray trumpet umbrella vase violin wagon wallet wheel whistle window yarn".split()
)
"""Are in no question of training and in no demonstration; the policy meets them in the drills alone."""
WORDS = (*ATTRIBUTES, *ENTITIES, *OTHER_ENTITIES)
UNKNOWN = "unknown"


def look_up(query: str) -> str:
    """Answer `price of lamp` with two digits, `item 1739` with an entity, and every other query with UNKNOWN."""
    match = re.fullmatch(r"(\w+) of (\w+)", query)
    if match and match[1] in ATTRIBUTES and match[2] in (*ENTITIES, *OTHER_ENTITIES):
        return str(10 + derive_seed("world", query) % 90)
    if re.fullmatch(r"item -?\d+", query):
        return ENTITIES[derive_seed("world", query) % len(ENTITIES)]
    return UNKNOWN


def assign_split(query: str) -> Split:
    """Return the split of a query: five in eight belong to training, one to dev, two to test."""
    return SPLITS[(0, 0, 0, 0, 0, 1, 2, 2)[derive_seed("split", query) % 8]]
