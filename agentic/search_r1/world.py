"""Makes the world of the preset `tiny`: who owns a thing, or where its owner lives, in passages of a corpus.

A thing such as `amber lamp` has an owner and a maker; a person such as `ada stone` has a home and a birth town. Every
fact follows from a hash of its title, so nobody can guess it. Nouns, last names and towns belong to one split each, so
no thing, person or town of training is in a held-out question or answer. The question for an owner takes one search.
The other takes two, and only what the first one finds says what to search for next.

The searcher of the warm start knows the form, and chooses by chance. He knows that `who` asks for a name and `where`
for a town, and reads the best passage of a search. He searches first for any thing of the question, then for any other
thing of it or any name that he has read. Once he has read what is asked for, he answers in one turn of two, with any
such name or town. What a search finds is made up. So nobody tells the policy which query finds the answer, when to
stop, which name or town to answer, or any fact.

| baseline | turns | answer |
|---|---|---|
| aimless-search | the searcher of the warm start plays all of them, without mistakes | any name or town that he read |
| no-search | none | the policy's, right after the question |
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from random import Random

from agentic.search_r1.config import SearchR1Recipe
from agentic.search_r1.prompts import INFORMATION, INVALID
from agentic.search_r1.rollout import SearchR1, format_passages
from core.config import SupervisedSection
from core.policy.base import Policy, Roles
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Completion, Sampling, Task, Trajectory
from core.worlds import SPLITS, Example, Split, TextPolicy, World, draw_batches, encode_turn

ADJECTIVES = """
    amber black blue broad brown dark dull flat gold green grey heavy light long pale plain red round sharp short small
    soft white young
    """.split()
NOUNS = """
    anchor basket bell bench blanket bottle brush bucket button camera candle carpet chain chair clock compass cradle
    crown curtain desk drum engine feather fence flute fork globe guitar hammer helmet jacket kettle kite ladder lamp
    lantern mirror needle paddle pencil piano pillow ribbon saddle shovel spoon table wagon
    """.split()
FIRST_NAMES = """
    ada alma anna arne bela boris carla clara dana david edgar elena emil eva felix fiona frank greta hugo ida ivan jana
    jonas karl laura leo marc nora oskar rosa simon tilda
    """.split()
LAST_NAMES = """
    abbot archer baker barber becker bishop brewer butler carter cook cooper dyer fisher fletcher forester fowler
    gardener glover harper hunter keller knight marshal mason mercer miller painter parker piper porter potter reeve
    sawyer shepherd skinner slater smith spencer stone tanner taylor thatcher turner tyler walker weaver webster wright
    """.split()
TOWNS = """
    athens basel berlin bern bonn boston bremen cairo cork delhi dover dublin essen florence geneva genoa ghent halle
    hanoi kiel kyoto leeds leipzig lima lisbon london lyon madrid malmo milan minsk munich naples nice osaka oslo oxford
    paris perth prague quito riga rome sofia tokyo turin vienna york
    """.split()
WORDS = (*ADJECTIVES, *NOUNS, *FIRST_NAMES, *LAST_NAMES, *TOWNS)
OF_A_THING, OF_A_PERSON = ("owner", "maker"), ("home", "birth")
"""Name the facts of a thing, which are persons, and those of a person, which are towns."""
OWNER, HOME = OF_A_THING[0], OF_A_PERSON[0]
"""Lists the facts that questions ask for."""
ASKS = {1: f"Who is the {OWNER} of the {{}}?", 2: f"Where is the {HOME} of the {OWNER} of the {{}}?"}
"""Maps the number of searches that a question takes to its words."""
FORMS = ("{ask} Beside it {others}.", "Here {others}. {ask}")
OTHERS = 1
"""Counts the things beside the asked one, in training."""
SEARCH, ANSWER = "<search> {}</search>", "<answer> {}</answer>"
MOST_SEARCHES = 3
STOP = 0.5
"""Says how often he answers where he can."""
_THING = re.compile(rf"\b(?:{'|'.join(ADJECTIVES)}) (?:{'|'.join(NOUNS)})\b")
_PERSON = re.compile(rf"\b(?:{'|'.join(OF_A_THING)}) (\w+ \w+)")
_TOWN = re.compile(rf"\b(?:{'|'.join(OF_A_PERSON)}) (\w+)")


def divide(words: Sequence[str]) -> Mapping[Split, tuple[str, ...]]:
    """Give half of the words to training, an eighth to dev and the rest to test."""
    places = {"train": (0, 2, 4, 6), "dev": (1,), "test": (3, 5, 7)}
    return {split: tuple(w for i, w in enumerate(words) if i % 8 in places[split]) for split in SPLITS}


THINGS = {split: tuple(map(" ".join, product(ADJECTIVES, nouns))) for split, nouns in divide(NOUNS).items()}
PERSONS = {split: tuple(map(" ".join, product(FIRST_NAMES, names))) for split, names in divide(LAST_NAMES).items()}
TOWNS_OF = divide(TOWNS)


def find_facts(title: str) -> dict[str, str]:
    """Return the facts of a thing or a person: relation -> person or town. Raises KeyError for anything else."""
    for split in SPLITS:
        for titles, relations, values in ((THINGS, OF_A_THING, PERSONS), (PERSONS, OF_A_PERSON, TOWNS_OF)):
            if title in titles[split]:
                return draw_facts(Random(f"facts of {title}"), relations, values[split])
    raise KeyError(title)


def draw_facts(rng: Random, relations: Sequence[str], values: Sequence[str]) -> dict[str, str]:
    """Draw different values for the relations, in any order."""
    return dict(zip(rng.sample(relations, len(relations)), rng.sample(values, len(relations)), strict=True))


def write_passage(title: str, facts: Mapping[str, str]) -> str:
    """Write a passage such as `amber lamp` in the first line, `amber lamp: owner ada stone, ...` in the second."""
    return f"{title}\n{title}: {', '.join(f'{relation} {value}' for relation, value in facts.items())}."


def write_passages() -> Iterator[dict[str, str]]:
    """Yield a passage for each thing and person, in the form that core/retrieval reads."""
    for titles in (*THINGS.values(), *PERSONS.values()):
        for title in titles:
            yield {"id": title, "contents": write_passage(title, find_facts(title))}


def write_question(rng: Random, ask: str, others: Sequence[str]) -> str:
    """Ask, and name other things before or after that."""
    listed = " and ".join(f"the {other}" for other in others)
    return rng.choice(FORMS).format(ask=ask, others=f"{'is' if len(others) == 1 else 'are'} {listed}")


def draw_task(rng: Random, split: Split, name: str, others: int = OTHERS) -> Task:
    """Draw a task of either kind."""
    thing, *beside = rng.sample(THINGS[split], 1 + others)
    searches = rng.choice(list(ASKS))
    owner = find_facts(thing)[OWNER]
    answer = owner if searches == 1 else find_facts(owner)[HOME]
    question = write_question(rng, ASKS[searches].format(thing), beside)
    return Task(name, question, (answer,), metadata={"searches": searches})


def write_corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(100):
        yield " " + " ".join(WORLD.words)
        thing = draw_thing(rng)
        shown = format_passages(write_passage(thing, make_up_facts(rng, thing)) for _ in range(3))
        yield f"{draw_question(rng)}{SEARCH}{INFORMATION.format(shown)}{ANSWER}"
    yield f"{INVALID}user\nassistant\nsystem\n"


class MadeUpSearch(SearchR1):
    """The method, with a search that makes up what it finds: the passage of the query, and one of a like title."""

    def __init__(self, recipe: SearchR1Recipe, tokenizer: Tokenizer, rng: Random):
        section = recipe.search_r1.model_copy(update={"addresses": None})  # it asks no service
        super().__init__(recipe.model_copy(update={"search_r1": section}), tokenizer)
        self.rng = rng

    def draw_question(self) -> str:
        return draw_question(self.rng)

    async def find(self, query: str) -> list[str]:
        titles = [query, *draw_like(self.rng, query, self.config.topk - 1)]
        return [write_passage(title, make_up_facts(self.rng, title)) for title in titles]


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


def make_searcher(tokenizer: Tokenizer, write: Callable[[str], str]) -> TextPolicy:
    """Return a policy whose turn is what `write` makes of the prompt's text; no end token follows a last tag."""
    return TextPolicy(tokenizer, write, lambda own, text: (encode_text if text[-1] == ">" else encode_turn)(own, text))


