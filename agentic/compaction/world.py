"""Makes the world of the preset `tiny`: pages that say who has what, and a question about one of the animals.

No fact can be guessed, nothing tells the asked fact from the others, and it stands on a page drawn at random.

The annotator of the demonstrations tells the truth and keeps anything. He reads to the last page and then answers from
what his context says. Of every summary he draws the animals at random from those that his context names, in the
question, a summary or a page, and writes what it says of them. So the policy learns to act, to read, to write summaries
and to answer from them; which facts are worth keeping, RL must find out. Now and then he guesses what he does not know.
Such a turn is never shown, but what follows it is: a page overrules it.

| baseline | after a compaction the conversation holds |
|---|---|
| no-summary | the question alone |
| aimless-summary | facts drawn at random: the annotator plays all turns, without mistakes |
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from functools import partial
from random import Random

from agentic.compaction.rollout import END, HEADING, INSTRUCTIONS, NEXT, REQUEST, CompactingReader, CompactionRecipe
from core.policy.base import Roles
from core.rollout.conversation import Conversation
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Sampling, Task, Trajectory
from core.worlds import SPLITS, Example, Split, TextPolicy, World

ANIMALS = """
    ant badger bat bear beaver bee bison boar buffalo camel cat cheetah cobra condor cougar cow coyote crab crane crow
    deer dingo dog dolphin donkey dove duck eagle eel egret elk emu falcon ferret finch fly fox frog gazelle gecko
    gerbil gibbon giraffe goat goose gopher gorilla grouse gull hamster hare hawk heron hippo horse hyena ibex ibis
    iguana jackal jaguar jay kiwi koala lark lemur leopard lion lizard llama lobster lynx magpie mole monkey moose moth
    mouse mule newt ocelot octopus orca osprey otter owl oyster panda panther parrot pelican penguin pigeon pony puffin
    puma python quail rabbit raccoon ram rat raven robin salmon seal shark sheep shrew skunk sloth snail sparrow spider
    squid stork swan swift tapir tiger toad trout turtle
    """.split()
THINGS = """
    anchor apple basket bell blanket bottle broom brush bucket button camera candle cart chain chair clock coat comb
    compass cradle crown cup curtain desk drum fan feather fence flag flute fork glove guitar hammer hat helmet jacket
    jar kettle key kite knife ladder lamp lantern map mirror nail needle paddle pencil piano pillow pipe plate pump rope
    saddle shovel spoon
    """.split()
QUESTION = "What does the {} have?"
FACT = " {} has {}."
FACTS_OF_A_PAGE = (2, 4)
UNKNOWN = "unknown"
ANSWER = "\\boxed{{{}}}"
FACTS_OF_A_SUMMARY = 2
GUESS = 0.2
"""Sets the chance that the annotator guesses what he does not know."""
SHOWN_PAGES = (1, 6)
"""Bounds the pages of a demonstration, which may be shorter than the tasks."""


def draw_task(pages: tuple[int, int], rng: Random, split: Split, name: str) -> Task:
    """Draw a task of so many pages, at least and at most; every animal of it has one thing."""
    sizes = [rng.randint(*FACTS_OF_A_PAGE) for _ in range(rng.randint(*pages))]
    owners = rng.sample(ANIMALS, sum(sizes))
    facts = {owner: FACT.format(owner, rng.choice(THINGS)) for owner in owners}
    lines = iter(facts.values())
    context = "\n\n".join("".join(next(lines) for _ in range(size)) for size in sizes)
    asked = rng.choice(owners)
    return Task(name, QUESTION.format(asked), (facts[asked].strip(),), context, {"pages": len(sizes)})


def write_corpus() -> Iterator[str]:
    for _ in range(20):
        yield " " + " ".join((*ANIMALS, *THINGS, UNKNOWN))
        yield "\n".join((QUESTION + INSTRUCTIONS, FACT, NEXT, END, REQUEST, HEADING, ANSWER))
        yield "user\nassistant\nsystem\ntool\n"


class AimlessAnnotator(TextPolicy):
    """A policy that acts and answers well, and whose summaries keep facts drawn at random with `rng`.

    As often as `guess` says, he writes a thing instead of UNKNOWN; `guessed` says for each of his turns whether he did.
    """

    def __init__(self, tokenizer: Tokenizer, rng: Random, guess: float = 0.0):
        super().__init__(tokenizer, self.write_reply)
        self.rng = rng
        self.guess = guess
        self.guessed: list[bool] = []

    def write_reply(self, prompt: str) -> str:
        reply = write_reply(self.rng, prompt)
        self.guessed.append(UNKNOWN in reply and self.rng.random() < self.guess)
        return reply.replace(UNKNOWN, self.rng.choice(THINGS)) if self.guessed[-1] else reply


def write_reply(rng: Random, prompt: str) -> str:
    """Write the annotator's reply to a prompt, from this text alone."""
    question, _, history = prompt.partition(INSTRUCTIONS)
    asked = re.findall(r"the (\w+) have", question)[0]
    known = dict(re.findall(r" (\w+) has (\w+)\.", history))  # of two facts about one animal the later one holds
    if history.rpartition("<|im_end|>")[0].endswith(REQUEST):
        named = sorted({asked, *known})
        return write_facts(rng.sample(named, min(FACTS_OF_A_SUMMARY, len(named))), known)
    return ANSWER.format(write_facts([asked], known)) if END in history else NEXT


