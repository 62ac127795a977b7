"""Makes right repairs of MBPP's functions, for the supervised baseline of the preset `desk`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from agentic.coding.config import CodingRecipe
from agentic.coding.records import read_task
from agentic.coding.repairs.generate import apply_patch
from agentic.coding.rollout import CodingAgent, find_source
from core.text.tokenizer import Tokenizer
from core.types import Task
from core.worlds import Example, World, encode_turn


def solve(rng: Random, recipe: CodingRecipe, tokenizer: Tokenizer, tasks: Sequence[Task]) -> Iterator[Example]:
    """Yield the reply to each task that writes the published function: the broken one with the record's `patch`."""
    method = CodingAgent(recipe, tokenizer)
    for task in tasks:
        repository = read_task(task)
        prompt = method.renderer.render([method.show_file(repository)])
        broken = repository.files[find_source(repository)].decode()
        yield prompt, encode_turn(tokenizer, f"```python\n{apply_patch(broken, task.metadata['patch'])}```")


WORLD = World(solve=solve, in_order=True)
