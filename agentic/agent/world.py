"""Makes the world of the preset `tiny`: who owns one of four things, which a tool tells (facts.py).

A question names four things, and asks about one. What `look_up` tells of that thing holds the answer and three other
names. No thing is in two splits, and no two tasks have the same facts.

The demonstrations show the form of calls and answers, and nothing else. A call looks up any of the things that the
question names, and an answer gives any of the names that the tool told; what the tool says is made up. So nobody tells
the policy which thing to look up, which name to answer, or any fact.

The baseline `no-tool` is the same policy without a tool, which can only guess.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random

from agentic.agent.config import AgentRecipe
from agentic.agent.facts import ASKED, LOOK_UP, NAMES, RELATIONS, THINGS, describe, draw_facts, find_facts, look_up
from agentic.agent.rewards import exact
from core.environments import AgentTool, run_tool_loop
from core.gateway import AgentMethod, Endpoint, SessionSettings
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer
from core.types import Task
from core.worlds import TOOL_TEMPLATE, Example, Split, World, encode_turn, write_call

THINGS_OF: Mapping[Split, Sequence[str]] = {"train": THINGS[::2], "dev": THINGS[1::4], "test": THINGS[3::4]}
"""Gives each thing to one split, so the facts of training say nothing about a held-out question."""
FORMS = (
    "Who is the owner of the {thing}? Beside it are {others}.",
    "Here are {others}. Who is the owner of the {thing}?",
)
OTHERS = 3
"""Counts the things beside the asked one, in training."""


async def run(task: Task, endpoint: Endpoint) -> str:
    """Answer the question, with the tool if the model wants it. This is the agent of the preset."""

    async def call_look_up(thing: str) -> str:
        return look_up(thing, task.metadata["world"])

    return await run_tool_loop(endpoint, task.messages, [AgentTool(LOOK_UP, call_look_up)])


def write_question(rng: Random, thing: str, others: Sequence[str]) -> str:
    """Ask for the owner of a thing, and name others."""
    *before, last = (f"the {other}" for other in others)
    return rng.choice(FORMS).format(thing=thing, others=f"{', '.join(before)} and {last}")


def draw_task(rng: Random, split: Split, name: str, others: int = OTHERS) -> Task:
    """Draw a question in a world of its own."""
    thing, *beside = rng.sample(THINGS_OF[split], 1 + others)
    question, world = write_question(rng, thing, beside), rng.getrandbits(32)
    return Task(name, question, (find_facts(thing, world)[ASKED],), metadata={"world": world})


@dataclass(frozen=True, slots=True)
class LookupDemonstration:
    """Holds a conversation: the question, the call, what the tool says, and the answer."""

    question: str
    call: str
    result: str
    answer: str


def draw_demonstration(rng: Random) -> LookupDemonstration:
    """Draw a conversation. Names and things begin with a space, as words inside of a sentence do."""
    asked, *others = rng.sample(THINGS, 1 + OTHERS)
    facts = draw_facts(rng)
    thing, name = rng.choice((asked, *others)), rng.choice(list(facts.values()))
    question = write_question(rng, asked, others)
    return LookupDemonstration(
        question, write_call(LOOK_UP.name, thing=f" {thing}"), describe(thing, facts), f" {name}"
    )


def write_corpus() -> Iterator[str]:
    rng = Random(0)
    for _ in range(200):
        yield " " + " ".join(WORLD.words)
        shown = draw_demonstration(rng)
        yield f"{LOOK_UP.name}(thing)\n{shown.question}{shown.call}{shown.result}{shown.answer}"
    yield "user\nassistant\nsystem\ntool\n"


def demonstrate(rng: Random, recipe: AgentRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield the turns of conversations."""
    renderer = Renderer(tokenizer, recipe.agent.template_options)
    while True:
        yield encode(draw_demonstration(rng), renderer)


def encode(shown: LookupDemonstration, renderer: Renderer) -> list[Example]:
    """Return the two turns of a conversation, with the prompts that the gateway would make."""
    tools = [LOOK_UP.to_openai()]
    call, answer = (encode_turn(renderer.tokenizer, text) for text in (shown.call, shown.answer))
    asked = renderer.message("user", shown.question)
    told = [asked, renderer.sampled_message(call), renderer.message("tool", shown.result)]
    return [(renderer.render([asked], tools), call), (renderer.render(told, tools), answer)]


async def answer_at_once(task: Task, endpoint: Endpoint) -> str:
    """Answer without a tool."""
    return await run_tool_loop(endpoint, task.messages, [])


def build_without_tool(recipe: AgentRecipe, tokenizer: Tokenizer) -> AgentMethod:
    assert recipe.model.max_model_len is not None, "the recipe has seen to it"
    settings = SessionSettings(max_context=recipe.model.max_model_len)
    return AgentMethod(answer_at_once, exact, tokenizer, settings, max_new_tokens=32)


WORLD = World(
    words=(*RELATIONS, *THINGS, *NAMES),
    corpus=write_corpus,
    vocab_size=768,
    chat_template=TOOL_TEMPLATE,
    domains={"usual": draw_task, "eight-things": partial(draw_task, others=7)},
    demonstrate=demonstrate,
    baselines={"no-tool": build_without_tool},
)
