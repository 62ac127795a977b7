"""Scripts single turns for the `tiny` preset's warm start. They are right, and none updates a memory worth keeping.

The annotator notes the asked fact when the section holds it. No memory that he updates holds that fact: it is empty, or
says that nothing is known, or holds a fact about another key. Such a fact he keeps or drops by chance, for it does not
matter. So the policy learns to read, to copy and to answer, and RL teaches it what to keep. Noise, separators, section
lengths, needle counts and depths vary, so that none of them carries a signal.
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
ANSWERS = 0.1
"""Is the share of final turns."""


@dataclass(frozen=True, slots=True)
class MemoryDemonstration:
    """Holds one turn as text. `section` is None in a final turn."""

    question: str
    section: str | None
    memory: str
    completion: str


def draw_demonstration(rng: Random, keep: float, section_words: tuple[int, int] = (0, 90)) -> MemoryDemonstration:
    """Draw one turn: a final answer, or an update of the memory from a section of `section_words` words.

    The question asks for `keys[0]`. The memory of an update may hold the fact of `keys[-1]`, kept with chance `keep`.
    """
    keys, values = rng.sample(KEYS, 5), rng.sample(VALUES, 5)
    question = QUESTION.format(key=keys[0])
    facts = [FACT.format(key=key, value=value) for key, value in zip(keys, values, strict=True)]
    nothing = FACT.format(key=keys[0], value=UNKNOWN)
    if rng.random() < ANSWERS:
        memory, answer = rng.choice(
            ((EMPTY_MEMORY, UNKNOWN), (nothing, UNKNOWN), (facts[-1], UNKNOWN), *[(facts[0], values[0])] * 3)
        )
        return MemoryDemonstration(question, None, memory, ANSWER.format(value=answer))

    memory = rng.choice((EMPTY_MEMORY, nothing, facts[-1], facts[-1]))
    present = rng.random() < 0.4
    distractors = rng.choices((0, 1, 2, 3), (0.25, 0.25, 0.25, 0.25))[0]
    needles = [NEEDLE.format(key=key, value=value) for key, value in zip(keys, values, strict=True)]
    section = _section(rng, [*needles[:1] * present, *needles[1 : 1 + distractors]], rng.randint(*section_words), keys)
    if present:
        note = facts[0]
    else:
        note = memory if memory == facts[-1] and rng.random() < keep else nothing
    return MemoryDemonstration(question, section, memory, note)


def lookup_drill(rng: Random) -> tuple[str, str]:
    """Draw one to six facts as a prompt. The completion repeats them in another order, among up to three unknown
    ones."""
    count = rng.randint(1, 6)
    words = rng.sample((*KEYS, *VALUES, *NOISE), 2 * count + 3)
    keys, values = words[: count + rng.randint(0, 3)], words[count + 3 :]
    form = rng.choice((FACT + ".", " " + NEEDLE))
    pairs = list(zip(keys, values, strict=False))
    asked = [*pairs, *((key, UNKNOWN) for key in keys[count:])]
    prompt = "".join(form.format(key=key, value=value) for key, value in pairs)
    return prompt, "".join(FACT.format(key=key, value=value) + "." for key, value in rng.sample(asked, len(asked)))


def _section(rng: Random, needles: list[str], words: int, avoid: Sequence[str]) -> str:
    """Write about `words` words: the needles at random depths between sentences of one noise style."""
    draw_sentence = rng.choice((_ruler_noise, _ruler_noise, _word_noise, _letter_noise))(rng, avoid)
    sentences: list[str] = []
    left = words - sum(len(needle.split()) for needle in needles)
    while left > 0 or not (sentences or needles):
        sentences.append(draw_sentence())
        left -= len(sentences[-1].split())
    for needle in needles:
        sentences.insert(rng.randint(0, len(sentences)), needle)
    separator = rng.choice((" ", "\n"))
    return rng.choice(("", separator)) + separator.join(sentences) + rng.choice(("", separator))


def _ruler_noise(rng: Random, avoid: Sequence[str]) -> Callable[[], str]:
    start = rng.randrange(len(RULER_NOISE))
    cycle = iter(range(start, 1 << 30))
    return lambda: RULER_NOISE[next(cycle) % len(RULER_NOISE)]


def _word_noise(rng: Random, avoid: Sequence[str]) -> Callable[[], str]:
    """Draw known words in random order. Words of needles take part, but not the keys of this turn."""
    words = [word for word in (*NOISE, *KEYS, *VALUES) if word not in avoid]
    return lambda: _sentence(rng, rng.choices(words, k=rng.randint(3, 14)))


def _letter_noise(rng: Random, avoid: Sequence[str]) -> Callable[[], str]:
    """Draw made-up words, which the tokenizer has to spell in pieces."""

    def word() -> str:
        return "".join(rng.choices(string.ascii_lowercase, k=rng.randint(1, 6)))

    return lambda: _sentence(
        rng, [word() if rng.random() < 0.5 else rng.choice(NOISE) for _ in range(rng.randint(2, 8))]
    )


def _sentence(rng: Random, words: Sequence[str]) -> str:
    return " ".join(words).capitalize() + rng.choice(".....?!")
