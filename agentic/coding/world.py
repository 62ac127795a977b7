"""Makes the world of the preset `tiny`: repairs of one wrong sign, from the generator in repairs/.

A `package` has two modules of five functions, for language models. `function`, `guarded` and `unseen` have one
function, for this preset. A task follows from its split and number alone.

The demonstrations show the form of an edit, and nothing of the repair. Each shows a function with a wrong sign in its
comparison. It repeats how the docstring compares, and then puts another sign there at random, drawn like the bugs. So
nobody tells the policy which sign the words ask for: one edit in three happens to be right.

| baseline | what it does |
|---|---|
| random-edit | puts another sign into the comparison at random, as the demonstrations of the warm start do |
| best-constant | puts the same sign into every comparison; each of the four repairs a quarter of the test tasks |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from random import Random
from typing import Any

from agentic.coding.config import CodingRecipe
from agentic.coding.prompts import EDIT, INSTRUCTIONS, SCHEMAS, TASK
from agentic.coding.repairs.functions import (
    COMPARISONS,
    RECORDS,
    REPORTS,
    SIMPLE_WORDS,
    VALUES,
    draw_report,
    write_report,
)
from agentic.coding.repairs.generate import Size, draw_record, state_problem
from agentic.coding.repairs.mutations import draw_other_sign, put_sign
from agentic.coding.rollout import CodingAgent
from agentic.coding.tools import number_lines
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.text.conversation import Renderer
from core.text.tokenizer import Tokenizer
from core.types import Sampling, Task, Trajectory
from core.worlds import TOOL_TEMPLATE, Example, Split, World, encode_turn, write_call

DONE = "done"
EDITS = 8
"""Counts the edits that are shown of one broken function."""
CONSTANT_SIGN = ">="


def draw_task(size: Size, rng: Random, split: Split, name: str) -> Task:
    """Draw the task whose number ends its name."""
    record = draw_record(split, int(name.rpartition("-")[2]), size)
    return Task(name, record["prompt"], (record["label"],), metadata=record["metadata"])


def to_record(task: Task) -> dict[str, Any]:
    """Return a task as a record in slime's format."""
    return {"prompt": task.question, "label": task.answers[0], "metadata": dict(task.metadata)}


@dataclass(frozen=True, slots=True)
class EditDemonstration:
    """Holds a file with a bug and the turns of the policy: the call, and after it the end."""

    path: str
    text: str
    call: str
    end: str = DONE


def draw_demonstrations(rng: Random) -> list[EditDemonstration]:
    """Draw a function of training, break it, and show edits of it."""
    record, field = rng.choice(RECORDS)
    function = draw_report(rng, "train", (record, field), words=rng.choice(SIMPLE_WORDS))
    broken = draw_other_sign(rng, function.source).source
    path, text = f"{record}s.py", f"{broken}\n"
    edits = (draw_other_sign(rng, broken).source for _ in range(EDITS))
    return [EditDemonstration(path, text, write_turn(path, text, edited)) for edited in edits]


def write_turn(path: str, before: str, after: str) -> str:
    """Write how the docstring compares, and the call that makes `after` of `before`."""
    words = next(words for words in SIMPLE_WORDS if f" {words} the limit" in before)
    return f"It is {words} the limit.\n{write_edit(path, before, after)}"


def write_edit(path: str, before: str, after: str) -> str:
    """Write the call that makes `after` of `before`, which differs in one line."""
    pairs = enumerate(zip(before.splitlines(), after.splitlines(), strict=True), 1)
    line, text = next((number, new) for number, (old, new) in pairs if old != new)
    return write_call(EDIT.name, path=path, line=line, text=text)


