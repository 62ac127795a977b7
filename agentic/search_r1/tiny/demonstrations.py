"""Scripts the rollouts of the `tiny` preset's warm start. Their searcher knows the form, and chooses by chance.

He knows that `who` asks for a name and `where` for a town, and reads the best passage of a search. He searches first
for any thing of the question, then for any other thing of it or any name that he has read. Once he has read what is
asked for, he answers in one turn of two, with any such name or town. What a search finds is made up. So nobody tells
the policy which query finds the answer, when to stop, which name or town to answer, or any fact; the baseline
`aimless-search` says what such chance is worth.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random

from agentic.search_r1.config import SearchR1Recipe
from agentic.search_r1.rollout import SearchR1, format_passages
from agentic.search_r1.tiny.tasks import ASKS, OTHERS, write_question
from agentic.search_r1.tiny.world import (
    ADJECTIVES,
    FIRST_NAMES,
    LAST_NAMES,
    NOUNS,
    OF_A_PERSON,
    OF_A_THING,
    TOWNS,
    draw_facts,
    write_passage,
)
from core.policy.base import Roles
from core.text.tokenizer import Tokenizer, encode_text
from core.train import Example
from core.types import Completion, Sampling, Task

SEARCH, ANSWER = "<search> {}</search>", "<answer> {}</answer>"
MOST_SEARCHES = 3
STOP = 0.5
"""Says how often he answers where he can."""
_THING = re.compile(rf"\b(?:{'|'.join(ADJECTIVES)}) (?:{'|'.join(NOUNS)})\b")
_PERSON = re.compile(rf"\b(?:{'|'.join(OF_A_THING)}) (\w+ \w+)")
_TOWN = re.compile(rf"\b(?:{'|'.join(OF_A_PERSON)}) (\w+)")


class MadeUpSearch(SearchR1):
    """The method, with a search that makes up what it finds: the passage of the query, and one of a like title."""

    def __init__(self, recipe: SearchR1Recipe, tokenizer: Tokenizer, rng: Random):
        section = recipe.search_r1.model_copy(update={"addresses": None})  # it asks no service
        super().__init__(recipe.model_copy(update={"search_r1": section}), tokenizer)
        self.rng = rng

    async def find(self, query: str) -> str:
        titles = [query, *draw_like(self.rng, query, self.config.topk - 1)]
        return format_passages(write_passage(title, make_up_facts(self.rng, title)) for title in titles)


def draw_like(rng: Random, title: str, count: int) -> list[str]:
    """Draw other titles that share a word with this one."""
    first, last = title.split()
    firsts, lasts = (ADJECTIVES, NOUNS) if last in NOUNS else (FIRST_NAMES, LAST_NAMES)
    same_first = [f"{first} {word}" for word in lasts if word != last]
    same_last = [f"{word} {last}" for word in firsts if word != first]
    return rng.sample(same_first + same_last, count)


def make_up_facts(rng: Random, title: str) -> dict[str, str]:
    if title.split()[-1] not in NOUNS:
        return draw_facts(rng, OF_A_PERSON, TOWNS)
    persons = [draw_person(rng) for _ in range(8)]
    return draw_facts(rng, OF_A_THING, list(dict.fromkeys(persons)))


def draw_person(rng: Random) -> str:
    return f"{rng.choice(FIRST_NAMES)} {rng.choice(LAST_NAMES)}"


def draw_thing(rng: Random) -> str:
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def write_turn(rng: Random, prompt: str) -> str:
    """Write the searcher's turn after a prompt, from this text alone."""
    question, *found = prompt.split("<information>")
    read = "".join(text.partition("\nDoc")[0] for text in found)
    answers = (_TOWN if "Where" in question else _PERSON).findall(read)
    if answers and (len(found) == MOST_SEARCHES or rng.random() < STOP):
        return ANSWER.format(rng.choice(answers))
    done = re.findall(SEARCH.format("(.*?)"), prompt)
    named = dict.fromkeys([*_THING.findall(question), *_PERSON.findall(read)])
    return SEARCH.format(rng.choice([name for name in named if name not in done]))


class Searcher:
    """A policy whose turn is what `write` makes of the prompt's text."""

    def __init__(self, tokenizer: Tokenizer, write: Callable[[str], str]):
        self.tokenizer = tokenizer
        self.write = write

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        ids = encode_text(self.tokenizer, self.write(self.tokenizer.decode(prompt_ids)))
        return Completion(ids, (0.0,) * len(ids), "stop")


class AimlessSearcher(Searcher):
    """The searcher, who draws with `rng`."""

    def __init__(self, tokenizer: Tokenizer, rng: Random):
        super().__init__(tokenizer, partial(write_turn, rng))


def draw_question(rng: Random) -> str:
    """Draw a question about things of any split."""
    things = dict.fromkeys(draw_thing(rng) for _ in range(8))
    asked, *others = list(things)[: 1 + OTHERS]
    return write_question(rng, rng.choice(list(ASKS)), asked, others)


def demonstrate(rng: Random, method: MadeUpSearch, searcher: Searcher) -> Iterator[Example]:
    """Let the searcher play a rollout on a new question, and yield its turns."""
    task = Task("demonstration", draw_question(rng), ("nobody",))
    trajectory = asyncio.run(method.rollout(task, Roles({"policy": searcher}), Sampling()))
    return ((turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns)
