"""A tiny random model, and a policy that reads needles as well as it is told to."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentic.memagent.rollout import SPEC
from agentic.memagent.tiny import start_model
from benchmarks.harness.models import EvalModels
from core.policy.base import Policy
from core.policy.scripted import ScriptedPolicy
from core.text.tokenizer import encode_text, load_tokenizer
from core.types import Sampling

ASKED = re.compile(r"magic word for (\w+) mentioned")
Respond = Callable[[tuple[int, ...], Sampling], Sequence[int] | Exception]


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_model.build(tmp_path_factory.mktemp("tiny"), seed=0)


@pytest.fixture(scope="session")
def tokenizer(tiny_model: Path) -> Any:
    return load_tokenizer(tiny_model)


def needle_reader(tokenizer: Any, broken: dict[str, Exception | str] | None = None) -> Respond:
    """Answers right, by way of its memory; for a key in `broken`, with that value or that error instead."""

    def respond(prompt_ids: tuple[int, ...], sampling: Sampling) -> Sequence[int] | Exception:
        text = tokenizer.decode(prompt_ids)
        asked = ASKED.search(text)
        assert asked, text
        section, memory = (re.search(f"<{part}>(.*?)</{part}>", text, re.S) for part in ("section", "memory"))
        if section:
            found = re.search(rf"magic words for {asked[1]} is: (\w+)\.", section[1])
            said = f" {asked[1]} is: {found[1]}" if found else memory[1] if memory else ""
        else:
            assert memory
            value = memory[1].rpartition("is: ")[2]
            wrong = (broken or {}).get(asked[1])
            if isinstance(wrong, Exception):
                return wrong
            said = f"\\boxed{{ {wrong or value}}}"
        return (*encode_text(tokenizer, said), tokenizer.eos_token_id)

    return respond


class ScriptedModels(EvalModels):
    """Models whose policy is scripted; `opened` lists the models in the order in which cells asked for them."""

    def __init__(self, respond: Respond, **options: Any):
        super().__init__(SPEC.load("tiny"), **{"concurrency": 4, **options})
        self.respond = respond
        self.opened: list[str] = []
        self.contexts: list[int] = []

    def limit(self, model: str) -> int:
        return self._context or 1024

    @asynccontextmanager
    async def policy(self, model: str, context: int) -> AsyncIterator[Policy]:
        self.opened.append(model)
        self.contexts.append(context)
        yield ScriptedPolicy(self.respond)
