"""Makes up the facts of the `tiny` preset, and writes them as passages of a corpus for the retrieval service.

    python -m agentic.toolorchestra.tiny.facts --out runs/data/toolorchestra-tiny/corpus.jsonl

Every fact is drawn by its name, so only the corpus, or an expert who knows the facts, can tell it. Every thing belongs
to one split, so no thing of training is in a held-out question.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Literal, get_args

from core.data.files import write_records

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

ATTRIBUTES = ("price", "weight", "length", "width", "age", "speed", "rank", "score")
THINGS = tuple(
    """
    anchor apple basket bell bench blanket boat bottle brick broom brush bucket button camera candle canoe carpet
    cart chain chair chest clock coat compass cradle crane crown curtain cushion desk drum engine fan feather fence
    flag flute fork frame globe glove guitar hammer harp hat helmet jacket jar kettle kite knife ladder lamp lantern
    mirror nail needle oven paddle pencil piano pillow pipe plate pump purse ribbon ring rope ruler saddle sail
    scarf shell shield shoe shovel spoon table tent
    """.split()
)


def fact_value(fact: str) -> int:
    """Return the two digits of a fact such as `price of lamp`. Raises KeyError for any other text."""
    match = re.fullmatch(r"(\w+) of (\w+)", fact)
    if not match or match[1] not in ATTRIBUTES or match[2] not in THINGS:
        raise KeyError(fact)
    return Random(f"value of the {fact}").randint(10, 99)


def assign_split(text: str) -> Split:
    """Return the split of a thing or an expression: four in eight belong to training, one to dev, three to test."""
    return Random(f"split of {text}").choice(("train", "train", "train", "train", "dev", "test", "test", "test"))


def passages() -> Iterator[dict[str, str]]:
    """Yield a passage for each fact, in the form that core/retrieval reads: a title, then a sentence."""
    for thing in THINGS:
        for attribute in ATTRIBUTES:
            fact = f"{attribute} of {thing}"
            yield {"id": fact, "contents": f"{thing}\nThe {fact} is {fact_value(fact)}."}


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