def draw_question(rng: Random) -> str:
    """Draw a question about things of any split."""
    things = dict.fromkeys(draw_thing(rng) for _ in range(8))
    asked, *others = list(things)[: 1 + OTHERS]
    return write_question(rng, ASKS[rng.choice(list(ASKS))].format(asked), others)


def demonstrate(
    made_up: type[MadeUpSearch],
    write: Callable[[Random, str], str],
    rng: Random,
    recipe: SearchR1Recipe,
    tokenizer: Tokenizer,
) -> Iterator[list[Example]]:
    """Let a searcher play rollouts on new questions, and yield the turns of each."""
    method, searcher = made_up(recipe, tokenizer, rng), make_searcher(tokenizer, partial(write, rng))
    while True:
        task = Task("demonstration", method.draw_question(), ("nobody",))
        trajectory = asyncio.run(method.rollout(task, Roles({"policy": searcher}), Sampling()))
        yield [(turn.prompt_ids, turn.completion.token_ids) for turn in trajectory.turns]


def draw_supervised(
    made_up: type[MadeUpSearch],
    write: Callable[[str], str],
    config: SupervisedSection,
    recipe: SearchR1Recipe,
    tokenizer: Tokenizer,
) -> Iterator[list[Example]]:
    """Yield batches of the right turns on new questions. What is found is made up."""
    rng = Random(config.seed)
    turns = demonstrate(made_up, lambda rng, prompt: write(prompt), rng, recipe, tokenizer)
    return draw_batches(rng, turns, config.batch_size)


