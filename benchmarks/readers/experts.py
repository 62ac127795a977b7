"""Writes the right reply to every prompt of a reader, from the text of the prompt alone.

The warm start of each reader shows turns of right rollouts, so that the table compares ways to read, and not how well
RL finds one. All readers share this world: its words, its start model, and the tasks that are demonstrated.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from random import Random
from typing import Any

from agentic.compaction.prompts import END, HEADING, INSTRUCTIONS, NEXT, REQUEST
from agentic.memagent.prompts import EMPTY_MEMORY, KEEP, RECALL, STOP
from agentic.memagent.world import TAGS, draw_lookup_drill
from agentic.rlm.prompts import LAST
from agentic.rlm.world import FENCE, TrustedRLM
from benchmarks.readers.tasks import (
    NUMBERS,
    QUESTIONS,
    UNKNOWN,
    draw_task,
    find_answer,
    read_needles,
    read_notes,
    read_question,
    take_notes,
    write_notes,
)
from core.policy.base import Roles
from core.rollout.method import method_spec
from core.text.tokenizer import Tokenizer
from core.types import Sampling
from core.worlds import Example, TextPolicy, World
from core.worlds.needles import KEYS, NEEDLE, NOISE, RULER_NOISE, VALUES

ANSWER = "\\boxed{{{}}}"
NO_ANSWER = " unknown."
COUNT = 'print(context.count(" for {} is"))'
SEARCH = 'i = context.find(" for {} is")\nprint(context[i : i + 60])'
SHOWN_PAGES = (8, 16)
"""Bounds the pages of a demonstration."""
SHOWN_TURNS = 2
"""Limits how many turns of a rollout are shown that have the same reply, such as a call of the next page."""


def write_note(recipe: Any, prompt: str) -> str:
    """Reply to a prompt of MemAgent: with a memory, the words of its options that are on, or the answer."""
    config = recipe.memagent
    parts = dict(re.findall(r"<(problem|section|memory|recalled)>(.*?)</\1>", prompt, re.DOTALL))
    question, memory, recalled = parts["problem"], read_notes(parts["memory"]), read_notes(parts.get("recalled", ""))
    known = {**memory, **{key: word for key, word in recalled.items() if word != UNKNOWN}}
    if "section" not in parts:
        return ANSWER.format(find_answer(question, known) or NO_ANSWER)
    kind, (key, *_) = read_question(question)
    notes = take_notes(question, known, read_needles(parts["section"]))
    reply = KEEP if config.gate_update and notes == memory else write_notes(notes)
    second = notes.get(key, UNKNOWN)
    if config.recall and kind == "hops" and notes.get(second) == UNKNOWN:
        reply += f"\n{RECALL} {second}"
    answered = kind != "count" and find_answer(question, notes)
    return f"{reply}\n{STOP}" if config.gate_exit and answered else reply


def write_program(recipe: Any, prompt: str) -> str:
    """Reply to a prompt of RLM's root: with a program that searches for a key or counts it, or with the answer."""
    question, *printed = prompt.split("<|im_start|>user\n")[1:]
    kind, keys = read_question(question)
    if kind == "count":
        counted = [{keys[0]: number} for text in printed for number in re.findall(r"^(\w+)", text)]
        return ANSWER.format(write_notes(counted[0])) if counted else FENCE.format(COUNT.format(*keys))
    notes = take_notes(question, {}, read_needles("".join(printed)))
    missing = [key for key, word in notes.items() if word == UNKNOWN]
    return FENCE.format(SEARCH.format(missing[0])) if missing else ANSWER.format(write_notes(notes))


def write_action(recipe: Any, prompt: str) -> str:
    """Reply to a prompt of compaction: with a summary, a call of the next page, or the answer after the last one."""
    question, _, history = prompt.partition(INSTRUCTIONS)
    notes = take_notes(question, read_notes(history), read_needles(history))
    if history.rpartition("<|im_end|>")[0].endswith(REQUEST):
        return write_notes(notes)
    return ANSWER.format(find_answer(question, notes) or NO_ANSWER) if END in history else NEXT


EXPERTS: dict[str, Callable[[Any, str], str]] = {
    "memagent": write_note,
    "rlm": write_program,
    "compaction": write_action,
}


def make_expert(recipe: Any, tokenizer: Tokenizer) -> TextPolicy:
    """Return a policy that makes no mistake in the rollouts of a recipe's method."""
    return TextPolicy(tokenizer, partial(EXPERTS[recipe.method], recipe))


def demonstrate(rng: Random, recipe: Any, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield the turns of right rollouts on new tasks, of those with the same reply a few."""
    method = (
        TrustedRLM(recipe, tokenizer) if recipe.method == "rlm" else method_spec(recipe.method).make(recipe, tokenizer)
    )
    roles = Roles({"policy": make_expert(recipe, tokenizer)})
    while True:
        task = draw_task(rng.choice([*QUESTIONS]), rng.randint(*SHOWN_PAGES), rng, "demonstration")
        trajectory = asyncio.run(method.rollout(task, roles, Sampling()))
        if (trajectory.reward or 0) <= 0:  # a memory has dropped the second of two hops
            continue
        turns: dict[Sequence[int], list[Example]] = {}
        for turn in rng.sample(trajectory.turns, len(trajectory.turns)):
            turns.setdefault(turn.completion.token_ids, []).append((turn.prompt_ids, turn.completion.token_ids))
        yield [turn for same in turns.values() for turn in same[:SHOWN_TURNS]]


def write_corpus() -> Iterator[str]:
    for _ in range(20):
        for words in (KEYS, VALUES, NOISE, NUMBERS):
            yield " " + " ".join(words)
        yield "\n".join((*RULER_NOISE, NEEDLE, *QUESTIONS.values(), EMPTY_MEMORY, KEEP, RECALL, STOP, LAST))
        yield "\n".join((ANSWER, NO_ANSWER, NEXT, END, REQUEST, HEADING))
        yield "\n".join((INSTRUCTIONS, FENCE.format(COUNT), FENCE.format(SEARCH)))
        yield " ".join((*RULER_NOISE, UNKNOWN, "user", "assistant", "system", "tool", "... (1,234 characters in all)"))
    yield "user\nassistant\nsystem\ntool\n"


WORLD = World(
    words=tuple(dict.fromkeys((*KEYS, *VALUES, *NOISE, *NUMBERS))),
    tags=TAGS,
    corpus=write_corpus,
    vocab_size=1536,
    lookup=draw_lookup_drill,
    demonstrate=demonstrate,
)
