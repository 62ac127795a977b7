"""Scripts single turns for the `tiny` preset's warm start. Their annotator reads well and forgets.

The annotator always notes the fact that the question asks for when the section holds it. A fact that is already in the
memory is lost as often as `ForgetfulAnnotator` says. So the policy learns to read and to copy, and RL teaches it to
keep. Noise, separators, section lengths, needle counts and depths vary, so that none of them carries a signal.
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
class ForgetfulAnnotator:
    """Says how often the annotator loses a fact that the memory holds: forgets it, or notes a distractor instead."""

    forget: float = 0.4
    distract: float = 0.15


@dataclass(frozen=True, slots=True)
class MemoryDemonstration:
    """Holds one turn as text. `section` is None in a final turn."""

    question: str
    section: str | None
    memory: str
    completion: str


def draw_demonstration(
    rng: Random, annotator: ForgetfulAnnotator, section_words: tuple[int, int] = (0, 90)
) -> MemoryDemonstration:
    """Draw one turn: 8% are final answers, the others update the memory from a section of `section_words` words.

    The question asks for `keys[0]`, whose value is `values[0]`. The memory may hold the wrong value `values[-1]`.
    """
    keys, values = rng.sample(KEYS, 5), rng.sample(VALUES, 5)
    question = QUESTION.format(key=keys[0])
    known = rng.choices((None, UNKNOWN, values[0], values[-1]), (0.3, 0.15, 0.4, 0.15))[0]
    memory = EMPTY_MEMORY if known is None else FACT.format(key=keys[0], value=known)
    if rng.random() < 0.08:
        return MemoryDemonstration(question, None, memory, ANSWER.format(value=known or UNKNOWN))

    needles = [NEEDLE.format(key=key, value=value) for key, value in zip(keys, values, strict=True)]
    present = known != values[0] and rng.random() < 0.5
    distractors = rng.choices((0, 1, 2, 3), (0.25, 0.25, 0.25, 0.25))[0]
    section = _section(rng, [*needles[:1] * present, *needles[1 : 1 + distractors]], rng.randint(*section_words), keys)
    if present:
        note = values[0]
    elif known in (None, UNKNOWN):
        note = UNKNOWN
    elif distractors and rng.random() < annotator.distract:
        note = rng.choice(values[1 : 1 + distractors])
    else:
        note = UNKNOWN if rng.random() < annotator.forget else known
    return MemoryDemonstration(question, section, memory, FACT.format(key=keys[0], value=note))


def lookup_drill(rng: Random) -> tuple[str, str]:
    """Draw one to six facts as a prompt. The completion repeats them in another order, among up to three unknown
    ones."""
    count = rng.randint(1, 6)
    keys, values = rng.sample(KEYS, count + rng.randint(0, 3)), rng.sample(VALUES, count)
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
