"""Demonstrates searches on the annotation of multi-hop questions, for a real model that asks nothing (preset `desk`).

The annotator knows which paragraphs are gold. He searches for one by its title where the question or a passage names
it, else with the question itself, and answers once he has read them all. What he finds is made up: the gold paragraph
and another of the question's own, in any order. So he shows how to ask and to answer, and never what the service finds,
nor what to do when it finds nothing. Tasks are those of `tokentrue data download hotpotqa-tasks`, 2wiki or musique,
whose `needles` name the gold paragraphs. Those with more of them than a rollout has searches are left out.

Two baselines take the model before RL. `question-first` makes it search for the question itself first: a query that
needs no learning. `no-search` makes it answer at once.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator, Sequence
from random import Random

from agentic.search_r1.config import SearchR1Recipe
from agentic.search_r1.rollout import SearchR1
from agentic.search_r1.world import ANSWER, SEARCH, MadeUpSearch, NoSearch, make_searcher
from core.config import RecipeError
from core.data.tasks import read_tasks
from core.policy.base import Policy, Roles
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Completion, Sampling, Task, Trajectory
from core.worlds import Example, World

_DOCUMENT = re.compile(r"(?:^|\n\n)Document \d+:\n")
_KIND = re.compile(r" \([^)]*\)$")
"""Matches what Wikipedia adds to a title, as in `Lilu (mythology)`; no question names it."""


class AnnotatedSearch(MadeUpSearch):
    """The method on one task, which the annotator plays."""

    def __init__(self, recipe: SearchR1Recipe, tokenizer: Tokenizer, rng: Random, task: Task):
        super().__init__(recipe, tokenizer, rng)
        self.task, self.text = task, task.question
        self.gold, self.others = find_paragraphs(task)

    def write(self, prompt: str) -> str:
        if not self.gold:
            return ANSWER.format(self.task.answers[0])
        named = self.find_named()
        return SEARCH.format(read_title(named) if named else self.task.question)

    def find_named(self) -> str | None:
        """Return a gold paragraph, not yet found, whose title the question or a passage names."""
        text = self.text.casefold()
        return next((found for found in self.gold if _KIND.sub("", read_title(found)).casefold() in text), None)

    async def find(self, query: str) -> list[str]:
        found = self.find_named() or self.gold[0]
        self.gold.remove(found)
        self.text += found
        passages = [found, *self.rng.sample(self.others, min(self.config.topk - 1, len(self.others)))]
        return self.rng.sample(passages, len(passages))


def read_title(paragraph: str) -> str:
    return paragraph.partition("\n")[0]


def find_paragraphs(task: Task) -> tuple[list[str], list[str]]:
    """Return the gold paragraphs and the others. Each begins with its title.

    Raises:
        RecipeError: the task has none.
    """
    others, gold = _DOCUMENT.split(task.context or "")[1:], []
    for needle in task.metadata.get("needles", ()):
        titled = [text for text in others if read_title(text) == needle["key"]]
        gold.append(max(titled, key=lambda text: needle["value"] in text, default=""))
    gold = [*dict.fromkeys(gold)]  # several needles may be sentences of one paragraph
    others = [text for text in others if text not in gold]
    if not all(gold) or not gold:
        raise RecipeError(
            f"data.train: task {task.task_id} has no gold paragraphs to search for. Fix: train on tasks of `tokentrue "
            "data download hotpotqa-tasks`, 2wiki or musique, or set `warm_start: null`"
        )
    return gold, others


def choose_tasks(recipe: SearchR1Recipe, tasks: Sequence[Task]) -> list[Task]:
    """Return the tasks with fewer gold paragraphs than turns, and tell how many have more.

    Raises:
        RecipeError: there is none, or the policy would not read tags.
    """
    if recipe.search_r1.format != "tags":
        raise RecipeError("search_r1.format: the demonstrations have tags. Fix: take `tags`, or `warm_start: null`")
    chosen = [task for task in tasks if len(find_paragraphs(task)[0]) < recipe.search_r1.max_turns]
    if not chosen:
        raise RecipeError("search_r1.max_turns: no task of data.train has so few gold paragraphs. Fix: raise it")
    if missed := len(tasks) - len(chosen):
        print(f"note: data.train: {missed} of {len(tasks)} tasks need more turns, and are left out", file=sys.stderr)
    return chosen


def play(rng: Random, recipe: SearchR1Recipe, tokenizer: Tokenizer, task: Task) -> list[Example]:
    """Return the turns of the annotator's rollout."""
    method = AnnotatedSearch(recipe, tokenizer, rng, task)
    annotator = Roles({"policy": make_searcher(tokenizer, method.write)})
    turns = asyncio.run(method.rollout(task, annotator, Sampling())).turns
    return [(turn.prompt_ids, turn.completion.token_ids) for turn in turns]


def solve(rng: Random, recipe: SearchR1Recipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the turns of the annotator's rollouts, for the supervised baseline."""
    for task in choose_tasks(recipe, tasks):
        yield from play(rng, recipe, tokenizer, task)


def demonstrate(rng: Random, recipe: SearchR1Recipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield the annotator's rollouts of training tasks drawn at random."""
    tasks = choose_tasks(recipe, read_tasks(recipe.data.train, require_context=True))
    while True:
        yield play(rng, recipe, tokenizer, rng.choice(tasks))


class QuestionFirst(SearchR1):
    """Makes the first turn a search for the question itself. The policy writes the others."""

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        first = encode_text(self.tokenizer, SEARCH.format(task.question))
        policies = {name: roles[name] for name in roles} | {"policy": BegunPolicy(roles["policy"], first)}
        return await super().rollout(task, Roles(policies), sampling)


class BegunPolicy:
    """A policy whose first completion is given."""

    def __init__(self, policy: Policy, first: tuple[int, ...]):
        self.policy = policy
        self.given = [first]

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        if self.given:
            ids = self.given.pop()
            return Completion(ids, (0.0,) * len(ids), "stop")
        return await self.policy.generate(prompt_ids, sampling, session)


WORLD = World(
    demonstrate=demonstrate,
    in_order=True,
    solve=solve,
    baselines={"question-first": QuestionFirst, "no-search": NoSearch},
)
