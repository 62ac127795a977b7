"""Runs a `route` rollout: the orchestrator names the model that shall answer a question, in one call.

No model is asked. The record says in `metadata.right` which models answer right, and in `metadata.cost` what a call of
each costs this user, in right answers. The reward is right minus cost. A reply that names no model gets one less than
the worst choice, so that an entropy bonus does not spread over all other tokens.

A name that is one token, with `max_tokens: 1`, is the whole reply, and its log-prob tells how much the policy wants it:
of two models, the named one has p, the other one 1 - p. This is exact but for the probability of all further tokens,
which a cold start brings near 0 and `malformed` shows: a name after a space is another token, and malformed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraSection
from agentic.toolorchestra.orchestrator import Orchestrator
from core.rollout.method import RolloutError
from core.text.conversation import Message, Renderer
from core.text.tokenizer import encode_text
from core.text.tool_calls import CallError, split_thoughts
from core.types import CALLS, Task, Trajectory

SYSTEM = "Choose the model that answers the question."


async def run_route(
    config: ToolOrchestraSection, renderer: Renderer, task: Task, orchestrator: Orchestrator
) -> Trajectory:
    """Run one task. Raises RolloutError (`bad_task`) for a record without two models and their costs."""
    right, cost = read_outcomes(task)
    messages, cut = route_messages(config, renderer, task)
    written = split_thoughts(await orchestrator.write(messages) or "")[1] or ""
    # One token is compared as it is, but for the line ends behind a thought that the template wrote.
    choice = written.lstrip("\n") if config.max_tokens == 1 else written.strip()
    if choice not in right:
        orchestrator.refuse(CallError("no_call", f"write one of: {', '.join(right)}"))
    correct = float(right.get(choice, False))
    paid = cost.get(choice, 0.0)
    reply = orchestrator.turns[-1].completion
    return Trajectory(
        task_id=task.task_id,
        turns=tuple(orchestrator.turns),
        status="completed" if choice in right else "truncated",
        reward=correct - paid if choice in right else -1.0 - max(cost.values()),
        metrics={
            "turns": 1,
            "correct": correct,
            "official": correct,
            "answered": float(choice in right),
            "cost": paid,
            "latency": orchestrator.seconds,
            "malformed": orchestrator.refused.total(),
            "tokens_cut": cut,
            **{f"{CALLS}{name}": int(name == choice) for name in right},
            **(choice_probabilities(choice, list(right), reply.logprobs) if choice in right else {}),
        },
        log={"answer": choice, "right": dict(right)},
    )


def choice_probabilities(choice: str, names: list[str], logprobs: tuple[float, ...]) -> dict[str, float]:
    """Return `p_NAME` of both models from the log-prob of a reply of one token; nothing for other replies."""
    if len(names) != 2 or len(logprobs) != 1:
        return {}
    p = math.exp(logprobs[0])
    return {f"p_{name}": p if name == choice else 1.0 - p for name in names}


def route_messages(config: ToolOrchestraSection, renderer: Renderer, task: Task) -> tuple[list[Message], int]:
    """Return the prompt, and how many tokens the question lost: over `budget.total` it keeps its end.

    The user's preference comes last, so that the prompts of one question have a common beginning.
    """
    ids = encode_text(renderer.tokenizer, task.question)
    cut = max(0, len(ids) - config.budget.total)
    names = " or ".join(task.metadata["right"])
    wish = f"\n\n{task.metadata.get('instruction', '')} Answer with one word: {names}."
    return [renderer.message("system", SYSTEM), renderer.message("user", ids[cut:], wish)], cut


def read_outcomes(task: Task) -> tuple[Mapping[str, bool], Mapping[str, float]]:
    """Return which models answer right, and what a call of each costs. Raises RolloutError (`bad_task`)."""
    right: Any = task.metadata.get("right")
    cost: Any = task.metadata.get("cost")
    if not _is_mapping(right, bool) or not _is_mapping(cost, int | float) or right.keys() != cost.keys():
        raise RolloutError(
            "bad_task",
            f"task {task.task_id}: a route needs metadata.right, model -> true or false, and metadata.cost with a "
            f"number for each of these models; they are {right!r} and {cost!r}",
        )
    return right, cost


def _is_mapping(value: Any, kind: Any) -> bool:
    return isinstance(value, Mapping) and len(value) > 1 and all(isinstance(each, kind) for each in value.values())
