"""A recipe that names verifiers is refused where its package is missing. tests/optional/environments has the rest."""

from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from core.config import RecipeError
from core.environments.verifiers import VerifiersEntry, VerifiersEnvironment
from core.gateway import Endpoint
from core.types import Task


def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.delitem(sys.modules, "verifiers.v1", raising=False)
    entry = VerifiersEntry(kind="verifiers", taskset={"id": "textarena"})
    with pytest.raises(RecipeError, match=r"agent\.agents\.x\.environment: .*pip install 'tokentrue\[verifiers\]'"):
        entry.open("agent.agents.x.environment", 4)


@pytest.mark.parametrize(
    ("stop", "rewards", "truncated", "reward"),
    [
        ("agent_completed", {"right": SimpleNamespace(value=0.5)}, False, 0.5),
        ("max_turns", {"right": SimpleNamespace(value=0.5)}, True, 0.5),
        ("context_length", {"right": SimpleNamespace(value=0.5)}, True, 0.5),
        ("agent_completed", {}, False, None),
    ],
)
async def test_a_full_context_is_a_limit_and_a_taskset_without_rewards_gives_none(
    monkeypatch: pytest.MonkeyPatch, stop: str, rewards: dict[str, Any], truncated: bool, reward: float | None
) -> None:
    async def run_episode(*_: Any) -> Any:
        earned = sum(one.value for one in rewards.values())
        trace = SimpleNamespace(metrics={}, rewards=rewards, reward=earned, stop_condition=stop, last_reply="x")
        return SimpleNamespace(ok=True, errors=[], traces=[trace])

    parts = dict.fromkeys(("EvalClientConfig", "SamplingConfig"), SimpleNamespace)
    package = SimpleNamespace(ModelContext=lambda *_: None, **parts)
    monkeypatch.setitem(sys.modules, "verifiers", package)
    monkeypatch.setitem(sys.modules, "verifiers.v1", package)
    played = object.__new__(VerifiersEnvironment)
    played.entry, played.name = VerifiersEntry(kind="verifiers", taskset={"id": "t"}), "t"
    played._tasks = [SimpleNamespace(data=SimpleNamespace(prompt_text="?"), key="k")]
    played._environment = SimpleNamespace(run_episode=run_episode)
    played._serving = asyncio.create_task(asyncio.sleep(0))
    outcome = await played(Task("1", "?", (), metadata={"index": 0, "key": "k"}), Endpoint("http://there", "key"))
    assert (outcome.truncated, outcome.reward) == (truncated, reward)
