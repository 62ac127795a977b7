"""Writes whole correct trajectories of needle tasks, for the baseline that is shown them (`--baseline supervised`).

The annotator reads and keeps without a mistake: nothing is noted until the asked fact was read, then the fact to the
end, then the boxed value. RL is not told any of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

from agentic.memagent.config import MemAgentRecipe
from agentic.memagent.rollout import MemAgent
from core.config import SupervisedSection
from core.data.tasks import read_tasks
from core.rollout.method import RolloutError
from core.text.tokenizer import Ids, Tokenizer, encode_text
from core.types import Task

Gold = tuple[Ids, Ids]
"""Pairs the ids of a prompt with those of the right completion."""


@dataclass(frozen=True, slots=True)
class AnnotatorWords:
    """Holds what an annotator writes; `{key}` and `{value}` stand for the asked key and its value."""

    nothing: str
    """Writes the memory before the fact was read."""
    fact: str
    """Writes the memory afterwards."""
    answer: str
    """Writes the final answer, with the box."""
    needle: str
    """Writes the sentence of the document that holds the fact."""


def write_gold_trajectory(method: MemAgent, task: Task, words: AnnotatorWords) -> list[Gold]:
    """Return the turns of a correct trajectory as pairs of prompt ids and completion ids, updates first.

    The prompts are those that `method` makes when the policy writes these completions.

    Raises:
        RolloutError: the task does not ask for one needle, or its document lacks the needle (kind `no_needle`), or a
            note or the answer is longer than the recipe allows (`no_room`).
    """
    tokenizer = method.tokenizer
    asked = [needle for needle in task.metadata.get("needles", ()) if needle.get("queried", True)]
    if len(asked) != 1:
        raise RolloutError("no_needle", f"task {task.task_id}: it must ask for one needle, and asks for {len(asked)}")

    def write(text: str, limit: int) -> Ids:
        ids = encode_text(tokenizer, text.format(key=asked[0]["key"], value=asked[0]["value"]))
        if len(ids) >= limit:  # the end token takes one more
            raise RolloutError("no_room", f"task {task.task_id}: {text!r} takes {len(ids) + 1} tokens of {limit}")
        return ids

    needle = words.needle.format(key=asked[0]["key"], value=asked[0]["value"])
    problem, memory, end = encode_text(tokenizer, task.question), method.empty_memory, (tokenizer.eos_token_id,)
    turns: list[Gold] = []
    read = ""
    for section in method.sections(task)[0]:
        # A needle that a chunk's end cuts in two counts as read with its second part.
        read += tokenizer.decode(section)
        note = write(words.fact if needle in read else words.nothing, method.config.max_memory_tokens)
        turns.append(
            (method.update.render(problem=problem, section=section, memory=memory, recalled=()), (*note, *end))
        )
        memory = note
    if needle not in read:
        raise RolloutError("no_needle", f"task {task.task_id}: its document lacks the sentence {needle!r}")
    answer = write(words.answer, method.config.max_final_tokens)
    turns.append((method.final.render(problem=problem, memory=memory, recalled=()), (*answer, *end)))
    return turns


def draw_gold_batches(
    words: AnnotatorWords,
) -> Callable[[SupervisedSection, MemAgentRecipe, Any], Iterator[list[Gold]]]:
    """Return a function that yields batches of turns without end. Each epoch has every training task once.

    A batch mixes the turns of several trajectories, so that it does not hold one document alone.
    """

    def draw(config: SupervisedSection, recipe: MemAgentRecipe, tokenizer: Tokenizer) -> Iterator[list[Gold]]:
        method, tasks = MemAgent(recipe.memagent, tokenizer), read_tasks(recipe.data.train, require_context=True)
        rng, size = Random(config.seed), config.batch_size
        turns: list[Gold] = []
        while True:
            for task in rng.sample(tasks, len(tasks)):
                turns += write_gold_trajectory(method, task, words)
                if len(turns) >= 8 * size:
                    rng.shuffle(turns)
                    while len(turns) >= size:
                        yield turns[:size]
                        turns = turns[size:]

    return draw
