"""Makes the world of the preset `tiny`: RULER needles with one-token words, and turns that keep nothing worth keeping.

The tags of the paper's prompts are special tokens of the tokenizer, so the text of a document can never forge one. The
tasks are RULER's (`tokentrue data ruler`), with the word lists of this world.

The annotator of the demonstrations notes the asked fact when the section holds it. No memory that he updates holds that
fact: it is empty, or says that nothing is known, or holds a fact about another key. Such a fact he keeps or drops by
chance, for it does not matter. So the policy learns to read, to copy and to answer, and RL teaches it what to keep.
Noise, separators, section lengths, needle counts and depths vary, so that none of them carries a signal. The look-up
drills use words that the demonstrations have in no needle, so that reading does not depend on the words.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count, cycle
from random import Random

from agentic.memagent.chunks import split_chunks
from agentic.memagent.config import MemAgentRecipe, MemAgentSection
from agentic.memagent.gold import AnnotatorWords, draw_gold_batches
from agentic.memagent.prompts import EMPTY_MEMORY, RECALL, STOP
from agentic.memagent.prompts import KEEP as WORD_KEEP
from agentic.memagent.rollout import MemAgent
from core.text.tokenizer import Tokenizer, encode_text
from core.worlds import Example, World, encode_turn
from core.worlds.needles import KEYS, NEEDLE, NOISE, QUESTION, RULER_NOISE, VALUES

TAGS = tuple(f"<{slash}{name}>" for name in ("problem", "section", "memory") for slash in ("", "/"))
ANSWER = "\\boxed{{ {value}}}"
FACT = " {key} is: {value}"
UNKNOWN = "unknown"
ANSWERS = 0.1
"""Sets the share of final turns."""
KEEP = 0.07
"""Sets the chance that the annotator keeps a fact that does not matter."""
USES = 0.1
"""Sets the chance that he ends a note by the word of an option, whatever the note says."""
FULL_SECTION = 90
"""Counts the words of the longest section, about a chunk of the `tiny` preset."""


def write_corpus() -> Iterator[str]:
    for _ in range(20):
        for words in (KEYS, VALUES, NOISE):
            yield " " + " ".join(words)
        yield "\n".join((*RULER_NOISE, EMPTY_MEMORY, NEEDLE, QUESTION, ANSWER))
        yield " ".join((*RULER_NOISE, "unknown", "user", "assistant", "system"))
    yield "user\nassistant\nsystem\n"


@dataclass(frozen=True, slots=True)
class MemoryDemonstration:
    """Holds one turn as text. `section` is None in a final turn; `key` is the asked one."""

    question: str
    section: str | None
    memory: str
    completion: str
    key: str = ""
    recalled: str = ""


def draw_demonstration(rng: Random, section_words: tuple[int, int], keep: float = KEEP) -> MemoryDemonstration:
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
        return MemoryDemonstration(question, None, memory, ANSWER.format(value=answer), keys[0])

    memory = rng.choice((EMPTY_MEMORY, nothing, facts[-1], facts[-1]))
    present = rng.random() < 0.4
    distractors = rng.choices((0, 1, 2, 3), (0.25, 0.25, 0.25, 0.25))[0]
    needles = [NEEDLE.format(key=key, value=value) for key, value in zip(keys, values, strict=True)]
    section = _section(rng, [*needles[:1] * present, *needles[1 : 1 + distractors]], rng.randint(*section_words), keys)
    if present:
        note = facts[0]
    else:
        note = memory if memory == facts[-1] and rng.random() < keep else nothing
    return MemoryDemonstration(question, section, memory, note, keys[0])


def show_options(rng: Random, turn: MemoryDemonstration, config: MemAgentSection) -> MemoryDemonstration:
    """Show the form of the options that are on, and no decision: whether one is used is chance.

    KEEP stands for half of the notes that repeat the memory. No update sees the asked fact in what was recalled either;
    half of the answers read it there.
    """
    if config.recall:
        memory = "" if turn.memory == EMPTY_MEMORY else turn.memory
        other = FACT.format(key=rng.choice([key for key in KEYS if key != turn.key]), value=rng.choice(VALUES))
        recalled = rng.choice(("", FACT.format(key=turn.key, value=UNKNOWN), other))
        turn = replace(turn, recalled=recalled)
        if turn.section is None and rng.random() < 0.5:
            turn = replace(turn, memory=recalled or EMPTY_MEMORY, recalled=memory)
    if turn.section is None:
        return turn
    note = turn.completion
    if config.gate_update and note == turn.memory and rng.random() < 0.5:
        note = WORD_KEEP
    if config.recall and rng.random() < USES:
        note += f"\n{RECALL} {turn.key}"
    if config.gate_exit and rng.random() < USES:
        note += f"\n{STOP}"
    return replace(turn, completion=note)


def draw_lookup_drill(rng: Random) -> tuple[str, str]:
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
    return cycle((*RULER_NOISE[start:], *RULER_NOISE[:start])).__next__


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


def demonstrate(rng: Random, recipe: MemAgentRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield single turns, whose sections grow to full length over the first third of the demonstrations."""
    method, config = MemAgent(recipe.memagent, tokenizer), recipe.warm_start
    assert config is not None, "a warm start shows them"
    for number in count():
        step = number // config.batch_size // 8 * 8
        longest = min(FULL_SECTION, 20 + round((FULL_SECTION - 20) * 3 * step / max(config.steps, 1)))
        yield [encode(show_options(rng, draw_demonstration(rng, (0, longest)), recipe.memagent), method)]


def encode(turn: MemoryDemonstration, method: MemAgent) -> Example:
    """Encode a turn just as the rollout asks the policy."""
    tokenizer = method.tokenizer
    problem, memory, recalled = (encode_text(tokenizer, text) for text in (turn.question, turn.memory, turn.recalled))
    if turn.section is None:
        prompt = method.final.render(problem=problem, memory=memory, recalled=recalled)
    else:
        # Sentence by sentence, as the rollout does it: encoded as a whole, ".\n" would be another token.
        section = [i for chunk in split_chunks(tokenizer, turn.section, FULL_SECTION, "sentence") for i in chunk]
        prompt = method.update.render(problem=problem, section=section, memory=memory, recalled=recalled)
    return prompt, encode_turn(tokenizer, turn.completion)


GOLD = AnnotatorWords(nothing=FACT.format(key="{key}", value=UNKNOWN), fact=FACT, answer=ANSWER, needle=NEEDLE)

WORLD = World(
    words=(*KEYS, *VALUES, *NOISE),
    tags=TAGS,
    corpus=write_corpus,
    vocab_size=1280,
    # Test needles made of the other words are in no demonstration and in no training task; the drills have them.
    word_lists={
        "keys": KEYS,
        "values": VALUES,
        "other_keys": NOISE[: len(NOISE) // 2],
        "other_values": NOISE[len(NOISE) // 2 :],
    },
    lookup=draw_lookup_drill,
    demonstrate=demonstrate,
    draw_supervised=draw_gold_batches(GOLD),
)
