"""Opens a recipe's further roles: a server by its URL, a frozen model in this process, a policy made by a function.

`roles.NAME` is a server's URL (core/policy/servers.py), `model:FOLDER_OR_HUB_ID`, `python:package.module.function`, or
`trained`: another policy in training, of which a checkpoint has a folder of the role's name. The function is called
with (recipe, tokenizer). Roles with the same value share one policy. `role_key_files.NAME` holds a server's API key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path

from core.config import Recipe, RecipeError, import_function
from core.policy.base import Policy
from core.policy.servers import make_server_policy
from core.text.tokenizer import Tokenizer

OpenModel = Callable[[str, Recipe], AbstractAsyncContextManager[Policy]]
"""(folder or hub id, recipe) -> the frozen model as a policy, which is closed at the end."""


@asynccontextmanager
async def open_roles(
    recipe: Recipe, tokenizer: Tokenizer, open_model: OpenModel | None = None
) -> AsyncIterator[dict[str, Policy]]:
    """Open every role that is not trained and close them at the end; yield role name -> Policy.

    `open_model` opens the roles that are a `model:`. An engine that cannot hold a second model gives none.

    Raises:
        RecipeError: a function cannot be imported, or a model cannot be loaded or has no place here.
    """
    async with AsyncExitStack() as stack:
        policies: dict[tuple[str, str | None], Policy] = {}
        where = {role: (place, recipe.role_key_files.get(role)) for role, place in recipe.roles.items()}
        for role, (place, file) in where.items():
            if (place, file) in policies or role in recipe.trained_roles:
                continue
            kind, _, name = place.partition(":")
            if kind == "python":
                policies[place, file] = made = import_function(f"roles.{role}", name)(recipe, tokenizer)
                if not callable(getattr(made, "generate", None)):
                    raise RecipeError(f"roles.{role}: {name} gave {made!r}; let it return a core.policy.base.Policy")
            elif kind != "model":
                policies[place, file] = await stack.enter_async_context(make_server_policy(place, api_key_file=file))
            elif open_model is None:
                raise RecipeError(
                    f"roles.{role} is {place!r}, a model in the trainer's own process, which this engine has no room "
                    f"for; serve it and set roles.{role}=http://HOST:PORT"
                )
            else:
                try:
                    policies[place, file] = await stack.enter_async_context(open_model(name, recipe))
                except ValueError as error:
                    raise RecipeError(f"roles.{role}: {place!r}: {error}") from error
        yield {role: policies[found] for role, found in where.items() if found in policies}


@asynccontextmanager
async def open_trained_roles(recipe: Recipe, folder: Path, open_model: OpenModel) -> AsyncIterator[dict[str, Policy]]:
    """Open the roles that were trained beside the policy in the checkpoint `folder`; close them at the end.

    In the folder of an untrained model they are that model.
    """
    async with AsyncExitStack() as stack:
        places = {role: folder / role if (folder / role).is_dir() else folder for role in recipe.trained_roles}
        models = {place: open_model(str(place), recipe) for place in dict.fromkeys(places.values())}
        opened = {place: await stack.enter_async_context(model) for place, model in models.items()}
        yield {role: opened[place] for role, place in places.items()}
