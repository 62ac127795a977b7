"""Makes the world of the preset `tiny`: MemAgent's needles of RULER, and programs of a few words.

The tasks are RULER's (`tokentrue data ruler`), with the words that MemAgent's world has, too. The annotator of the
demonstrations writes one of four programs, and searches for two words that follow each other in the question:

| program | what it does |
|---|---|
| look | prints the beginning of the document |
| show | prints the text around the place where these words stand first |
| ask | lets a sub-call read that text |
| split | lets sub-calls read all pieces of the document |

He shows the form and no decision. Program and words are drawn at random. A sub-call answers with a fact drawn from its
part, or that nothing is known, and so does he: with a value drawn from what was printed. Now and then he writes another
program first. So which program pays, what to search for, and which fact a question is about, RL must find out.

| baseline | what it does |
|---|---|
| aimless | the annotator plays all turns, without mistakes |
| best-constant | the same, but with one program for all questions, the one that answers the most training tasks |
| split-and-ask | lets sub-calls read all pieces, and reads them and the question without a mistake |
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from random import Random
from typing import Any

from agentic.rlm import inside
from agentic.rlm.config import RLMRecipe
from agentic.rlm.programs import Report
from agentic.rlm.prompts import LAST, NOTHING
from agentic.rlm.rollout import RLM
from core.data.tasks import read_tasks
from core.policy.base import Roles
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task, Trajectory
from core.worlds import Example, TextPolicy, World
from core.worlds.needles import KEYS, NEEDLE, NOISE, QUESTION, RULER_NOISE, VALUES

PART = "context[max(0, i - 200) : i + 80]"
USES = {
    "show": f"print({PART})",
    "ask": f"print(llm_query(question + {PART}))",
}
SEARCH = 'i = context.find(" {} {}")\n'
WHOLE = {
    "look": "print(context[:200])",
    "split": "parts = [context[i : i + 300] for i in range(0, len(context), 300)]\n"
    "print(*llm_query_batched([question + part for part in parts]))",
}
FENCE = "```repl\n{}\n```"
FACT = re.compile(r" (\w+) is: (\w+)\.")
UNKNOWN = " unknown."
ANSWER = "\\boxed{{ {}}}"
AGAIN = 0.15
"""Says how often the annotator writes a second program."""


def write_programs(key: str) -> list[str]:
    """Return all programs that the annotator may write about a question for `key`, each kind as often as another."""
    pairs = list(pairwise(QUESTION.format(key=key).strip(" ?").split()))
    searches = [SEARCH.format(*pair) + use for use, pair in product(USES.values(), pairs)]
    return [*searches, *(whole for whole in WHOLE.values() for _ in pairs)]


def draw_document(rng: Random, keys: Sequence[str], values: Sequence[str], lines: int) -> str:
    """Write a document of so many lines of noise, RULER's or random words, with a needle for each key."""
    if rng.random() < 0.7:
        pieces = [" ".join(RULER_NOISE)] * lines
    else:
        pieces = [" ".join(rng.choices(NOISE, k=18)).capitalize() + "." for _ in range(lines)]
    for key, value in zip(keys, values, strict=True):
        pieces.insert(rng.randint(0, len(pieces)), NEEDLE.format(key=key, value=value))
    return "\n".join(pieces)


def draw_task(rng: Random) -> Task:
    """Draw a task like the preset's, of any length up to twice theirs."""
    keys, values = rng.sample(KEYS, 4), rng.sample(VALUES, 4)
    document = draw_document(rng, keys, values, rng.randint(4, 36))
    return Task("demonstration", QUESTION.format(key=keys[0]), (values[0],), document)


class Annotator(TextPolicy):
    """A policy that makes no mistake, and no choice: what it writes is drawn by chance.

    It always writes the `program`, if there is one. A `wise` one answers with facts about the asked key alone.
    """

    def __init__(self, tokenizer: Tokenizer, rng: Random, program: str | None = None, wise: bool = False):
        super().__init__(tokenizer, self.write_reply)
        self.rng, self.program, self.wise = rng, program, wise

    def write_reply(self, prompt: str) -> str:
        """Write the reply to a prompt, from this text alone."""
        first, *later = prompt.split("<|im_start|>user\n")[1:]
        key = re.findall(r"for (\w+) mentioned", first)[0]
        part = first.split("<|im_end|>")[0].partition("?")[2]
        if part:  # only the prompt of a sub-call goes on behind the question
            facts = self.choose(key, part)
            return " {} is: {}.".format(*self.rng.choice(facts)) if facts else UNKNOWN
        if not later or (LAST not in prompt and not self.program and self.rng.random() < AGAIN):
            return FENCE.format(self.program or self.rng.choice(write_programs(key)))
        facts = self.choose(key, later[-1])
        return ANSWER.format(self.rng.choice(facts)[1] if facts else UNKNOWN.strip(" ."))

    def choose(self, key: str, text: str) -> list[tuple[str, str]]:
        """Return the facts of a text that may be answered."""
        return [(named, value) for named, value in FACT.findall(text) if not self.wise or named == key]


