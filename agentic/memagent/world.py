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
from dataclasses import dataclass
from itertools import count
from random import Random

from agentic.memagent.chunks import split_chunks
from agentic.memagent.config import MemAgentRecipe
from agentic.memagent.gold import AnnotatorWords, draw_gold_batches
from agentic.memagent.prompts import EMPTY_MEMORY
from agentic.memagent.rollout import MemAgent
from core.text.tokenizer import Tokenizer, encode_text
from core.worlds import Example, World, encode_turn

KEYS = tuple(
    """
    anchor apple arrow badge basin basket beacon bell bench blade blanket boat bottle bowl bracket branch brick bridge
    broom brush bucket button cabin cable camera candle canoe canvas card carpet cart castle chain chair chest clock
    coat coin compass cord cradle crane crown cup curtain cushion desk dish door drawer drum engine fan feather fence
    flag flask flute fork frame garden gate glass globe glove guitar hammer handle harbor hat helmet hook horn hose
    jacket jar kettle kite knife ladder lamp lantern lens letter lever lock map marble mask mast mirror mug nail
    needle net oar oven paddle paper pencil piano pillow pipe plate pocket pot pump purse rail ribbon ring rope ruler
    saddle sail scarf shelf shell shield shoe shovel spoon
    """.split()
)
VALUES = tuple(
    """
    acorn almond amber ant badger banana barley basil bean bear beaver bee beet berry birch bison bronze butter cactus
    camel carrot cat cedar celery cheese cherry chili clam clay clover cobalt cobra cocoa copper coral corn cotton cow
    crab cricket crow daisy deer dog dolphin donkey dove duck eagle eel elm falcon fern fig finch fox frog garlic
    ginger goat goose granite grape hawk hazel heron honey horse iris iron ivory ivy jade jasmine kiwi lemon lettuce
    lilac lily lime lion lizard llama lotus lynx mango maple marigold melon mint mole moose moss moth mouse mustard
    nettle nickel nutmeg oak oat olive onion opal orange orchid otter owl oyster panda parrot peach pear pepper pigeon
    pine plum pony poppy potato quartz
    """.split()
)
NOISE = tuple(
    """
    about after air all along also always away bad because before big both bring but call can close cold come could
    day deep did down each early even every far fast few find first for from gave good great had half hand hard have
    he help her high him his home how if in into it just keep kind know last late left life light like line little
    long look made make many may men might more most move much must near never new next night not now of off old on
    once only open or other our out over own part people place point put quick rain right road room run said same saw
    say school sea see she should show side slow small snow so some soon stand still stop street such take tell than
    that their them then they thing this those time to told too took town tree try turn two under until up us use very
    wait walk wall want warm was water way well went were what when where which while white who why wide wind winter
    with work world would year you young
    """.split()
)
"""The three lists are disjoint. Only drills and documents have the words of NOISE."""

TAGS = tuple(f"<{slash}{name}>" for name in ("problem", "section", "memory") for slash in ("", "/"))
QUESTION = "What is the special magic word for {key} mentioned in the provided text?"
NEEDLE = "One of the special magic words for {key} is: {value}."
RULER_NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
ANSWER = "\\boxed{{ {value}}}"
FACT = " {key} is: {value}"
UNKNOWN = "unknown"
ANSWERS = 0.1
"""Sets the share of final turns."""
KEEP = 0.07
"""Sets the chance that the annotator keeps a fact that does not matter."""
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
    """Holds one turn as text. `section` is None in a final turn."""

    question: str
    section: str | None
    memory: str
    completion: str


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


def demonstrate(rng: Random, recipe: MemAgentRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield single turns, whose sections grow to full length over the first third of the demonstrations."""
    method, config = MemAgent(recipe.memagent, tokenizer), recipe.warm_start
    assert config is not None, "a warm start shows them"
    for number in count():
        step = number // config.batch_size // 8 * 8
        longest = min(FULL_SECTION, 20 + round((FULL_SECTION - 20) * 3 * step / max(config.steps, 1)))
        yield [encode(draw_demonstration(rng, (0, longest)), method)]


def encode(turn: MemoryDemonstration, method: MemAgent) -> Example:
    """Encode a turn just as the rollout asks the policy."""
    tokenizer = method.tokenizer
    problem, memory = encode_text(tokenizer, turn.question), encode_text(tokenizer, turn.memory)
    if turn.section is None:
        prompt = method.final.render(problem=problem, memory=memory)
    else:
        # Sentence by sentence, as the rollout does it: encoded as a whole, ".\n" would be another token.
        section = [i for chunk in split_chunks(tokenizer, turn.section, FULL_SECTION, "sentence") for i in chunk]
        prompt = method.update.render(problem=problem, section=section, memory=memory)
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
