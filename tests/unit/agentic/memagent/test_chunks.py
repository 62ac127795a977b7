"""Chunks keep a document's tokens, and what a group's rollouts share of them is computed once."""

from __future__ import annotations

import asyncio
import re
import threading
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentic.memagent import rollout as module
from agentic.memagent.chunks import SharedResults, split_chunks
from agentic.memagent.config import MemAgentSection
from agentic.memagent.rollout import MemAgent
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.runner import Runner
from core.text.tokenizer import Ids, encode_text
from core.types import Sampling, Task

PIECES = st.sampled_from([
    "The sky is blue.", "Here we go!", "Why?", " ", "\n", "\n\n", "Document 1:\n", "Document 22:\n", "acorn hat", "é漢",
    "1.5", "漢。字！」", "\r\n\r\nDocument 3:",
])  # fmt: skip
TEXTS = st.lists(PIECES, min_size=1, max_size=40).map(" ".join)
ALIGNS = st.sampled_from(["none", "sentence", "document"])


def joined(chunks):
    return tuple(i for chunk in chunks for i in chunk)


def units(text: str, align: str) -> list[str]:
    """The units, said another way: a sentence ends before white space, a document starts at its header."""
    if align == "none":
        return [text]
    ends = r"[.!?](?=\s)|。|！」" if align == "sentence" else r"\n\r?\n(?=Document \d+:)"
    cuts = [0, *(match.end() for match in re.finditer(ends, text)), len(text)]
    return [text[a:b] for a, b in pairwise(cuts) if a < b]


@given(TEXTS, st.integers(1, 60), ALIGNS)
def test_chunks_together_are_the_units_and_none_is_too_long(tokenizer, text, size, align):
    chunks = split_chunks(tokenizer, text, size, align)
    encoded = [encode_text(tokenizer, unit) for unit in units(text, align)]
    assert joined(chunks) == tuple(i for unit in encoded for i in unit)
    assert all(0 < len(chunk) <= size for chunk in chunks)
    assert tokenizer.decode(joined(chunks)) == text


@example("漢。字！」漢。", 10, "sentence")
@example("hat hat hat\r\n\r\nDocument 3: hat hat hat", 12, "document")
@given(TEXTS, st.integers(1, 60), ALIGNS)
def test_units_that_fit_are_never_cut(tokenizer, text, size, align):
    cuts, position = set(), 0
    for chunk in split_chunks(tokenizer, text, size, align):
        position += len(chunk)
        cuts.add(position)
    position = 0
    for unit in units(text, align):
        length = len(encode_text(tokenizer, unit))
        if length <= size and align != "none":
            assert not cuts & set(range(position + 1, position + length))
        position += length


def test_a_unit_that_is_too_long_is_cut_and_the_next_one_joins_its_rest(tokenizer):
    long, short = "acorn " * 10 + "hat.", " Why?"
    ids, after = encode_text(tokenizer, long), encode_text(tokenizer, short)
    size = len(ids) - 1
    assert split_chunks(tokenizer, long + short, size, "sentence") == [ids[:size], ids[size:] + after]


async def test_members_wait_for_the_one_computation_also_when_the_first_is_cancelled() -> None:
    gate, computed, shared = threading.Event(), [], SharedResults[int]()

    def compute() -> int:
        assert gate.wait(30)
        computed.append(1)
        return 7

    first, second = (asyncio.create_task(shared.find("key", compute, slow=True)) for _ in range(2))
    await asyncio.sleep(0.01)  # the loop goes on while the thread waits
    first.cancel()
    await asyncio.sleep(0)
    assert not second.done()
    gate.set()
    assert await second == 7
    assert first.cancelled()
    assert computed == [1]


def test_what_is_quick_never_waits_whether_it_is_kept_or_not() -> None:
    """A run that resumes has kept nothing, and must put the same calls into the same batches."""
    shared, results = SharedResults[int](), iter([7, 8])
    for _ in range(2):
        with pytest.raises(StopIteration) as returned:
            shared.find("key", lambda: next(results), slow=False).send(None)
        assert returned.value.value == 7


@pytest.mark.parametrize("slow", [True, False])
async def test_what_cannot_be_computed_fails_every_member(slow: bool) -> None:
    shared = SharedResults[float]()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await shared.find("key", lambda: 1 / 0, slow=slow)


CONFIG = MemAgentSection(chunk_tokens=24, max_memory_tokens=4, max_final_tokens=4, prompt_style="compact")
TASK = Task("t", "Which word?", ("hat",), "The grass is green. The sky is blue. " * 8)


class CountingMemAgent(MemAgent):
    """Counts the documents that it encodes, and the threads in which it does."""

    def __init__(self, tokenizer: Any):
        super().__init__(CONFIG, tokenizer)
        self.encoded: list[str] = []
        self.threads: set[int] = set()

    def sections(self, task: Task) -> tuple[list[Ids], int]:
        self.encoded.append(task.task_id)
        self.threads.add(threading.get_ident())
        return super().sections(task)


@pytest.mark.parametrize("longest", [10, 10**6], ids=["in a thread", "on the loop"])
async def test_a_group_of_16_encodes_its_document_once_and_asks_with_the_same_ids(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    monkeypatch.setattr(module, "THREAD_CHARACTERS", longest)
    method = CountingMemAgent(tokenizer)
    policy = ScriptedPolicy(lambda prompt, sampling: (40, tokenizer.eos_token_id))
    runner = Runner(method, Roles({"policy": policy}), concurrency=5, deadline_s=30)
    (group,) = await runner.run_groups([TASK], 16, Sampling(), seed=0)
    assert method.encoded == ["t"]
    assert (threading.get_ident() in method.threads) == (longest > 10)
    alone = MemAgent(CONFIG, tokenizer)
    expected = [
        alone.update.render(problem=encode_text(tokenizer, TASK.question), section=section, memory=memory)
        for section, memory in zip(alone.sections(TASK)[0], [alone.empty_memory, *[(40,)] * 99], strict=False)
    ]
    assert len(expected) > 2
    for trajectory in group:
        assert [turn.prompt_ids for turn in trajectory.turns[:-1]] == expected
