"""Makes up the world of the `tiny` preset: things, and for each thing who owns, made, bought and keeps it.

Every fact follows from a hash, so nobody can guess it. The tool `look_up` tells all facts of one thing.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Literal, get_args

from core.rollout.method import derive_seed
from core.text.tool_calls import ToolSchema

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

ATTRIBUTES = ("owner", "maker", "buyer", "keeper")
THINGS = tuple(
    """
    anchor apple basket bell bench blanket boat bottle brick broom brush bucket button camera candle canoe carpet cart
    chain chair clock coat compass cradle crown curtain desk drum engine feather fence flag flute fork globe glove
    guitar hammer hat helmet jacket jar kettle kite knife ladder lamp lantern
    """.split()
)
THINGS_OF: Mapping[Split, tuple[str, ...]] = {"train": THINGS[::2], "dev": THINGS[1::4], "test": THINGS[3::4]}
"""Gives each thing to one split, so the facts of training say nothing about a held-out question."""
NAMES = tuple(
    """
    ada alma anna arne bela bert boris carla cesar clara dana david dora edgar elena emil eva felix fiona frank greta
    gustav hanna hugo ida igor irma ivan jana jonas karl klara lars laura leo lydia marc maria nils nora olga oskar
    paula peter rosa rudi sara simon sofia sven tanja theo tilda tom ulla vera viktor walter wanda xaver yvonne zora
    """.split()
)

LOOK_UP = ToolSchema(
    "look_up",
    "Tells the owner, maker, buyer and keeper of a thing.",
    {"type": "object", "properties": {"thing": {"type": "string"}}, "required": ["thing"]},
)


def look_up(thing: str) -> str:
    """Tell all facts of a thing in an order of its own, such as `The lamp: maker ada, owner tom, ...`."""
    thing = thing.strip()
    if thing not in THINGS:
        return f"There is no {thing}."
    return describe(thing, {attribute: find_fact(attribute, thing) for attribute in ATTRIBUTES}, derive_seed(thing))


def find_fact(attribute: str, thing: str) -> str:
    """Return the name of a thing's owner, maker, buyer or keeper."""
    return NAMES[derive_seed("fact", attribute, thing) % len(NAMES)]


def describe(thing: str, facts: Mapping[str, str], seed: int) -> str:
    """Write facts down, in an order that `seed` draws."""
    order = Random(seed).sample(list(facts), len(facts))
    return f"The {thing}: {', '.join(f'{attribute} {facts[attribute]}' for attribute in order)}."