class AnnotatedRLM(RLM):
    """Lets an annotator play the policy."""

    program: str | None = None
    wise = False

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        annotator = Annotator(self.tokenizer, Random(sampling.seed), self.program, self.wise)
        return await super().rollout(task, Roles({"policy": annotator}), sampling)


class SplitAndAsk(AnnotatedRLM):
    """Lets sub-calls read everything, without a mistake."""

    program = WHOLE["split"]
    wise = True


class BestConstant(AnnotatedRLM):
    """Writes the program that answers the most of the first training tasks, and is the same for all of them."""

    def __init__(self, recipe: RLMRecipe, tokenizer: Tokenizer, count: int = 64):
        super().__init__(recipe, tokenizer)
        self.tasks = read_tasks(recipe.data.train, limit=count, require_context=True)
        self.trusted = TrustedRLM(recipe, tokenizer)
        self.search: asyncio.Future[str] | None = None

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        self.search = self.search or asyncio.ensure_future(self.find_best())
        self.program = await self.search
        return await super().rollout(task, roles, sampling)

    async def find_best(self) -> str:
        """Return the program that answers the most tasks, of those that hold no question's key."""
        right = dict.fromkeys(sorted({*write_programs(KEYS[0])} & {*write_programs(KEYS[1])}), 0.0)
        for program, task in product(right, self.tasks):
            annotator = Annotator(self.tokenizer, Random(task.task_id), program)
            right[program] += (await self.trusted.play(task, annotator)).reward or 0.0
        return max(right, key=lambda program: right[program])


class TrustedRLM(RLM):
    """Runs the programs of this file here, without a process for each: they are ours."""

    def __init__(self, recipe: RLMRecipe, tokenizer: Tokenizer):
        super().__init__(recipe, tokenizer)

        async def play(*arguments: Any) -> Report:
            return Report(**inside.play(*arguments))

        self.programs.play = play  # type: ignore[method-assign]

    async def play(self, task: Task, annotator: Annotator) -> Trajectory:
        return await self.rollout(task, Roles({"policy": annotator}), Sampling())


def write_corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(20):
        for words in (KEYS, VALUES, NOISE):
            yield " " + " ".join(words)
        yield "\n".join((*RULER_NOISE, NEEDLE, QUESTION, ANSWER, UNKNOWN, NOTHING, LAST))
        yield " ".join((*RULER_NOISE, "unknown", "user", "assistant", "system"))
        yield "\n".join(FENCE.format(program) for program in rng.sample(write_programs("key"), 12))
        yield "... (1,234 characters in all)"
    yield "user\nassistant\nsystem\n"


def draw_lookup_drill(rng: Random) -> tuple[str, str]:
    """Draw one to six facts as a prompt. The completion repeats them in another order."""
    count = rng.randint(1, 6)
    pairs = list(zip(rng.sample(KEYS, count), rng.sample(VALUES, count), strict=True))
    write = rng.choice((" {} is: {}.", " One of the special magic words for {} is: {}."))
    prompt = "".join(write.format(*pair) for pair in pairs)
    return prompt, "".join(" {} is: {}.".format(*pair) for pair in rng.sample(pairs, count))


def demonstrate(rng: Random, recipe: RLMRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield the annotator's turns on new tasks, but of several sub-calls only two."""
    method = TrustedRLM(recipe, tokenizer)
    while True:
        trajectory = asyncio.run(method.play(draw_task(rng), Annotator(tokenizer, rng)))
        turns = {role: [turn for turn in trajectory.turns if turn.role == role] for role in ("root", "subcall")}
        shown = turns["root"] + rng.sample(turns["subcall"], min(2, len(turns["subcall"])))
        yield [(turn.prompt_ids, turn.completion.token_ids) for turn in shown]


WORLD = World(
    words=(*KEYS, *VALUES, *NOISE),
    corpus=write_corpus,
    vocab_size=1280,
    lookup=draw_lookup_drill,
    demonstrate=demonstrate,
    baselines={"aimless": AnnotatedRLM, "best-constant": BestConstant, "split-and-ask": SplitAndAsk},
)
