"""Makes the demonstrations of the preset `laptop`: single turns that are right, on the documents of RULER tasks.

The annotator reads one section with an empty memory, or answers from a memory. He never updates a memory that holds
something, so nobody shows the policy how to keep a fact or to overwrite a note. RL teaches that. The documents are
those of `data.train`, which GRPO will see too; a question asks for any of the four keys, GRPO's for one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random
from typing import Any

from agentic.memagent.chunks import split_chunks
from agentic.memagent.config import MemAgentRecipe
from agentic.memagent.gold import AnnotatorWords, draw_gold_batches
from agentic.memagent.rollout import MemAgent
from core.data.tasks import read_tasks
from core.text.tokenizer import Ids, Tokenizer, encode_text
from core.types import Task
from core.worlds import Example, World, encode_turn

FACT = "The special magic number for {key} is {value}."
NOTHING = "Nothing relevant yet."
ANSWER = "\\boxed{{{value}}}"
UNKNOWN = "unknown"
NEEDLE = "One of the special magic numbers for {key} is: {value}."
"""Writes RULER's sentence that holds a fact."""
ANSWERS = 0.2
"""Sets the share of final turns; the other demonstrations read a section."""
HOLDS = 0.45
"""Sets the share of sections that hold the asked key, where the document has a section of each kind."""
OTHER_KEYS = 0.8
"""Sets how often a section without the asked key is drawn from those with other keys, and not from all."""


def demonstrate(rng: Random, recipe: MemAgentRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield single turns on documents drawn at random."""
    method, tasks = MemAgent(recipe.memagent, tokenizer), read_tasks(recipe.data.train, require_context=True)
    while True:
        yield [draw_example(rng, rng.choice(tasks), method)]


def draw_example(rng: Random, task: Task, method: MemAgent) -> Example:
    """Draw one turn on the document of a RULER task; its question may ask for any key of the document."""
    tokenizer, needles = method.tokenizer, task.metadata["needles"]
    asked = rng.choice(needles)
    queried = next(needle["key"] for needle in needles if needle["queried"])
    question = encode_text(tokenizer, task.question.replace(queried, asked["key"]))
    fact = FACT.format(key=asked["key"], value=asked["value"])
    if rng.random() < ANSWERS:
        known = rng.random() < 0.8
        memory = encode_text(tokenizer, fact if known else NOTHING)
        prompt = method.final.render(problem=question, memory=memory, recalled=())
        return prompt, encode_turn(tokenizer, ANSWER.format(value=asked["value"] if known else UNKNOWN))
    config = method.config
    size = rng.randint(config.chunk_tokens // 2, config.chunk_tokens)
    section, held = _choose_section(rng, split_chunks(tokenizer, task.context, size, config.align), asked, tokenizer)
    prompt = method.update.render(problem=question, section=section, memory=method.empty_memory, recalled=())
    return prompt, encode_turn(tokenizer, fact if held else NOTHING)


def _choose_section(
    rng: Random, sections: Sequence[Ids], asked: dict[str, Any], tokenizer: Tokenizer
) -> tuple[Ids, bool]:
    """Choose a section of a document; return it, and whether it holds the asked key."""
    texts = [tokenizer.decode(section) for section in sections]
    holds = [i for i, text in enumerate(texts) if NEEDLE.format(**asked) in text]
    lacks = [i for i, text in enumerate(texts) if asked["key"] not in text]
    others = [i for i in lacks if " is: " in texts[i]]
    if holds and (not lacks or rng.random() < HOLDS):
        return sections[rng.choice(holds)], True
    return sections[rng.choice(others if others and rng.random() < OTHER_KEYS else lacks)], False


GOLD = AnnotatorWords(nothing=NOTHING, fact=FACT, answer=ANSWER, needle=NEEDLE)

WORLD = World(demonstrate=demonstrate, in_order=True, draw_supervised=draw_gold_batches(GOLD))
