"""Opens the roles of rollouts on slime: slime's routers for its own models, the recipe's addresses for the rest.

`policy` is slime's default router. A role that `slime.roles` maps to a served model is that model's router, from
`args.sglang_model_routers`. Any other role is opened by core/rollout/roles.py. A `model:` is refused: a rollout worker
of slime has no place for one. On vime the arguments are `vllm_...`, and the routers speak vLLM's protocol.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib.util import find_spec
from typing import Any

from core.backends.slime.framework import framework_of
from core.backends.slime.samples import ABORTED
from core.config import Recipe, RecipeError
from core.policy.base import Policy, Roles
from core.policy.servers import make_server_policy
from core.rollout.method import RolloutError
from core.rollout.roles import open_roles
from core.text.tokenizer import Tokenizer
from core.types import Completion, Sampling


@asynccontextmanager
async def open_policies(recipe: Recipe, args: Any, tokenizer: Tokenizer) -> AsyncIterator[dict[str, Policy]]:
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


class RolloutRoles(Roles):
    """Holds the roles of one rollout. All its calls carry slime's session, whatever the method says.

    slime's abort ends the rollout at its next call. `aborted` tells whether a call was aborted, even if the method went
    on without it.
    """

    def __init__(self, policies: Mapping[str, Policy], session: str, aborting: Callable[[], bool]):
        super().__init__({role: _AbortablePolicy(policy, self) for role, policy in policies.items()})
        self.session = session
        self.aborting = aborting
        self.aborted = False

    def abort(self, why: str) -> RolloutError:
        """Remember that the rollout was aborted; return the error to raise."""
        self.aborted = True
        return RolloutError(ABORTED, why)


class _AbortablePolicy:
    def __init__(self, policy: Policy, rollout: RolloutRoles):
        self._policy, self._rollout = policy, rollout

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        if self._rollout.aborting():
            raise self._rollout.abort("slime has all the rollouts that it needs")
        completion = await self._policy.generate(prompt_ids, sampling, self._rollout.session)
        if completion.finish_reason == "abort":
            raise self._rollout.abort("the engine aborted the request")
        return completion


def abort_flag(args: Any) -> Callable[[], bool]:
    """Return a function that tells whether slime is aborting rollouts now; without slime installed it never is."""
    framework = framework_of(args)
    if find_spec(framework.name) is None:
        return lambda: False
    state = framework.module(f"rollout.{framework.engine}_rollout").GenerateState(args)
    return lambda: bool(state.aborted)