def write_corpus() -> Iterator[str]:
    every = product(REPORTS, COMPARISONS, VALUES)
    for number, (kind, words, value) in enumerate(every):
        record, field = RECORDS[number % len(RECORDS)]
        path, made = f"{record}s.py", write_report(kind, words, value, record, field)
        edited = made.source.replace(f" {COMPARISONS[words]} limit", " < found")
        yield f"{EDIT.name}(path, line, text, last)\n{state_problem(path)}\n{INSTRUCTIONS}"
        yield f"{path}\n{number_lines(made.source)}{write_edit(path, made.source, edited)}edited{DONE}"
    for _ in range(20):
        yield " " + " ".join(f"{record}s {field}" for record, field in RECORDS)
        yield "user\nassistant\nsystem\ntool\n"


def demonstrate(rng: Random, recipe: CodingRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield the turns of edits of one broken function."""
    renderer, tools = Renderer(tokenizer), list_schemas(recipe)
    while True:
        pairs = [encode(shown, renderer, tools) for shown in draw_demonstrations(rng)]
        # The end is always the same word, and soon learned.
        yield [*(call for call, _ in pairs), pairs[0][1]]


def list_schemas(recipe: CodingRecipe) -> list[dict[str, Any]]:
    return [SCHEMAS[name].to_openai() for name in recipe.coding.tools]


def encode(shown: EditDemonstration, renderer: Renderer, tools: list[dict[str, Any]]) -> tuple[Example, Example]:
    """Return the two turns of a conversation, with the prompts that the rollout would make."""
    call, end = (encode_turn(renderer.tokenizer, text) for text in (shown.call, shown.end))
    statement = TASK.format(statement=state_problem(shown.path))
    asked = renderer.message("user", f"{statement}{INSTRUCTIONS}{shown.path}\n{number_lines(shown.text)}")
    told = [asked, renderer.sampled_message(call), renderer.message("tool", "edited")]
    return (renderer.render([asked], tools), call), (renderer.render(told, tools), end)


def solve_tasks(rng: Random, recipe: CodingRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the turns of the right repairs."""
    renderer, tools = Renderer(tokenizer), list_schemas(recipe)
    for task in tasks:
        yield from encode(solve(task), renderer, tools)


def solve(task: Task) -> EditDemonstration:
    """Write the right repair; `kind` is the sign that was right."""
    path, text = next(iter(task.metadata["repository"].items()))
    return EditDemonstration(path, text, write_turn(path, text, put_sign(text, task.metadata["kind"])))


class ScriptedEditor(CodingAgent):
    """Makes one edit, which `choose` takes from the text before, and ends."""

    def __init__(self, recipe: CodingRecipe, tokenizer: Tokenizer, choose: Callable[[str, Random], str]):
        super().__init__(recipe, tokenizer)
        self.choose = choose

    async def rollout(self, task: Task, roles: Roles, sampling: Sampling) -> Trajectory:
        path, text = next(iter(task.metadata["repository"].items()))
        edited = self.choose(text, Random(f"{task.task_id}-{sampling.seed}"))
        # The text ends in a newline, which an edited one lacks.
        replies = [write_edit(path, text, edited)] if edited.splitlines() != text.splitlines() else []
        left = iter([*replies, DONE])
        policy = ScriptedPolicy(lambda prompt, request: encode_turn(self.tokenizer, next(left)))
        return await super().rollout(task, Roles({"policy": policy}), sampling)


WORLD = World(
    words=tuple(word for record, field in RECORDS for word in (f"{record}s", field)),
    corpus=write_corpus,
    vocab_size=768,
    chat_template=TOOL_TEMPLATE,
    domains={size: partial(draw_task, size) for size in ("function", "unseen", "guarded", "package")},
    identify=lambda task: task.task_id,
    to_record=to_record,
    demonstrate=demonstrate,
    solve=solve_tasks,
    baselines={
        "random-edit": partial(ScriptedEditor, choose=lambda text, rng: draw_other_sign(rng, text).source),
        "best-constant": partial(ScriptedEditor, choose=lambda text, rng: put_sign(text, CONSTANT_SIGN)),
    },
)
