"""Write the tasks of a recipe's environments, so that it can train on them.

    tokentrue data environment --preset my_recipe.yaml --out data/train.jsonl --tasks 256
    tokentrue data environment --preset my_recipe.yaml --out data/eval.jsonl --tasks 64 --first 256

Every environment under `agent.agents` that has tasks gives so many, of the indices from --first on. Files of other
indices are other splits. A record holds the task's prompt, its index, and a key by which a task that changed since is
refused.
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

from agentic.agent.config import AgentRecipe
from agentic.agent.rollout import SPEC
from core.config import RecipeError
from core.data import write_jsonl
from core.options import make_command_parser, show_errors
from core.rollout.method import RolloutError
from core.types import Task


@show_errors(RecipeError, RolloutError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    indices = range(options.first, options.first + options.tasks)
    tasks = asyncio.run(read_environments(SPEC.load(options.preset, options.overrides), indices))
    print(f"{options.out} ({write_jsonl(options.out, tasks)} tasks, {indices.start} to {indices.stop - 1} of each)")
    return 0


async def read_environments(recipe: AgentRecipe, indices: range) -> list[Task]:
    """Return the tasks of all environments. Raises RecipeError if there is none, and as an environment does."""
    found = list[list[Task]]()
    for name, entry in recipe.agent.agents.items():
        if entry.environment is None or not entry.environment.has_tasks:
            continue
        environment = entry.environment.open(f"agent.agents.{name}.environment", entry.max_turns)
        found.append([])
        try:
            for index in indices:
                prompt, key = await environment.read_task(index)
                about = {"agent": name, "environment": entry.environment.kind, "index": index, "key": key}
                found[-1].append(Task(f"{name}-{index}", prompt, (), metadata=about))
        finally:
            await environment.close()
    tasks = [task for tasks in zip(*found, strict=True) for task in tasks]  # an evaluation may take the first few
    keys = [(task.metadata["agent"], key) for task in tasks if (key := task.metadata["key"]) is not None]
    if without := len(tasks) - len(keys):
        print(f"note: {without} tasks begin anew at each reset, so nothing tells whether they change")
    if alike := len(keys) - len({*keys}):
        print(f"note: {alike} tasks begin as another one does, and may be the same; does `reset` hold {{index}}?")
    if not tasks:
        raise RecipeError("agent.agents names no `environment` with tasks of its own, so there are none to write")
    return tasks


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("data environment", __doc__)
    add = parser.add_argument
    add("--preset", required=True, help="the recipe: a name in agentic/agent/presets, or a file")
    add("--out", type=Path, required=True, metavar="FILE")
    add("--tasks", type=int, required=True, metavar="N", help="tasks of each environment")
    add("--first", type=int, default=0, metavar="INDEX", help="the first one's index (default: 0)")
    add("--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="change a key of the recipe")
    return parser
