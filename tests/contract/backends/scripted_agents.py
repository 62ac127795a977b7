"""Two agents in one recipe: one that talks until the policy is done, and one that holds two conversations in turn.

The second one's rollouts become two rows each.
"""

from __future__ import annotations

from random import Random
from typing import Any

import aiohttp

from agentic.agent.rollout import SPEC
from core.gateway import Endpoint
from core.types import Task
from tests.contract.backends.case import REFUSED, Case, load_tiny, refuse_some
from tests.contract.backends.serving import SLOW


async def say(http: aiohttp.ClientSession, endpoint: Endpoint, messages: list[dict[str, str]], text: str) -> str:
    """Add a message of the user and the policy's answer to a conversation; return the answer."""
    messages.append({"role": "user", "content": text})
    body = {"model": endpoint.model, "messages": messages}
    async with http.post(f"{endpoint.openai_url}/chat/completions", json=body) as response:
        messages.append((await response.json())["choices"][0]["message"])
    return messages[-1]["content"]


def connect(endpoint: Endpoint) -> aiohttp.ClientSession:
    headers = {"Authorization": f"Bearer {endpoint.api_key}"}
    return aiohttp.ClientSession(headers=headers, raise_for_status=True)


async def talk(task: Task, endpoint: Endpoint) -> str:
    """Ask until the policy is done, at most five times."""
    messages: list[dict[str, str]] = []
    async with connect(endpoint) as http:
        answer = await say(http, endpoint, messages, task.question)
        while not answer.startswith("done") and len(messages) < 10:
            answer = await say(http, endpoint, messages, "Go on.")
    return answer


async def delegate(task: Task, endpoint: Endpoint) -> str:
    """Hold a conversation with a helper beside the one about the task."""
    messages: list[dict[str, str]] = []
    helper: list[dict[str, str]] = []
    async with connect(endpoint) as http:
        for text in (task.question, "What else?"):
            advice = await say(http, endpoint, helper, f"Advise on: {text}")
            answer = await say(http, endpoint, messages, f"{text} I heard: {advice}")
    return answer


def reward(task: Task, answer: str) -> float:
    return float(answer.removeprefix("done ") in task.answers)


def policy(prompt: str, chance: Random) -> str:
    """Is done in half of its answers, and right in half of these; now and then a prompt is refused."""
    refuse_some(prompt, chance)
    return chance.choice(("I think.", "So be it", "done 41", "done 42"))


def make_recipe(**rollout: Any) -> dict[str, Any]:
    agents = {name: {"run": f"{__name__}.{name}", "reward": f"{__name__}.reward"} for name in ("talk", "delegate")}
    return load_tiny(SPEC, rollout, {"agents": agents}, "model.max_model_len=4096")


def make_task(name: str, question: str, agent: str) -> Task:
    return Task(name, question, ("42",), metadata={"agent": agent})


def make_tasks(count: int, word: str = "price") -> list[Task]:
    agents = ("talk", "delegate")
    return [make_task(f"{word}-{i}", f"What is the {word} {i}?", agents[i % 2]) for i in range(count)]


CASE = Case(
    spec=SPEC,
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[*make_tasks(6), *make_tasks(2, REFUSED), make_task("bad", "What?", "nobody")],
    failures={"bad_task": True, "bad_request": False},
    slow=make_task("slow", f"What is the price, {SLOW}?", "talk"),
    quick={"question": "What is the price?"},
    reply=policy,
)
