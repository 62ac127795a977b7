"""A group's document is encoded once, and every member asks with its ids."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agentic.memagent import rollout as module
from agentic.memagent.config import MemAgentSection
from agentic.memagent.rollout import MemAgent
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.runner import Runner
from core.text.tokenizer import Ids, encode_text
from core.types import Sampling, Task

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
