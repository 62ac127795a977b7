"""Draws the tasks that all readers get: four kinds of question about pages of RULER's noise with needles in them.

Each needle names the magic word of a key. Four of these words are keys themselves, so needles form chains of two.

| kind | asks for | answer |
|---|---|---|
| needle | the word of a key | ` key is: word.` |
| pair | the words of two keys | both, in the order of the question |
| count | how many words a key has | ` key is: three.`; one to six of eight needles, the rest name another key |
| hops | the word of the word of a key | ` key is: word. word is: last.`; of the two needles any may stand first |

No sentence but the question tells an asked needle from the others. Answers and notes have one form, that of a fact.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from random import Random

from core.types import Task
from core.worlds.needles import KEYS, NEEDLE, RULER_NOISE, VALUES

QUESTIONS = {
    "needle": "What is the special magic word for {} mentioned in the provided text?",
    "pair": "What are the special magic words for {} and {} mentioned in the provided text?",
    "count": "How many special magic words for {} are mentioned in the provided text?",
    "hops": "What is the special magic word for the special magic word for {} mentioned in the provided text?",
}
_PATTERNS = {kind: re.compile(re.escape(text).replace(r"\{\}", r"(\w+)")) for kind, text in QUESTIONS.items()}
NUMBERS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight")
CHAINS = 4
LARGEST_COUNT = 6
SENTENCES_OF_A_PAGE = 10
"""Counts the sentences of noise of a page, which holds one needle at most."""


def draw_task(kind: str, pages: int, rng: Random, name: str) -> Task:
    """Draw a task of a kind with so many pages; an empty line ends a page."""
    keys, values = rng.sample(KEYS, 2 * CHAINS), rng.sample(VALUES, 3 * CHAINS)
    chains = list(zip(keys[::2], keys[1::2], values, strict=False))  # a key, its word, and the word of that
    facts = [fact for first, second, last in chains for fact in ((first, second), (second, last))]
    words = dict(facts)
    if kind == "count":
        asked, number = keys[:1], rng.randint(1, LARGEST_COUNT)
        counted = [(asked[0], value) for value in values[CHAINS : CHAINS + number]]
        others = [(keys[2], value) for value in values[CHAINS + number :]]  # a key that is repeated, too
        facts = counted + others
        answer, other = {asked[0]: NUMBERS[number]}, {asked[0]: str(number)}
    else:
        asked = [chains[0][0]] if kind == "hops" else rng.sample(keys, 2 if kind == "pair" else 1)
        answer = other = {key: words[key] for key in ([asked[0], words[asked[0]]] if kind == "hops" else asked)}
    context = "\n\n".join(write_pages(facts, pages, rng))
    # A word alone is no evidence of its needle: it may be a key elsewhere.
    needles = [{"value": f"{key} is: {value}", "queried": key in answer} for key, value in facts]
    answers = tuple(dict.fromkeys(write_notes(notes).strip() for notes in (answer, other)))
    return Task(name, QUESTIONS[kind].format(*asked), answers, context, {"kind": kind, "needles": needles})


def write_pages(facts: Sequence[tuple[str, str]], pages: int, rng: Random) -> Iterator[str]:
    """Yield pages of noise, with the needles of the facts at random places."""
    noise = cycle(RULER_NOISE)
    fact_of_page = dict(zip(rng.sample(range(pages), len(facts)), facts, strict=True))
    for page in range(pages):
        sentences = [*islice(noise, SENTENCES_OF_A_PAGE)]
        if page in fact_of_page:
            key, value = fact_of_page[page]
            sentences.insert(rng.randint(0, len(sentences)), NEEDLE.format(key=key, value=value))
        yield " ".join(sentences)


def read_question(question: str) -> tuple[str, list[str]]:
    """Return the kind of the question in a text, and its keys."""
    found = [(kind, match) for kind, pattern in _PATTERNS.items() if (match := pattern.search(question))]
    return found[0][0], [*found[0][1].groups()]


def read_needles(text: str) -> list[tuple[str, str]]:
    """Return the pairs of key and word that the needles of a text name."""
    return re.findall(r" for (\w+) is: (\w+)\.", text)


def read_notes(text: str) -> dict[str, str]:
    """Return what notes say of each key. `write_notes` writes them."""
    return dict(re.findall(r"(?<! for) (\w+) is: (\w+)\.", text))


def write_notes(notes: Mapping[str, str]) -> str:
    return "".join(f" {key} is: {value}." for key, value in notes.items())


UNKNOWN = "unknown"


def take_notes(question: str, notes: Mapping[str, str], needles: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return the notes after some needles were read: for each key that the question needs its word, or UNKNOWN.

    Of two hops, nobody knows the second key before the first needle was read. Until then the latest needle is noted.
    """
    kind, keys = read_question(question)
    if kind == "count":
        read = NUMBERS.index(notes.get(keys[0], NUMBERS[0])) + sum(key == keys[0] for key, _ in needles)
        return {keys[0]: NUMBERS[read]}
    known = {key: value for key, value in [*notes.items(), *needles] if value != UNKNOWN}
    if kind == "hops" and keys[0] in known:
        keys.append(known[keys[0]])
    latest = dict([*known.items()][-1:]) if kind == "hops" and keys[0] not in known else {}
    return {**{key: known.get(key, UNKNOWN) for key in keys}, **latest}


def find_answer(question: str, notes: Mapping[str, str]) -> str | None:
    """Return the answer that follows from notes, or None."""
    answer = take_notes(question, notes, ())
    return None if UNKNOWN in answer.values() else write_notes(answer)
