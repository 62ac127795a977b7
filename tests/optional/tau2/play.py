"""Agents without a model: they go through the reference solution of a task, or a part of it, over our adapter; and a
scripted orchestrator that does so through the whole method."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraRecipe
from agentic.toolorchestra.environment import UserReply
from agentic.toolorchestra.tau2.client import Workers
from agentic.toolorchestra.tau2.environment import Tau2Environment, Tau2EnvironmentFactory
from agentic.toolorchestra.tau2.users import ScriptedUser
from benchmarks.tau2.protocols import WORLDS, RecordedToolOrchestra
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.types import Sampling, Task, Trajectory
from tests import kit

Action = Mapping[str, Any]


@dataclass(frozen=True)
class PlayedConversation:
    reward: float
    simulation: Mapping[str, Any]

    @property
    def messages(self) -> list[tuple[Any, ...]]:
        return list_messages(self.simulation)

    @property
    def writes(self) -> list[int]:
        """Return the places of the reference solution that write."""
        checks = self.simulation["reward_info"]["action_checks"] or []
        return [place for place, check in enumerate(checks) if check["tool_type"] == "write"]


def list_messages(simulation: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the messages without times and ids."""
    return [
        (m["role"], m["content"], [(c["name"], str(c["arguments"])) for c in m.get("tool_calls") or ()])
        for m in simulation["messages"]
    ]


def solution(task: Task) -> list[Action]:
    return list((task.metadata["criteria"] or {}).get("actions") or ())


def without_action(task: Task, place: int) -> Task:
    """Return `task` as our scripts see it without one action of its solution; tau2 has its own."""
    actions = solution(task)
    criteria = {**task.metadata["criteria"], "actions": actions[:place] + actions[place + 1 :]}
    return replace(task, metadata={**task.metadata, "criteria": criteria})


def without_solution(task: Task) -> Task:
    return replace(task, metadata={**task.metadata, "criteria": {**task.metadata["criteria"], "actions": []}})


async def replay(workers: Workers, task: Task) -> PlayedConversation:
    """Play the agent's part of the solution, and wait while the user plays the user's."""
    environment = Tau2Environment(workers, user=ScriptedUser(task))
    solo = task.metadata["solo"]
    try:
        await environment.reset(task)
        done = False
        for action in solution(task):
            if done:
                break
            if action["requestor"] == "user" and not solo:
                done = (await environment.user_turn(f"Please: {action['name']}")).done
            else:
                done = (await environment.call_tool(action["name"], action["arguments"])).done
        if solo:
            await environment.call_tool("done", {})
        elif not done:
            facts = ". ".join((task.metadata["criteria"] or {}).get("communicate_info") or ())
            heard = UserReply("")
            while not heard.done:  # until the user has nothing left to do
                heard = await environment.user_turn(f"That is done. {facts}")
        reward = await environment.evaluate()
        assert environment.simulation is not None
        return PlayedConversation(reward, environment.simulation)
    finally:
        await environment.close()


def make_tokenizer() -> Any:
    return kit.train_tokenizer(
        "user assistant tool",
        400,
        template="{% if tools %}<|im_start|>tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
        "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
        added=["<tool_call>", "</tool_call>", "<think>", "</think>"],
    )


def texts(task: Task) -> list[str]:
    """Return the solution as an orchestrator writes it, to its end."""
    solo, written = task.metadata["solo"], []
    for action in solution(task):
        if action["requestor"] == "user" and not solo:
            written.append(f"Please: {action['name']}")
        else:
            written.append(_call(action["name"], action["arguments"]))
    return [*written, _call("done", {}) if solo else "That is done."]


async def rollout(task: Task, workers: Workers, *, by_expert: bool = False, **changes: Any) -> Trajectory:
    """Run the whole method on one task with a scripted orchestrator, which acts itself or hands turns to an expert."""
    tokenizer = make_tokenizer()
    own = iter([_call("call_expert", {"expert": "expert-1"})] * 100 if by_expert else texts(task))
    experts = iter(texts(task))

    def policy(lines: Any) -> ScriptedPolicy:
        def respond(prompt: tuple[int, ...], sampling: Sampling) -> Sequence[int]:
            return (*tokenizer.encode(next(lines), add_special_tokens=False), tokenizer.eos_token_id)

        return ScriptedPolicy(respond, logprob=-0.5)

    method = RecordedToolOrchestra(make_recipe(**changes), tokenizer)
    assert isinstance(method.environments, Tau2EnvironmentFactory)
    method.environments.workers = workers  # one process for all tests: it takes seconds to start
    roles = Roles({"policy": policy(own), "strong": policy(experts)})
    return await method.rollout(task, roles, Sampling(seed=0))


def make_recipe(**changes: Any) -> ToolOrchestraRecipe:
    section: dict[str, Any] = {
        "max_turns": 100,
        "max_tokens": 2000,
        "experts": ["expert-1"],
        "model_mapping": {"expert-1": "strong"},
        "models": {"strong": {"role": "strong", "price": {"input": 1, "output": 1}}},
        "budget": {"total": 200000, "result_tokens": 100000},
        "environment": {"path": WORLDS, "options": {"user": "scripted"}},
    }
    roles = {"strong": "http://127.0.0.1:9"}
    return kit.make_recipe(
        ToolOrchestraRecipe, method="toolorchestra", roles=roles, toolorchestra={**section, **changes}
    )


def _call(name: str, arguments: Mapping[str, Any]) -> str:
    return f"<think>so</think><tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"
