"""Keys and values: words, seven-digit numbers, uuids. Word lists are RULER's (package wonderwords) unless given."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable, Container, Sequence
from functools import cache
from pathlib import Path
from typing import Literal

Kind = Literal["words", "numbers", "uuids"]
Draw = Callable[[random.Random], str]


@cache
def word_list(part: Literal["noun", "adjective", "verb"]) -> tuple[str, ...]:
    """Return one of wonderwords' lists, in its own order."""
    from importlib.resources import files

    text = files("wonderwords").joinpath("assets", f"{part}list.txt").read_text(encoding="utf-8")
    return tuple(word for line in text.splitlines() if (word := line.strip()))


@cache
def all_words() -> tuple[str, ...]:
    """Return nouns, adjectives and verbs, each once, sorted: RULER's words to count."""
    return tuple(sorted({*word_list("noun"), *word_list("adjective"), *word_list("verb")}))


def drawer(kind: Kind, words: Sequence[str] | None = None) -> Draw:
    """Return a function that draws one key or value; `words` replaces RULER's adjective-noun pairs."""
    if kind == "numbers":
        return lambda rng: str(rng.randint(10**6, 10**7 - 1))
    if kind == "uuids":
        return lambda rng: str(uuid.UUID(int=rng.getrandbits(128), version=4))
    if words is not None:
        return lambda rng: rng.choice(words)
    adjectives, nouns = word_list("adjective"), word_list("noun")
    return lambda rng: f"{rng.choice(adjectives)}-{rng.choice(nouns)}"


def draw_distinct(draw: Draw, count: int, rng: random.Random, avoid: Container[str] = ()) -> list[str]:
    """Return `count` different draws, none in `avoid`. The caller makes sure that there are enough."""
    drawn: dict[str, None] = {}
    while len(drawn) < count:
        if (word := draw(rng)) not in avoid:
            drawn[word] = None
    return list(drawn)


def read_lines(path: str | Path) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: not UTF-8 text ({error}). Fix: convert the file first.") from None


def read_words(path: str | Path) -> tuple[str, ...]:
    """Read a word list: one word or phrase a line, without repetition."""
    words = [line.strip() for line in read_lines(path) if line.strip()]
    if not words or len(set(words)) < len(words):
        raise ValueError(f"{path}: {'a word occurs twice' if words else 'no words'}. Fix: one different word per line.")
    return tuple(words)
