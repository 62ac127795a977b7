"""ToolOrchestra's questions and conversations with frozen experts: one right and dear, one wrong and cheap, one dead.

The reward is that of the group, malformed turns are masked, and the turns of a rollout share one row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

from agentic.toolorchestra.rollout import SPEC
from core.config import Recipe
from core.policy.base import PolicyError
from core.policy.scripted import ScriptedPolicy
from core.text.tokenizer import encode_text
from core.text.tool_calls import ToolCall
from core.types import Sampling, Task
from tests.contract.backends.case import REFUSED, Case, load_tiny, refuse_some
from tests.contract.backends.serving import SLOW
from tests.small_env import KINDS, make_task, solution

DEAD_END = "last price"
"""Is a word of questions after whose first expert the orchestrator answers, also if that one was dead."""
EXPERTS = {"expert-1": "strong", "expert-2": "weak", "expert-3": "dead"}
PHONES = [make_task(f"phone-{i}", KINDS[i % 3], i) for i in range(6)]


def make_recipe(**rollout: Any) -> dict[str, Any]:
    """The tiny preset's reward; the conversation as it was said, in the format of large models."""
    models = {
        name: {"role": name, "latency_s": 1, "price": {"input": 10 - i, "output": 30 - i}}
        for i, name in enumerate(EXPERTS.values())
    }
    section = {
        "format": "hermes",
        "context": "append_only",
        "max_turns": 8,
        "max_tokens": 256,
        "addresses": None,
        "search": {},
        "budget": {},
        "tools": {"call_expert": list(EXPERTS), "answer": []},
        "experts": list(EXPERTS),
        "environment": {"path": "tests.small_env.SmallEnvironmentFactory"},
        "models": models,
        "model_mapping": EXPERTS,
        "latency": "declared",
    }
    roles = [f"roles.{name}=python:{__name__}.{name}" for name in EXPERTS.values()]
    return load_tiny(SPEC, rollout, section, *roles, "algorithm.rows=segment")


def strong(recipe: Recipe, tokenizer: Any) -> ScriptedPolicy:
    """Right about questions; in a conversation it acts."""

    def say(prompt: tuple[int, ...], sampling: Sampling) -> Sequence[int]:
        text = str(tokenizer.decode(prompt))
        return encode_text(tokenizer, next_step(text) if "phone company" in text else "It is \\boxed{42}.")

    return ScriptedPolicy(say)


def weak(recipe: Recipe, tokenizer: Any) -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt, sampling: encode_text(tokenizer, "It is \\boxed{41}."))


def dead(recipe: Recipe, tokenizer: Any) -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt, sampling: PolicyError("unavailable", "the expert died"))


def orchestrator(prompt: str, chance: Random) -> str:
    """Mostly asks an expert, then mostly answers; now and then a turn is malformed, or a prompt refused."""
    refuse_some(prompt, chance)
    experts = [call("call_expert", expert=name) for name in ("expert-1", "expert-1", *EXPERTS)]
    if DEAD_END in prompt:
        asked_one = prompt.count("<|im_start|>assistant") > 1
        return call("answer") if asked_one else chance.choice(experts)
    if "phone company" in prompt:
        return chance.choice([*experts, *[next_step(prompt)] * 4, "Please wait.", "<tool_call>{"])
    calls = [*experts, *[call("answer")] * 12] if "boxed" in prompt else [*experts, *experts]
    return chance.choice([*calls, "I do not know.", "<tool_call>{"])


def call(name: str, **arguments: Any) -> str:
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


def next_step(prompt: str) -> str:
    """Of the solution of the phone task that the prompt is about: the write, and then the word to the user."""
    task = next(task for task in PHONES if task.question in prompt)
    _, write, word = solution(task)
    assert isinstance(write, ToolCall)
    done = any(result in prompt for result in ("roaming is on", "gigabytes left", "is registered"))
    return str(word) if done else call(write.name, **write.arguments)


def make_tasks(count: int, word: str = "price") -> list[Task]:
    """Questions and conversations in turn, with two preferences."""
    preferences: list[dict[str, float]] = [{"accuracy": 1.0, "cost": 1.0}, {"accuracy": 1.0, "expert-1": 1.0}]
    asked = [Task(f"{word}-{i}", f"What is the {word} {i}?", ("42",)) for i in range(count)]
    mixed = [PHONES[i // 2] if i % 2 and word == "price" else task for i, task in enumerate(asked)]
    return [
        replace(task, metadata={**task.metadata, "pref_vec": preferences[i // 2 % 2]}) for i, task in enumerate(mixed)
    ]


CASE = Case(
    spec=SPEC,
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[
        *make_tasks(6),
        *make_tasks(2, REFUSED),
        *make_tasks(4, DEAD_END),
        Task("bad", "What?", ("42",), metadata={"category": "unknown"}),
    ],
    failures={"bad_task": True, "bad_request": False, "experts_failed": False},
    slow=Task("slow", f"What is the price, {SLOW}?", ("42",)),
    quick={"question": "What is the price?"},
    reply=orchestrator,
)
