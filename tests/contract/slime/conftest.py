"""slime from SLIME_ROOT, the embedded server with MemAgent's tiny start model, and the completions that it gave."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from agentic.memagent import tiny
from agentic.memagent.config import load_recipe
from core.chat import load_tokenizer
from core.data.files import write_jsonl
from core.policy.serving import serve
from core.policy.sglang import SGLangPolicy
from core.slime.records import to_record
from core.types import Completion, Sampling, Task
from tests.contract.slime.settings import rollout_arguments

SENTENCE = " The grass is green."
HOOKS = "tests.contract.slime.scored_memagent"
Arguments = Callable[..., Any]


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.build(tmp_path_factory.mktemp("tiny") / "model", seed=0)


@pytest.fixture(scope="session")
def tokenizer(model: Path) -> Any:
    return load_tokenizer(model)


@pytest.fixture(scope="session")
def slime() -> Iterator[Any]:
    root = os.environ.get("SLIME_ROOT")
    if not root:
        pytest.skip("SLIME_ROOT does not name a checkout of slime")
    from tests.contract.slime.rig import slime_at  # it turns torch.compile off, as slime's losses on a CPU need

    with slime_at(Path(root)) as imported:
        yield imported


@pytest.fixture(scope="session")
def url(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("server") / "server.log"
    with serve("embedded", str(model), log=log, args=["--device", "cpu"]) as url:
        yield url


def make_recipe(**rollout: Any) -> dict[str, Any]:
    """The tiny preset with short turns and uneven documents."""
    sizes = {"tasks_per_step": 4, "group_size": 4, "deadline_s": 60.0} | rollout
    overrides = [f"rollout.{name}={value}" for name, value in sizes.items()]
    overrides += [
        "rollout.temperature=1.5",
        "memagent.chunk_tokens=7",
        "memagent.max_memory_tokens=8",
        "memagent.max_final_tokens=8",
    ]
    return load_recipe("tiny", overrides).dump()


def make_tasks(count: int, *words: str, longest: int = 4) -> list[Task]:
    """Tasks of 1 to `longest` chunks, again and again; `words` go into the questions in turn (ScoredMemAgent)."""
    return [
        Task(f"task-{i}", f"Which {words[i % len(words)] if words else ''}?", ("acorn",), SENTENCE * (1 + i % longest))
        for i in range(count)
    ]


@pytest.fixture
def arguments(url: str, model: Path, tmp_path: Path) -> Arguments:
    """slime's arguments for a recipe and tasks."""

    def make(recipe: dict[str, Any], tasks: list[Task], hooks: str = HOOKS, **more: Any) -> Any:
        write_jsonl(tmp_path / "train.jsonl", tasks, to_record)
        return rollout_arguments(recipe, hooks, url, model, tmp_path / "train.jsonl", **more)

    return make


@dataclass
class Tape:
    """What each session (rollout) got for its calls, in order: completions, or the errors raised instead."""

    outcomes: dict[str, list[Completion | Exception]] = field(default_factory=dict)
    prompts: dict[str, list[tuple[int, ...]]] = field(default_factory=dict)

    def forget(self, session: str) -> None:
        """What the attempts so far got; the next one begins again."""
        self.outcomes.pop(session, None)
        self.prompts.pop(session, None)

    def replay(self, session: str) -> Replay:
        return Replay(list(self.outcomes.get(session, ())), list(self.prompts.get(session, ())))


@dataclass
class Replay:
    """A policy that plays a session again, and insists on the same prompts."""

    outcomes: list[Completion | Exception]
    prompts: list[tuple[int, ...]]

    async def generate(self, prompt_ids: Any, sampling: Sampling, session: str | None = None) -> Completion:
        assert tuple(prompt_ids) == self.prompts.pop(0)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


@pytest.fixture
def tape(monkeypatch: pytest.MonkeyPatch) -> Tape:
    """Records every call of every SGLangPolicy."""
    tape, generate = Tape(), SGLangPolicy.generate

    async def recorded(
        self: SGLangPolicy, prompt_ids: Any, sampling: Sampling, session: str | None = None
    ) -> Completion:
        assert session is not None
        tape.prompts.setdefault(session, []).append(tuple(prompt_ids))
        try:
            completion = await generate(self, prompt_ids, sampling, session)
        except Exception as error:
            tape.outcomes.setdefault(session, []).append(error)
            raise
        tape.outcomes.setdefault(session, []).append(completion)
        return completion

    monkeypatch.setattr(SGLangPolicy, "generate", recorded)
    return tape
