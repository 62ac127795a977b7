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
from core.rollout.method import RolloutError
from core.types import Task


def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.delitem(sys.modules, "verifiers.v1", raising=False)
    entry = VerifiersEntry(kind="verifiers", taskset={"id": "textarena"})
    with pytest.raises(RecipeError, match=r"agent\.agents\.x\.environment: .*pip install 'tokentrue\[verifiers\]'"):
        entry.open("agent.agents.x.environment", 4)


def open_taskset(monkeypatch: pytest.MonkeyPatch, episode: Any) -> VerifiersEnvironment:
    """Return a taskset of one task, whose episode is given."""

    async def run_episode(*_: Any) -> Any:
        return episode

    parts = dict.fromkeys(("EvalClientConfig", "SamplingConfig"), SimpleNamespace)
    package = SimpleNamespace(ModelContext=lambda *_: None, **parts)
    monkeypatch.setitem(sys.modules, "verifiers", package)
    monkeypatch.setitem(sys.modules, "verifiers.v1", package)
    played = object.__new__(VerifiersEnvironment)
    played.entry, played.name = VerifiersEntry(kind="verifiers", taskset={"id": "t"}), "t"
    played._tasks = [SimpleNamespace(data=SimpleNamespace(prompt_text="?"), key="k")]
    played._environment = SimpleNamespace(run_episode=run_episode)
    played._serving = asyncio.create_task(asyncio.sleep(0))
    return played


def make_trace(**parts: Any) -> Any:
    whole = {"metrics": {}, "rewards": {}, "reward": 0.0, "stop_condition": None, "last_reply": "x", "errors": []}
    return SimpleNamespace(**{**whole, **parts})


TASK = Task("1", "?", (), metadata={"index": 0, "key": "k"})


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
    trace = make_trace(rewards=rewards, reward=sum(one.value for one in rewards.values()), stop_condition=stop)
    played = open_taskset(monkeypatch, SimpleNamespace(ok=True, errors=[], traces=[trace]))
    outcome = await played(TASK, Endpoint("http://there", "key"))
    assert (outcome.truncated, outcome.reward) == (truncated, reward)


async def test_a_limit_of_ours_excuses_a_refused_call_and_no_reward_that_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session: Any = SimpleNamespace(reached_limit=True)
    for kind in ("ProviderError", "TaskError", "EnvError", "SandboxTimeoutError"):
        trace = make_trace(errors=[SimpleNamespace(type=kind, message="broke")])
        played = open_taskset(monkeypatch, SimpleNamespace(ok=False, errors=[], traces=[trace]))
        if kind == "ProviderError":
            assert (await played(TASK, Endpoint("http://there", "key", session=session))).truncated
            continue
        with pytest.raises(RolloutError, match=f"{kind}: broke"):
            await played(TASK, Endpoint("http://there", "key", session=session))
