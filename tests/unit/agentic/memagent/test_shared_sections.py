"""A group's document is encoded once, off the event loop where it is long; no member can spoil it for the others."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from agentic.memagent import rollout as module
from agentic.memagent.config import MemAgentSection
from agentic.memagent.rollout import MemAgent
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import RolloutError
from core.rollout.runner import Runner
from core.text.tokenizer import Ids, encode_text
from core.types import Sampling, Task

CONFIG = MemAgentSection(chunk_tokens=24, max_memory_tokens=4, max_final_tokens=4, prompt_style="compact")
TASK = Task("t", "Which word?", ("hat",), "The grass is green. The sky is blue. " * 8)


class CountingMemAgent(MemAgent):
    """Counts the documents that it encodes, and the threads in which it does; `gate` holds the threads up."""

    def __init__(self, tokenizer: Any, gate: threading.Event | None = None):
        super().__init__(CONFIG, tokenizer)
        self.encoded: list[str] = []
        self.threads: set[int] = set()
        self.gate = gate

    def sections(self, task: Task) -> list[Ids]:
        self.encoded.append(task.task_id)
        self.threads.add(threading.get_ident())
        if self.gate is not None:
            assert self.gate.wait(30)
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
        for section, memory in zip(alone.sections(TASK), [alone.empty_memory, *[(40,)] * 99], strict=False)
    ]
    assert len(expected) > 2
    for trajectory in group:
        assert [turn.prompt_ids for turn in trajectory.turns[:-1]] == expected


async def test_members_wait_for_the_one_encoding_also_when_the_first_is_cancelled(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "THREAD_CHARACTERS", 10)
    gate = threading.Event()
    method = CountingMemAgent(tokenizer, gate)
    first, second = (asyncio.create_task(method.share_sections(TASK)) for _ in range(2))
    await asyncio.sleep(0.01)  # the loop goes on while the thread waits
    first.cancel()
    await asyncio.sleep(0)
    assert not second.done()
    gate.set()
    assert await second == MemAgent(CONFIG, tokenizer).sections(TASK)
    assert first.cancelled()
    assert method.encoded == ["t"]


def test_a_short_document_never_waits_whether_it_is_kept_or_not(tokenizer: Any) -> None:
    """A run that resumes has kept nothing, and must put the same calls into the same batches."""
    method = CountingMemAgent(tokenizer)
    for _ in range(2):
        with pytest.raises(StopIteration):
            method.share_sections(TASK).send(None)
    assert method.encoded == ["t"]


async def test_few_documents_stay_and_another_text_of_the_same_name_is_another(tokenizer: Any) -> None:
    method = CountingMemAgent(tokenizer)
    names = [f"t{i}" for i in range(module.SHARED_DOCUMENTS + 1)]
    for name in [*names, names[-1], names[0]]:
        await method.share_sections(Task(name, "?", ("x",), TASK.context))
    assert method.encoded == [*names, names[0]]
    assert await method.share_sections(Task("t1", "?", ("x",), "Another text.")) != await method.share_sections(TASK)


async def test_a_document_that_cannot_be_cut_fails_every_member(tokenizer: Any) -> None:
    method = CountingMemAgent(tokenizer)
    for _ in range(2):
        with pytest.raises(RolloutError, match="field `context` is empty"):
            await method.share_sections(Task("t", "?", ("x",), " "))
