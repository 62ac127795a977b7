"""Opens the roles of rollouts on slime: slime's routers for its own models, the recipe's addresses for the rest.

`policy` is slime's default router. A role that `slime.roles` maps to a served model is that model's router, from
`args.sglang_model_routers`. Any other role is opened by core/rollout/roles.py. A `model:` is refused: a rollout worker
of slime has no place for one. On vime the arguments are `vllm_...`, and the routers speak vLLM's protocol.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import Any

from core.backends.slime.framework import framework_of
from core.config import Recipe, RecipeError
from core.policy.base import Policy
from core.policy.servers import make_server_policy
from core.rollout.roles import open_roles
from core.text.tokenizer import Tokenizer


@asynccontextmanager
async def open_policies(args: Any, recipe: Recipe, tokenizer: Tokenizer) -> AsyncIterator[dict[str, Policy]]:
    """Open all roles and close them at the end; yield role name -> Policy. No call outlives a rollout's deadline.

    Raises:
        RecipeError: slime serves no model of that name, or core.rollout.roles.open_roles raises it.
    """
    urls = router_urls(recipe, args)
    elsewhere = {role: place for role, place in recipe.roles.items() if role not in urls}
    async with AsyncExitStack() as stack:
        opened = {
            url: await stack.enter_async_context(make_server_policy(url, timeout_s=recipe.rollout.deadline_s))
            for url in set(urls.values())
        }
        others = await stack.enter_async_context(open_roles(recipe.model_copy(update={"roles": elsewhere}), tokenizer))
        yield {**others, **{role: opened[url] for role, url in urls.items()}}


def router_urls(recipe: Recipe, args: Any) -> dict[str, str]:
    """Return role -> URL of slime's router for it, as `make_server_policy` takes it."""
    framework = framework_of(args)
    host, port = (getattr(args, f"{framework.engine}_router_{part}") for part in ("ip", "port"))
    routers = getattr(args, f"{framework.engine}_model_routers", None) or {}
    urls = {"policy": framework.router(host, port)}
    for role, model in (recipe.slime.roles if recipe.slime else {}).items():
        if model not in routers:
            known = ", ".join(routers) or "none"
            raise RecipeError(
                f"slime.roles.{role}: {framework.name} serves no model {model!r} (known: {known}); see "
                + framework.flag("config")
            )
        urls[role] = framework.router(*routers[model])
    return urls


def abort_flag(args: Any) -> Callable[[], bool]:
    """Return a function that tells whether slime is aborting rollouts now; without slime installed it never is."""
    framework = framework_of(args)
    if find_spec(framework.name) is None:
        return lambda: False
    state = framework.module(f"rollout.{framework.engine}_rollout").GenerateState(args)
    return lambda: bool(state.aborted)
