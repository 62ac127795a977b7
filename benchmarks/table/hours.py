"""How many hours an evaluation takes: its calls, times the tokens of a call, over a server's tokens a second.

This is for planning. RULER's calls follow from the protocol, and every one is taken to use its whole budget. Those of
the agents depend on the models, so CALLS assumes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil

from agentic.memagent.config import MemAgentSection
from agentic.memagent.rollout import SPEC as MEMAGENT
from benchmarks.ruler.published import AVERAGE, LONG_WINDOW, WINDOW
from benchmarks.ruler.tasks import TEN_TASKS
from benchmarks.table.evaluations import Evaluation
from benchmarks.tau2.published import ALL
from core.data.sets import SETS, Questions
from core.report import PublishedScore

TOKENS_A_SECOND = 5000
"""Guesses the speed of one server of a 7B model that reads and writes for many calls at once."""

TOKENS_OF_A_DOCUMENT = 140
"""RULER-HQA's 50 documents have 7,000 tokens."""


@dataclass(frozen=True)
class Work:
    """Counts calls, and the tokens that they read and write together."""

    calls: int
    tokens: int

    def hours(self, tokens_a_second: float) -> float:
        return self.tokens / tokens_a_second / 3600

    def describe(self, tokens_a_second: float) -> str:
        """Return the estimate with everything that it assumes."""
        each = self.tokens / max(1, self.calls)
        return (
            f"about {self.hours(tokens_a_second):.1f} hours at {tokens_a_second:,} tokens a second: {self.calls:,} "
            f"calls, {each:,.0f} tokens read and written in each"
        )


CALLS = {"aime": Work(25, 25 * 3000), "tau2": Work(60, 60 * 8000), "questions": Work(20, 20 * 8000)}
"""Holds the assumed work of one task: the calls of all models, with prompts that grow. Many end sooner or later."""


def estimate_work(evaluation: Evaluation, rows: Sequence[PublishedScore], tasks: int | None = None) -> Work:
    """Return the work of those cells of an evaluation that give `rows` their scores, of at most `tasks` tasks each."""
    cells = list({(row.data, row.length): row for row in rows}.values())
    # The rows of tau2-bench's domains are parts of the one of them all.
    cells = [row for row in cells if row.data == ALL] or cells
    works = [(_work_of_task(evaluation, row), _count_tasks(row, tasks) * _samples(evaluation)) for row in cells]
    return Work(sum(work.calls * count for work, count in works), sum(work.tokens * count for work, count in works))


def _work_of_task(evaluation: Evaluation, row: PublishedScore) -> Work:
    if evaluation.benchmark != "ruler":
        return CALLS[evaluation.benchmark]
    tokens = row.length if row.data == AVERAGE else row.length * TOKENS_OF_A_DOCUMENT
    if row.variant == "full-context":
        window = LONG_WINDOW if "--window" in evaluation.options else WINDOW
        return Work(1, min(tokens, window.prompt_tokens) + window.answer_tokens)
    section = _load_memagent()
    chunks = ceil(tokens / section.chunk_tokens)
    # Each chunk is read with a memory and a new memory is written; the last call reads a memory alone.
    memories = (2 * chunks + 1) * section.max_memory_tokens
    return Work(chunks + 1, tokens + memories + section.max_final_tokens)


@cache
def _load_memagent() -> MemAgentSection:
    return MEMAGENT.load("published").memagent


def _count_tasks(row: PublishedScore, tasks: int | None) -> int:
    known = SETS.get(row.data)
    published = row.n or (known.rows if isinstance(known, Questions) else 0)
    parts = {AVERAGE: len(TEN_TASKS), ALL: 3}.get(row.data, 1)
    return min(published, tasks * parts) if tasks else published


def _samples(evaluation: Evaluation) -> int:
    words = evaluation.options
    return int(words[words.index("--k") + 1]) if "--k" in words else 1
