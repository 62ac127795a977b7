"""Runs rollouts of a recipe's method inside verl's agent-loop worker: dataset fields -> Task -> Trajectory."""

from __future__ import annotations

import asyncio
import json
import math
import uuid
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from core.backends.rollouts import AbortableRoles, run_rollout
from core.backends.tasks import read_task
from core.backends.verl.policy import VerlPolicy
from core.config import Recipe
from core.data.files import DataError
from core.policy.base import Policy
from core.rollout.method import Method, check_roles, method_spec
from core.rollout.roles import open_roles
from core.rollout.runner import failed_trajectory
from core.text.tokenizer import Tokenizer, load_tokenizer
from core.types import Sampling, Task, Trajectory

RECORD = "task"
"""Names the field of `extra_info` that holds our own record as JSON, which Parquet would otherwise pad with nulls."""

_opened: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[MethodRollouts]] = {}


@dataclass
class MethodRollouts:
    """Keeps what the rollouts of one recipe share in one event loop."""

    method: Method
    roles: Mapping[str, Policy]
    tokenizer: Tokenizer
    deadline_s: float
    reading: Mapping[str, Any]
    stack: AsyncExitStack
    limit: asyncio.Semaphore
    """Limits the rollouts in flight."""

    async def run(
        self, fields: Mapping[str, Any], path: str, policy: VerlPolicy, params: Mapping[str, Any]
    ) -> Trajectory:
        """Run one rollout of the dataset row `fields` of the file `path`. A failure is a Trajectory too."""
        try:
            task = read_fields(fields, path, self.reading)
        except DataError as error:
            return failed_trajectory("", "bad_task", str(error))
        sampling = Sampling(temperature=params["temperature"], top_p=params["top_p"], top_k=params["top_k"])
        roles = AbortableRoles({**self.roles, "policy": policy}, uuid.uuid4().hex, lambda: False)
        async with self.limit:
            return await run_rollout(self.method, task, sampling, roles, self.deadline_s)


async def open_once(recipe: Recipe, key: str, model: str, workers: int = 1) -> MethodRollouts:
    """Open a recipe's method and its further roles in this event loop; rollouts that come meanwhile wait for it.

    `key` names the recipe; `model` is the folder of the tokenizer; `workers` share the recipe's `rollout.concurrency`.

    Raises:
        RecipeError: a role is missing, or has no place here.
    """
    place = asyncio.get_running_loop(), key
    if place not in _opened:
        _opened[place] = asyncio.create_task(_open(recipe, model, workers))
    return await asyncio.shield(_opened[place])


async def close_all() -> None:
    """Close what this event loop opened. Tests call it; verl's worker just ends."""
    for place in [place for place in _opened if place[0] is asyncio.get_running_loop()]:
        await (await _opened.pop(place)).stack.aclose()


async def _open(recipe: Recipe, model: str, workers: int) -> MethodRollouts:
    spec, tokenizer = method_spec(recipe.method), load_tokenizer(model)
    async with AsyncExitStack() as stack:
        method = spec.build(recipe, tokenizer)
        stack.push_async_callback(method.close)
        roles = await stack.enter_async_context(open_roles(recipe, tokenizer))
        check_roles(method, {*roles, "policy"})
        deadline, reading = recipe.rollout.deadline_s, spec.reading_options(recipe)
        limit = asyncio.Semaphore(math.ceil(recipe.rollout.concurrency / workers))
        return MethodRollouts(method, roles, tokenizer, deadline, reading, stack.pop_all(), limit)


def name_files(files: Any) -> str:
    """Name the data in messages and in the ids of tasks: verl takes one file, or a list of them."""
    return files if isinstance(files, str) else ",".join(map(str, files))


def read_fields(fields: Mapping[str, Any], path: str, options: Mapping[str, Any] | None = None) -> Task:
    """Read the Task of a row of verl's data: our record in `extra_info`, or the prompt and `reward_model.ground_truth`.

    Raises:
        DataError: as core.backends.tasks.read_task, or our record is no JSON.
    """
    extra = dict(fields.get("extra_info") or {})
    label = (fields.get("reward_model") or {}).get("ground_truth")
    if RECORD in extra:
        try:
            extra = json.loads(extra[RECORD])
        except (TypeError, ValueError) as error:
            raise DataError(
                f"{path}: record {fields.get('index')}: extra_info.{RECORD} is not JSON: {error}"
            ) from error
    return read_task(fields.get("raw_prompt"), label, extra, path, fields.get("index"), options)
