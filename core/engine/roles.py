"""A recipe's further roles, opened: servers by URL, frozen models beside the trained one, policies made by a function.

The three forms of `roles.NAME` are `http://host:port`, `model:FOLDER_OR_HUB_ID` and `python:package.module.function`;
the function is called with (recipe, tokenizer). Roles that name the same thing share one policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any, cast

from core.config import Recipe, RecipeError
from core.engine import weights
from core.engine.engine import Engine
from core.engine.policy import EmbeddedPolicy
from core.hub import resolve
from core.policy.base import Policy
from core.policy.sglang import SGLangPolicy
from core.text.tokenizer import find_tokenizer


@asynccontextmanager
async def open_roles(recipe: Recipe, tokenizer: Any) -> AsyncIterator[dict[str, Policy]]:
    """Role name -> Policy for every role but `policy`; closed at the end.

    Raises:
        RecipeError: a function that cannot be imported, or a model that cannot be loaded.
    """
    async with AsyncExitStack() as stack:
        opened: dict[str, Policy] = {}
        for role, place in recipe.roles.items():
            if place not in opened:
                opened[place] = await _open(role, place, recipe, tokenizer, stack)
        yield {role: opened[place] for role, place in recipe.roles.items()}


async def _open(role: str, place: str, recipe: Recipe, tokenizer: Any, stack: AsyncExitStack) -> Policy:
    kind, _, name = place.partition(":")
    if kind == "python":
        module, _, attribute = name.rpartition(".")
        try:
            make = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise RecipeError(f"roles.{role}: {place!r}: {error}; write python:package.module.function") from error
        return cast(Policy, make(recipe, tokenizer))
    if kind == "model":
        try:
            policy = EmbeddedPolicy(_frozen(name, recipe))
        except ValueError as error:
            raise RecipeError(f"roles.{role}: {place!r}: {error}") from error
        stack.push_async_callback(policy.close)
        return policy
    return await stack.enter_async_context(SGLangPolicy(place))


def _frozen(name: str, recipe: Recipe) -> Engine:
    folder = resolve(name)
    tokenizer = find_tokenizer(folder)
    return Engine(
        weights.load(folder, recipe.model.dtype, recipe.model.device).eval(),
        eos_token_ids=weights.eos_token_ids(folder),
        max_model_len=recipe.model.max_model_len,
        kv_tokens=recipe.engine.kv_tokens,
        block_size=recipe.engine.block_size,
        prefill_budget=recipe.engine.prefill_budget,
        decode=tokenizer and tokenizer.decode,
    )
