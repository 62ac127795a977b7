"""Makes up the world of the `tiny` preset, and writes it as passages of a corpus for the retrieval service.

    python -m agentic.search_r1.tiny.world --out runs/data/search_r1-tiny/corpus.jsonl

A thing such as `amber lamp` has an owner and a maker; a person such as `ada stone` has a home and a birth town. Every
fact follows from a hash of its title, so nobody can guess it. Nouns, last names and towns belong to one split each, so
no thing, person or town of training is in a held-out question or answer.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from random import Random
from typing import Literal, get_args

from core.data.files import write_records

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

ADJECTIVES = tuple(
    """
    amber black blue broad brown dark dull flat gold green grey heavy light long pale plain red round sharp short small
    soft white young
    """.split()
)
NOUNS = tuple(
    """
    anchor basket bell bench blanket bottle brush bucket button camera candle carpet chain chair clock compass cradle
    crown curtain desk drum engine feather fence flute fork globe guitar hammer helmet jacket kettle kite ladder lamp
    lantern mirror needle paddle pencil piano pillow ribbon saddle shovel spoon table wagon
    """.split()
)
FIRST_NAMES = tuple(
    """
    ada alma anna arne bela boris carla clara dana david edgar elena emil eva felix fiona frank greta hugo ida ivan jana
    jonas karl laura leo marc nora oskar rosa simon tilda
    """.split()
)
LAST_NAMES = tuple(
    """
    abbot archer baker barber becker bishop brewer butler carter cook cooper dyer fisher fletcher forester fowler
    gardener glover harper hunter keller knight marshal mason mercer miller painter parker piper porter potter reeve
    sawyer shepherd skinner slater smith spencer stone tanner taylor thatcher turner tyler walker weaver webster wright
    """.split()
)
TOWNS = tuple(
    """
    athens basel berlin bern bonn boston bremen cairo cork delhi dover dublin essen florence geneva genoa ghent halle
    hanoi kiel kyoto leeds leipzig lima lisbon london lyon madrid malmo milan minsk munich naples nice osaka oslo oxford
    paris perth prague quito riga rome sofia tokyo turin vienna york
    """.split()
)
WORDS = (*ADJECTIVES, *NOUNS, *FIRST_NAMES, *LAST_NAMES, *TOWNS)
OF_A_THING, OF_A_PERSON = ("owner", "maker"), ("home", "birth")
"""Name the facts of a thing, which are persons, and those of a person, which are towns."""


def divide(words: Sequence[str]) -> Mapping[Split, tuple[str, ...]]:
    """Give half of the words to training, an eighth to dev and the rest to test."""
    places = {"train": (0, 2, 4, 6), "dev": (1,), "test": (3, 5, 7)}
    return {split: tuple(w for i, w in enumerate(words) if i % 8 in places[split]) for split in SPLITS}


THINGS = {split: tuple(map(" ".join, product(ADJECTIVES, nouns))) for split, nouns in divide(NOUNS).items()}
PERSONS = {split: tuple(map(" ".join, product(FIRST_NAMES, names))) for split, names in divide(LAST_NAMES).items()}
TOWNS_OF = divide(TOWNS)


def find_facts(title: str) -> dict[str, str]:
    """Return the facts of a thing or a person: relation -> person or town. Raises KeyError for anything else."""
    for split in SPLITS:
        for titles, relations, values in (
            (THINGS, OF_A_THING, PERSONS),
            (PERSONS, OF_A_PERSON, TOWNS_OF),
        ):
            if title in titles[split]:
                return draw_facts(Random(f"facts of {title}"), relations, values[split])
    raise KeyError(title)


def draw_facts(rng: Random, relations: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Draw different values for the relations, in any order."""
    return dict(zip(rng.sample(relations, len(relations)), rng.sample(values, len(relations)), strict=True))


def write_passage(title: str, facts: Mapping[str, str]) -> str:
    """Write a passage such as `amber lamp` in the first line, `amber lamp: owner ada stone, ...` in the second."""
    return f"{title}\n{title}: {', '.join(f'{relation} {value}' for relation, value in facts.items())}."


def passages() -> Iterator[dict[str, str]]:
    """Yield a passage for each thing and person, in the form that core/retrieval reads."""
    for titles in (*THINGS.values(), *PERSONS.values()):
        for title in titles:
            yield {"id": title, "contents": write_passage(title, find_facts(title))}


def write_corpus(path: Path) -> None:
    write_records(path, passages())


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the corpus of the tiny preset.")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    try:
        write_corpus(options.out)
    except OSError as error:
        parser.error(f"--out {options.out}: cannot be written ({error.strerror})")


if __name__ == "__main__":
    main()