def write_facts(animals: Sequence[str], known: dict[str, str]) -> str:
    return "".join(FACT.format(animal, known.get(animal, UNKNOWN)) for animal in animals)


def draw_lookup_drill(rng: Random) -> tuple[str, str]:
    """Draw one to eight facts as a prompt. The completion repeats them in any order, with up to two unknown ones."""
    animals = rng.sample(ANIMALS, rng.randint(1, 8))
    known = {animal: rng.choice(THINGS) for animal in animals}
    asked = [*animals, *(animal for animal in rng.sample(ANIMALS, rng.randint(0, 2)) if animal not in known)]
    return write_facts(animals, known), write_facts(rng.sample(asked, len(asked)), known)


def demonstrate(rng: Random, recipe: CompactionRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield the annotator's summaries and answer on new tasks, without those that he guessed, and one of his calls."""
    method, call = CompactingReader(recipe, tokenizer), encode_text(tokenizer, NEXT)
    while True:
        annotator = AimlessAnnotator(tokenizer, rng, GUESS)
        task = draw_task(SHOWN_PAGES, rng, "train", "demonstration")
        trajectory = asyncio.run(method.rollout(task, Roles({"policy": annotator}), Sampling()))
        turns = [
            (turn.prompt_ids, turn.completion.token_ids)
            for turn, guessed in zip(trajectory.turns, annotator.guessed, strict=True)
            if not guessed
        ]
        calls = [turn for turn in turns if turn[1][:-1] == call]
        yield [*(turn for turn in turns if turn[1][:-1] != call), rng.choice(calls)]


class ForgetfulReader(CompactingReader):
    """Forgets all but the question where the method compacts."""

    async def compact(self, chat: Conversation) -> None:
        del chat.messages[1:]


class AimlessReader(CompactingReader):
    """Lets the annotator play the policy."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        annotator = AimlessAnnotator(self.tokenizer, Random(sampling.seed))
        return await super().rollout(task, Roles({"policy": annotator}), sampling)


WORLD = World(
    words=(*ANIMALS, *THINGS),
    corpus=write_corpus,
    vocab_size=832,
    splits=(*SPLITS, "test-long"),
    domains={"usual": partial(draw_task, (3, 6)), "long": partial(draw_task, (24, 24))},
    lookup=draw_lookup_drill,
    demonstrate=demonstrate,
    baselines={"no-summary": ForgetfulReader, "aimless-summary": AimlessReader},
)
