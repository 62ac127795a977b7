"""Scripted single turns for the `tiny` preset's warm start, written by an annotator who reads well and keeps badly.

The annotator always writes down the asked-for fact when the section holds it. What the memory already knows he
mistreats in the stated ways (`Annotator`), so that the policy learns to read and copy but leaves keeping to RL.
Noise, separators, section lengths, needle counts and depths vary, so that none of them carries a signal.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from agentic.memagent.prompts import EMPTY_MEMORY
from agentic.memagent.tiny.start_model import ANSWER, NEEDLE, QUESTION, RULER_NOISE
from agentic.memagent.tiny.words import KEYS, NOISE, VALUES

FACT = " {key} is: {value}"
UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Annotator:
    """How often he loses a fact that the memory holds: forgets it, or puts a distractor of the section in its place."""

    forget: float = 0.4
    distract: float = 0.15


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One turn as text. `section` is None in a final turn."""

    question: str
    section: str | None
    memory: str
    completion: str


def demonstration(rng: Random, annotator: Annotator, section_words: tuple[int, int] = (0, 90)) -> Demonstration:
    """Draw one turn: about a tenth are final answers, the others memory updates over `section_words` words."""
    keys, values = rng.sample(KEYS, 5), rng.sample(VALUES, 5)
    question = QUESTION.format(key=keys[0])
    held = rng.choices((None, UNKNOWN, values[0], values[-1]), (0.3, 0.15, 0.4, 0.15))[0]
    memory = EMPTY_MEMORY if held is None else FACT.format(key=keys[0], value=held)
    if rng.random() < 0.08:
        return Demonstration(question, None, memory, ANSWER.format(value=held or UNKNOWN))

    needles = [NEEDLE.format(key=key, value=value) for key, value in zip(keys, values, strict=True)]
    present = held != values[0] and rng.random() < 0.5
    distractors = rng.choices((0, 1, 2, 3), (0.25, 0.25, 0.25, 0.25))[0]
    section = _section(rng, [*needles[:1] * present, *needles[1 : 1 + distractors]], rng.randint(*section_words), keys)
    if present:
        noted = values[0]
    elif held in (None, UNKNOWN):
        noted = UNKNOWN
    elif distractors and rng.random() < annotator.distract:
        noted = rng.choice(values[1 : 1 + distractors])
    else:
        noted = UNKNOWN if rng.random() < annotator.forget else held
    return Demonstration(question, section, memory, FACT.format(key=keys[0], value=noted))


def copying_drill(
    rng: Random, token_ids: Sequence[int], length: tuple[int, int] = (8, 40)
) -> tuple[list[int], list[int]]:
    """A random sequence of `token_ids` as prompt, and again as completion: learned first, it makes extraction easy."""
    sequence = rng.choices(token_ids, k=rng.randint(*length))
    return sequence, list(sequence)


def lookup_drill(rng: Random, facts: tuple[int, int] = (1, 6), absent: int = 3) -> tuple[str, str]:
    """Facts or needles as prompt; as completion the same facts in another order, among up to `absent` unknown ones."""
    count = rng.randint(*facts)
    keys, values = rng.sample(KEYS, count + rng.randint(0, absent)), rng.sample(VALUES, count)
    form = rng.choice((FACT + ".", " " + NEEDLE))
    pairs = list(zip(keys, values, strict=False))
    asked = [*pairs, *((key, UNKNOWN) for key in keys[count:])]
    prompt = "".join(form.format(key=key, value=value) for key, value in pairs)
    return prompt, "".join(FACT.format(key=key, value=value) + "." for key, value in rng.sample(asked, len(asked)))


def _section(rng: Random, needles: list[str], words: int, avoid: Sequence[str]) -> str:
    """About `words` words: the needles at random depths between sentences of one noise style."""
    sentence = rng.choice((_ruler_sentence, _ruler_sentence, _word_sentence, _letter_sentence))(rng, avoid)
    sentences: list[str] = []
    left = words - sum(len(needle.split()) for needle in needles)
    while left > 0 or not (sentences or needles):
        sentences.append(sentence())
        left -= len(sentences[-1].split())
    for needle in needles:
        sentences.insert(rng.randint(0, len(sentences)), needle)
    separator = rng.choice((" ", "\n"))
    return rng.choice(("", separator)) + separator.join(sentences) + rng.choice(("", separator))


def _ruler_sentence(rng: Random, avoid: Sequence[str]) -> Callable[[], str]:
    start = rng.randrange(len(RULER_NOISE))
    cycle = iter(range(start, 1 << 30))
    return lambda: RULER_NOISE[next(cycle) % len(RULER_NOISE)]


def _word_sentence(rng: Random, avoid: Sequence[str]) -> Callable[[], str]:
    """Known words in random order; needle words take part, except the keys of this turn."""
    words = [word for word in (*NOISE, *KEYS, *VALUES) if word not in avoid]
    return lambda: _sentence(rng, rng.choices(words, k=rng.randint(3, 14)))


def _letter_sentence(rng: Random, avoid: Sequence[str]) -> Callable[[], str]:
    """Made-up words, which the tokenizer has in pieces."""

    def word() -> str:
        return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 6)))

    return lambda: _sentence(
        rng, [word() if rng.random() < 0.5 else rng.choice(NOISE) for _ in range(rng.randint(2, 8))]
    )


def _sentence(rng: Random, words: Sequence[str]) -> str:
    return " ".join(words).capitalize() + rng.choice(".....?!")