def write_right_turn(prompt: str) -> str:
    """Write the right turn after a prompt, from this text alone: the first passage is that of the query."""
    question, *found = prompt.split("<information>")
    if not found:
        return SEARCH.format(_read(rf"{OWNER} of the (\w+ \w+)", question))
    owner = _read(rf"{OWNER} (\w+ \w+)", found[0])
    if HOME not in question:
        return ANSWER.format(owner)
    return SEARCH.format(owner) if len(found) == 1 else ANSWER.format(_read(rf"{HOME} (\w+)", found[1]))


def _read(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, "the passages of MadeUpSearch have every fact"
    return match[1]


class AimlessSearch(SearchR1):
    """Lets the searcher of the warm start, who writes what `write` says, play the policy."""

    def __init__(self, write: Callable[[Random, str], str], recipe: SearchR1Recipe, tokenizer: Tokenizer):
        super().__init__(recipe, tokenizer)
        self.write = write

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        searcher = make_searcher(self.tokenizer, partial(self.write, Random(f"{task.task_id}-{sampling.seed}")))
        return await super().rollout(task, Roles({"policy": searcher}), sampling)


class NoSearch(SearchR1):
    """Begins the policy's turn with an answer, so that it cannot search."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        opening = encode_text(self.tokenizer, ANSWER.partition(" ")[0])
        policies = {name: roles[name] for name in roles} | {"policy": OpenedPolicy(roles["policy"], opening)}
        return await super().rollout(task, Roles(policies), sampling)


class OpenedPolicy:
    """A policy whose completions all begin with `opening`."""

    def __init__(self, policy: Policy, opening: tuple[int, ...]):
        self.policy = policy
        self.opening = opening

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        prompt = (*prompt_ids, *self.opening)
        rest = await self.policy.generate(prompt, sampling, session)
        ids = (*self.opening, *rest.token_ids)
        return Completion(ids, (0.0,) * len(self.opening) + tuple(rest.logprobs), rest.finish_reason)


WORLD = World(
    words=(*OF_A_THING, *OF_A_PERSON, *WORDS),
    corpus=write_corpus,
    vocab_size=960,
    passages=write_passages,
    domains={"usual": draw_task, "four-things": partial(draw_task, others=3)},
    demonstrate=partial(demonstrate, MadeUpSearch, write_turn),
    draw_supervised=partial(draw_supervised, MadeUpSearch, write_right_turn),
    baselines={"aimless-search": partial(AimlessSearch, write_turn), "no-search": NoSearch},
)
