"""ToolOrchestra's questions with frozen experts: one right and dear, one wrong and cheap, one dead.

The reward is that of the group, malformed turns are masked, and the turns of a rollout share one row.
"""

from __future__ import annotations

import json
from random import Random
from typing import Any

from agentic.toolorchestra.config import load_recipe
from agentic.toolorchestra.rollout import SPEC
from core.chat import encode_text
from core.config import Recipe
from core.policy.base import PolicyError
from core.policy.scripted import ScriptedPolicy
from core.slime.hooks import slime_hooks
from core.types import Task
from tests.contract.slime.case import Case
from tests.contract.slime.serving import SLOW

REFUSED = "forbidden"
EXPERTS = {"expert-1": "strong", "expert-2": "weak", "expert-3": "dead"}

generate, reward_func, convert, post_process_rewards, dynamic_filter, rollout_log, eval_log = slime_hooks(SPEC)


def make_recipe(**rollout: Any) -> dict[str, Any]:
    """The tiny preset's reward; the conversation as it was said, in the format of large models."""
    sizes = {"tasks_per_step": 4, "group_size": 4, "deadline_s": 60.0} | rollout
    models = {
        name: {"role": name, "latency_s": 1, "price": {"input": 10 - i, "output": 30 - i}}
        for i, name in enumerate(EXPERTS.values())
    }
    section = {
        "style": "hermes",
        "context": "append_only",
        "max_turns": 8,
        "max_tokens": 256,
        "addresses": None,
        "search": {},
        "budget": {},
        "tools": {"call_expert": list(EXPERTS), "answer": []},
        "models": models,
        "model_mapping": EXPERTS,
        "latency": "told",
    }
    overrides = [f"rollout.{name}={value}" for name, value in sizes.items()]
    overrides += [f"toolorchestra.{name}={json.dumps(value)}" for name, value in section.items()]
    overrides += [f"roles.{name}=python:{__name__}.{name}" for name in EXPERTS.values()]
    return load_recipe("tiny", [*overrides, "algorithm.merge_turns=true"]).dump()


def strong(recipe: Recipe, tokenizer: Any) -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt, sampling: encode_text(tokenizer, "It is \\boxed{42}."))


def weak(recipe: Recipe, tokenizer: Any) -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt, sampling: encode_text(tokenizer, "It is \\boxed{41}."))


def dead(recipe: Recipe, tokenizer: Any) -> ScriptedPolicy:
    return ScriptedPolicy(lambda prompt, sampling: PolicyError("unavailable", "the expert died"))


def orchestrator(prompt: str, chance: Random) -> str:
    """Mostly asks an expert, then mostly answers; now and then a turn is malformed, or a prompt refused."""
    if REFUSED in prompt and chance.random() < 0.2:
        raise PolicyError("bad_request", "refused")
    experts = [("call_expert", {"expert": name}) for name in ("expert-1", "expert-1", *EXPERTS)]
    calls = [*experts, *[("answer", {})] * 12] if "boxed" in prompt else [*experts, *experts]
    written = [
        f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>" for name, arguments in calls
    ]
    return chance.choice([*written, "I do not know.", "<tool_call>{"])


def make_tasks(count: int, word: str = "price") -> list[Task]:
    """With two preferences in turn."""
    preferences: list[dict[str, float]] = [{"accuracy": 1.0, "cost": 1.0}, {"accuracy": 1.0, "expert-1": 1.0}]
    return [
        Task(f"{word}-{i}", f"What is the {word} {i}?", ("42",), metadata={"pref_vec": preferences[i % 2]})
        for i in range(count)
    ]


CASE = Case(
    hooks=__name__,
    spec=SPEC,
    recipe=make_recipe,
    tasks=make_tasks,
    faulty=[
        *make_tasks(3),
        *make_tasks(2, REFUSED),
        Task("bad", "What?", ("42",), metadata={"category": "unknown"}),
    ],
    failures={"bad_task": True, "bad_request": False},
    slow=Task("slow", f"What is the price, {SLOW}?", ("42",)),
    quick={"question": "What is the price?"},
    reply=orchestrator,
)
