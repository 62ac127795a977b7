"""Makes demonstrations from HotpotQA's own annotation, for a real model that answers nothing yet (preset `desk`).

The annotator adds the supporting sentences of one section to the notes that he has, or keeps these as they are, or
answers from the notes of the whole document. Unlike in laptop.py a cold start shows how to keep: what it alone gives is
the row "untrained". Tasks are those of `tokentrue data download hotpotqa-tasks` or `data ruler --task hqa`, whose
`needles` are the supporting sentences behind their titles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from agentic.memagent.config import MemAgentRecipe
from agentic.memagent.rollout import MemAgent
from core.data.tasks import read_tasks
from core.text.tokenizer import Tokenizer, encode_text
from core.types import Task
from core.worlds import Example, World, encode_turn

NOTHING = "Nothing relevant yet."
ANSWERS = 0.4
"""Sets the share of final turns."""
HOLDS = 0.5
"""Sets the share of sections with supporting sentences among the sections that are read."""


def demonstrate(rng: Random, recipe: MemAgentRecipe, tokenizer: Tokenizer) -> Iterator[list[Example]]:
    """Yield single turns on documents drawn at random."""
    method, tasks = MemAgent(recipe.memagent, tokenizer), read_tasks(recipe.data.train, require_context=True)
    while True:
        turns = write_turns(method, rng.choice(tasks))
        if rng.random() < ANSWERS:
            yield [turns[-1]]
            continue
        before = [encode_turn(tokenizer, NOTHING), *(note for _, note in turns)]
        notes = [turn for turn, note in zip(turns[:-1], before, strict=False) if turn[1] != note]
        others = [turn for turn, note in zip(turns[:-1], before, strict=False) if turn[1] == note]
        yield [rng.choice(notes if not others or (notes and rng.random() < HOLDS) else others)]


def solve(rng: Random, recipe: MemAgentRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the turns of whole right rollouts, for the supervised baseline."""
    method = MemAgent(recipe.memagent, tokenizer)
    for task in tasks:
        yield from write_turns(method, task)


def write_turns(method: MemAgent, task: Task) -> list[Example]:
    """Write the right turns on a task, the final one last. Notes that are too long for the memory lose their end."""
    tokenizer, config = method.tokenizer, method.config
    problem, memory, notes = encode_text(tokenizer, task.question), method.empty_memory, ""
    turns: list[Example] = []
    for section in method.sections(task)[0]:
        notes = "\n".join(filter(None, (notes, find_notes(task, str(tokenizer.decode(section))))))
        prompt = method.update.render(problem=problem, section=section, memory=memory, recalled=())
        memory = encode_text(tokenizer, notes or NOTHING)[: config.max_memory_tokens - 1]
        turns.append((prompt, (*memory, tokenizer.eos_token_id)))
    prompt = method.final.render(problem=problem, memory=memory, recalled=())
    return [*turns, (prompt, encode_turn(tokenizer, f"\\boxed{{{task.answers[0]}}}"))]


def find_notes(task: Task, section: str) -> str:
    """Return the supporting sentences that a section shows, behind the title of their paragraph if it begins there."""
    notes: dict[str, list[str]] = {}
    for key, value in ((needle["key"], needle["value"]) for needle in task.metadata["needles"]):
        title = f"{key}: " if f"\n{key}\n" in section else ""
        # Files of earlier versions have the sentences of a paragraph as one value, which may stand nowhere.
        if value in section or (title and value not in (task.context or "")):
            notes.setdefault(title, []).append(value)
    return "\n".join(title + " ".join(values) for title, values in notes.items())


WORLD = World(demonstrate=demonstrate, in_order=True, solve=solve)
