"""Makes the world of the preset `visits`: a search finds who has a thing, and that person's page tells the rest.

It has the things, persons, towns and facts of world.py. A passage tells one fact: `owner ada stone: amber lamp.` So a
search for a thing shows its owner and its maker, in any order. *Where is the home of the maker of the amber lamp?* asks
for a fact of the maker, which stands on his page: all passages with his name as their title. The policy visits it with
a goal, `Where is the home`, reads the page in another prompt, and writes what it is shown.

A search for the person would show some of his page, too; the warm start never shows that.

The searcher of the warm start knows the form. Before a visit he repeats what is asked, and he visits an owner where an
owner is asked for. As a reader he writes down what is looked for: were the goal not heeded, no goal would be better
than another. The rest he chooses by chance: which thing to search for, with which goal to visit, when to stop, which
town to answer. So nobody tells the policy which thing is asked about, or to look for what is asked. The baseline
`aimless-search` plays him.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from random import Random

from agentic.search_r1.config import SearchR1Recipe
from agentic.search_r1.prompts import INFORMATION, INVALID, LOOKED_FOR, NO_PAGE, SUMMARIZE
from agentic.search_r1.rollout import format_passages
from agentic.search_r1.world import (
    ANSWER,
    OF_A_PERSON,
    OF_A_THING,
    OTHERS,
    PERSONS,
    SEARCH,
    THINGS,
    WORDS,
    AimlessSearch,
    MadeUpSearch,
    demonstrate,
    draw_person,
    draw_supervised,
    draw_thing,
    find_facts,
    make_up_facts,
    write_question,
)
from core.text.tokenizer import Tokenizer
from core.types import Task
from core.worlds import SPLITS, Split, World

ASK = "Where is the {} of the {} of the {}?"
VISIT = " Where is the {} of the {} <visit> {}\n Where is the {}</visit>"
"""Repeats what is asked for, and the goal begins alike: what a policy this small writes depends on words near by, and
on what stands behind the same words. A word is one token where a space is before it."""
ENOUGH = 3
"""Says after how many searches and visits the searcher answers, if he has read a town."""
STOP = 0.5
"""Says how often he answers where he can, before that."""
_ASKED = re.compile(ASK.replace("?", r"\?").format(r"(\w+)", r"(\w+)", r"(\w+ \w+)"))
_THING = re.compile(r"the (\w+ \w+)(?= and|[.?])")
_PERSON = re.compile(rf"\b({'|'.join(OF_A_THING)}) (\w+ \w+): ")
_TOWN = re.compile(rf"\b(?:{'|'.join(OF_A_PERSON)}) (\w+)")


def draw_task(rng: Random, split: Split, name: str, others: int = OTHERS) -> Task:
    thing, *beside = rng.sample(THINGS[split], 1 + others)
    relation, role = rng.choice(OF_A_PERSON), rng.choice(OF_A_THING)
    answer = find_facts(find_facts(thing)[role])[relation]
    question = write_question(rng, ASK.format(relation, role, thing), beside)
    return Task(name, question, (answer,), metadata={"kind": f"{relation} of the {role}"})


def write_passage(role: str, person: str, thing: str) -> str:
    return f"{person}\n{role} {person}: {thing}."


def write_passages() -> Iterator[dict[str, str]]:
    """Yield a passage for each fact. On a page, which things a person has stands before home and birth."""
    for split in SPLITS:
        for thing in THINGS[split]:
            for role, person in find_facts(thing).items():
                yield {"id": f"{role} {thing}", "contents": write_passage(role, person, thing)}
    for split in SPLITS:
        for person in PERSONS[split]:
            for relation, town in find_facts(person).items():
                yield {"id": f"{relation} {person}", "contents": f"{person}\n{person}: {relation} {town}."}


class MadeUpPages(MadeUpSearch):
    """The method, with a search and pages that are made up."""

    def __init__(self, recipe: SearchR1Recipe, tokenizer: Tokenizer, rng: Random):
        super().__init__(recipe, tokenizer, rng)
        assert self.reader is not None, "a recipe of this world has search_r1.visit"
        self.reader.client = self  # type: ignore[assignment]

    def draw_question(self) -> str:
        return draw_question(self.rng)

    async def find(self, query: str) -> list[str]:
        return [write_passage(role, person, query) for role, person in make_up_facts(self.rng, query).items()]

    async def read_page(self, name: str) -> str | None:
        drawn = [(self.rng.choice(OF_A_THING), name, draw_thing(self.rng)) for _ in range(self.rng.randint(1, 3))]
        has = [write_passage(*fact).partition("\n")[2] for fact in drawn]
        return "\n".join(has + [f"{name}: {key} {town}." for key, town in make_up_facts(self.rng, name).items()])


def write_turn(rng: Random, prompt: str) -> str:
    """Write the searcher's turn, or his summary of a page, from the text of the prompt alone."""
    if SUMMARIZE in prompt:
        return write_summary(prompt)
    question, *found = prompt.split("<information>")
    read = "\n".join(text.partition("</information>")[0] for text in found)
    if (towns := _TOWN.findall(read)) and (len(found) >= ENOUGH or rng.random() < STOP):
        return ANSWER.format(rng.choice(towns))
    asked = _ASKED.findall(question)[0][:2]
    shown = [name for role, name in _PERSON.findall(read) if role == asked[1]]
    left = [SEARCH.format(thing) for thing in dict.fromkeys(_THING.findall(question))]
    left += [VISIT.format(*asked, name, goal) for name in shown for goal in OF_A_PERSON]
    return rng.choice([each for each in left if each not in prompt])


def write_summary(prompt: str) -> str:
    page, _, goal = prompt.partition(LOOKED_FOR)
    return next(f" {found[0]}" for found in _TOWN.finditer(page) if found[0].split()[0] in goal)


def write_right_turn(prompt: str) -> str:
    """Write the right turn, or summary, from the text of the prompt alone."""
    if SUMMARIZE in prompt:
        return write_summary(prompt)
    question, *found = prompt.split("<information>")
    relation, role, thing = _ASKED.findall(question)[0]
    if not found:
        return SEARCH.format(thing)
    if len(found) == 1:
        return VISIT.format(relation, role, dict(_PERSON.findall(found[0]))[role], relation)
    return ANSWER.format(*_TOWN.findall(found[1]))


def draw_question(rng: Random) -> str:
    """Draw a question about things of any split."""
    asked, *others = list(dict.fromkeys(draw_thing(rng) for _ in range(8)))[: 1 + OTHERS]
    return write_question(rng, ASK.format(rng.choice(OF_A_PERSON), rng.choice(OF_A_THING), asked), others)


def write_corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(100):
        yield " " + " ".join(WORLD.words)
        shown = format_passages(write_passage(role, draw_person(rng), draw_thing(rng)) for role in OF_A_THING)
        yield f"{draw_question(rng)}{SEARCH}{INFORMATION.format(shown)}{VISIT}{ANSWER}"
        yield f"{SUMMARIZE}{LOOKED_FOR}"
    yield f"{INVALID}{NO_PAGE}user\nassistant\nsystem\n"


WORLD = World(
    words=(*OF_A_THING, *OF_A_PERSON, *WORDS),
    corpus=write_corpus,
    vocab_size=1040,
    passages=write_passages,
    domains={"usual": draw_task, "four-things": partial(draw_task, others=3)},
    demonstrate=partial(demonstrate, MadeUpPages, write_turn),
    draw_supervised=partial(draw_supervised, MadeUpPages, write_right_turn),
    baselines={"aimless-search": partial(AimlessSearch, write_turn)},
)
