"""Makes up the facts of the preset `tiny`: things, and for each of them its owner, maker, buyer and keeper.

Every task has a world of its own, whose number is in the task's `metadata`. A fact follows from a hash of the world
and the thing, so nobody can guess or remember it. The tool `look_up` tells all facts of one thing.

The module is apart from world.py because programs that look up a fact import little else.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from core.text.tool_calls import make_schema
from core.types import derive_seed

RELATIONS = ("owner", "maker", "buyer", "keeper")
ASKED = RELATIONS[0]
"""Names what every question asks for."""
THINGS = """
    anchor apple basket bell bench blanket boat bottle brick broom brush bucket button camera candle canoe carpet cart
    chain chair clock coat compass cradle crown curtain desk drum engine feather fence flag flute fork globe glove
    guitar hammer hat helmet jacket jar kettle kite knife ladder lamp lantern
    """.split()
NAMES = """
    ada alma anna arne bela bert boris carla cesar clara dana david dora edgar elena emil eva felix fiona frank greta
    gustav hanna hugo ida igor irma ivan jana jonas karl klara lars laura leo lydia marc maria nils nora olga oskar
    paula peter rosa rudi sara simon sofia sven tanja theo tilda tom ulla vera viktor walter wanda xaver yvonne zora
    """.split()
LOOK_UP = make_schema("look_up", "Tells the owner, maker, buyer and keeper of a thing.", {"thing": "string"})


def look_up(thing: str, world: int) -> str:
    """Tell all facts of a thing, such as `The lamp: maker ada, owner tom, ...`."""
    thing = thing.strip()
    return describe(thing, find_facts(thing, world)) if thing in THINGS else f"There is no {thing}."


def find_facts(thing: str, world: int) -> dict[str, str]:
    """Return the facts of a thing: relation -> name."""
    return draw_facts(Random(derive_seed("facts", world, thing)))


def draw_facts(rng: Random) -> dict[str, str]:
    """Draw a name for each relation; the order is drawn, too."""
    return dict(zip(rng.sample(RELATIONS, len(RELATIONS)), rng.sample(NAMES, len(RELATIONS)), strict=True))


def describe(thing: str, facts: Mapping[str, str]) -> str:
    return f"The {thing}: {', '.join(f'{relation} {name}' for relation, name in facts.items())}."
