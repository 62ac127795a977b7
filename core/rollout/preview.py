"""This module shows the first prompt of a rollout without a model: the method asks, and nobody answers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from core.config import RecipeError
from core.policy.base import PolicyError, Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import Method, MethodSpec
from core.text.conversation import Renderer
from core.text.tokenizer import Ids, Tokenizer
from core.types import Sampling, Task

PATIENCE_S = 120.0
"""Limits the seconds until a method asks; a workspace takes some."""


def check_templates(path: str | Path, tasks: Iterable[Task], tokenizer: Tokenizer) -> None:
    """Raise RecipeError unless the chat template shows every message of the prompts that have several."""
    renderer, shown = Renderer(tokenizer), set()
    for task in tasks:
        roles = tuple(message["role"] for message in task.messages)
        if len(roles) == 1 or roles in shown:
            continue
        shown.add(roles)
        try:
            renderer.render([renderer.message(role, "-") for role in roles])
        except Exception as error:  # a template raises errors of its own, in jinja's types
            raise RecipeError(
                f"{path}: {task.task_id}: field 'messages': the model's chat template refuses the roles "
                f"{', '.join(roles)} ({error}). Fix: write all into the question, or take another model."
            ) from error


@contextmanager
def load_without_services(spec: MethodSpec, preset: str, overrides: Sequence[str]) -> Iterator[Any]:
    """Load a recipe for which no service of `addresses` needs to run; one that is asked is not there."""
    sections = spec.load(preset, overrides).model_dump()
    names = re.findall(r"\{(\w+)\}", str(sections))
    with TemporaryDirectory() as folder:
        file = Path(folder, "urls")
        file.write_text("".join(f"{name}: http://127.0.0.1:9\n" for name in names))
        invented = [f"{key}.addresses={file}" for key, section in sections.items() if "'addresses': '" in str(section)]
        yield spec.load(preset, [*overrides, *invented])


async def find_first_prompt(method: Method, task: Task) -> tuple[str, Ids]:
    """Run a rollout until it asks for the first time; return the role that it asks and the prompt.

    Raises:
        RecipeError: it ends before that; the message says why.
    """
    refusal = PolicyError("bad_request", "only the first prompt is wanted")
    policies = {role: ScriptedPolicy(lambda *_: refusal) for role in ("policy", *method.needs)}
    reason: object = "it asked nobody"
    try:
        await asyncio.wait_for(method.rollout(task, Roles(policies), Sampling(seed=0)), PATIENCE_S)
    except Exception as error:  # an agent fails in its own ways, here for want of an answer
        reason = f"{type(error).__name__}: {error}"
    for role, policy in policies.items():
        if policy.calls:
            return role, policy.calls[0].prompt_ids
    raise RecipeError(f"{task.task_id}: the rollout ends before its first prompt ({reason})")
