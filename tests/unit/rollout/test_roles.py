"""A recipe's further roles: each form opens, and one that cannot names the role and the fix."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from pydantic import ValidationError

from core.config import Recipe, RecipeError
from core.http_client import HTTPClient
from core.policy.base import Policy
from core.policy.scripted import ScriptedPolicy
from core.rollout.roles import open_roles
from core.train.rollout_engine import open_frozen_model
from core.types import Sampling
from tests import kit


def recipe(roles: dict[str, str], kv_tokens: int = 1024) -> Recipe:
    model = {"path": "unused", "device": "cpu", "max_model_len": 512}  # above the 256 positions of the frozen model
    return kit.make_recipe(Recipe, model=model, inference={"kv_tokens": kv_tokens}, roles=roles)


def scripted(recipe: Recipe, tokenizer: Any) -> Policy:
    return ScriptedPolicy(lambda prompt, sampling: prompt)


async def test_roles_that_name_the_same_thing_share_it(qwen2: Path) -> None:
    roles = {"executor": f"model:{qwen2}", "verifier": f"model:{qwen2}", "judge": f"python:{__name__}.scripted"}
    async with open_roles(recipe(roles), None, open_frozen_model) as opened:
        assert opened.keys() == roles.keys()
        assert opened["executor"] is opened["verifier"]
        for role in ("executor", "judge"):
            assert (await opened[role].generate((1, 2), Sampling(max_new_tokens=2))).token_ids


@pytest.mark.parametrize(
    ("place", "kv_tokens", "named"),
    [
        ("python:no.such.module", 1024, "write package.module.function"),
        ("python:core.rollout.roles.nothing", 1024, "write package.module.function"),
        ("model:{qwen2}", 16, r"kv_tokens 16 is less than max_model_len \d+"),
        ("model:/no/such/folder", 1024, "/no/such/folder"),
    ],
)
async def test_a_role_that_cannot_be_opened_is_named(qwen2: Path, place: str, kv_tokens: int, named: str) -> None:
    roles = {"judge": place.format(qwen2=qwen2)}
    with pytest.raises(RecipeError, match=rf"roles\.judge: .*{named}"):
        async with open_roles(recipe(roles, kv_tokens), None, open_frozen_model):
            pass


async def test_a_server_has_the_time_that_the_rollout_has() -> None:
    """No call of a role had more than 600 seconds, whatever rollout.deadline_s or --deadline said."""
    async with open_roles(recipe({"judge": "http://there"}), None) as opened:
        assert cast("HTTPClient", opened["judge"])._timeout_s is None


async def test_a_server_that_wants_a_key_gets_that_of_its_role(tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    async def answer(request: web.Request) -> web.Response:
        seen[request.headers["X-SMG-Routing-Key"]] = request.headers.get("Authorization", "")
        return kit.make_sglang_reply([7])

    app = web.Application()
    app.router.add_post("/generate", answer)
    (tmp_path / "key").write_text("open sesame\n")
    with kit.serve_app(app) as url:
        asked = recipe({"judge": url, "verifier": url}).model_copy(
            update={"role_key_files": {"judge": str(tmp_path / "key")}}
        )
        async with open_roles(asked, None) as opened:
            for role, policy in opened.items():
                await policy.generate((1,), Sampling(max_new_tokens=1), session=role)
    assert seen == {"judge": "Bearer open sesame", "verifier": ""}


def test_a_key_for_what_is_no_server_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"role_key_files\.judge: roles\.judge is no URL"):
        Recipe.model_validate({**recipe({"judge": "model:/m"}).dump(), "role_key_files": {"judge": "key"}})


async def test_a_model_is_refused_by_name_where_there_is_no_engine_for_it() -> None:
    with pytest.raises(RecipeError, match=r"roles\.judge is 'model:/m'.* set roles\.judge=http"):
        async with open_roles(recipe({"judge": "model:/m"}), None):
            pass
