"""Search-R1 on its tiny world, with a real retrieval service that fails at some queries.

The policy is now right, now wrong, and now writes no action. It may visit pages, and reads them itself.
"""

from __future__ import annotations

import atexit
import re
import tempfile
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from aiohttp import web

from agentic.search_r1.rollout import SPEC
from agentic.search_r1.world import ANSWER, SEARCH, WORLD, write_passages, write_right_turn
from core.data.files import write_records
from core.retrieval.server import RetrievalServer
from core.types import Task
from tests.contract.backends.case import Case, load_tiny
from tests.contract.backends.serving import SLOW
from tests.kit import serve_corpus

LOST = "lost"
"""A query at which the service fails."""


class FailingServer(RetrievalServer):
    async def retrieve(self, request: web.Request) -> web.Response:
        return web.Response(status=500) if LOST in await request.text() else await super().retrieve(request)


@cache
def start_service() -> str:
    """Start the retrieval service of this process, and return its URL."""
    stack = ExitStack()
    atexit.register(stack.close)
    corpus = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "corpus.jsonl"
    write_records(corpus, write_passages())
    return stack.enter_context(serve_corpus(corpus, FailingServer))


def make_recipe(**rollout: Any) -> dict[str, Any]:
    section = {
        "url": f"{start_service()}/retrieve",
        "addresses": None,
        "max_retries": 0,
        "max_tokens": 256,  # words have more tokens here than in the preset's own vocabulary
        "visit": {"role": "policy"},
    }
    return load_tiny(SPEC, rollout, section, "model.max_model_len=null")


def policy(prompt: str, chance: Random) -> str:
    """Mostly takes the right turn. Now and then it answers too soon, searches for something else, or does neither."""
    if page := re.search(r"The page:\n\n(.*)\n\nThe page ends", prompt):
        return page[1]
    if LOST in prompt and chance.random() < 0.25:
        return SEARCH.format(LOST)
    if "of the" not in prompt:
        return ANSWER.format("42")
    right, wrong = [write_right_turn(prompt)] * 6, [ANSWER.format("nobody"), "I do not know."]
    if "<information>" in prompt:
        return chance.choice([*right, *wrong, "I do not know."])
    # In place of its first search it may visit the page of the thing, which says the same as the best passage.
    visit = right[0].replace("search>", "visit>")
    return chance.choice([*right, *[visit] * 3, *wrong, SEARCH.format("red lamp")])


def make_tasks(count: int) -> list[Task]:
    return WORLD.draw_tasks("train", count)


def lose(task: Task) -> Task:
    return Task(f"lost-{task.task_id}", f"{task.question} It is lost.", task.answers)


CASE = Case(
    spec=SPEC,
    preset="paper",
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[*make_tasks(6), *map(lose, make_tasks(4))],
    failures={"search_failed": False},
    slow=Task("slow", f"Who walks {SLOW}?", ("42",)),
    quick={"question": "Who walks?"},
    reply=policy,
)
