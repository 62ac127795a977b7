"""Where a method is found, what its SPEC loads, how its further roles open, and what is refused."""

from __future__ import annotations

import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import pytest
from aiohttp import web
from pydantic import ValidationError

from core.config import Recipe, RecipeError
from core.http_client import HTTPClient
from core.policy.base import Policy
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import AGENTIC, find_package, method_spec
from core.rollout.roles import open_roles
from core.train.rollout_engine import open_frozen_model
from core.types import Sampling
from core.worlds import find_world
from scripts import new
from tests import kit


def test_a_method_that_is_not_there_is_told_with_those_that_are() -> None:
    told = r"no method 'magic'.*coding, compaction, memagent, retool, rlm, search_r1, skeleton, toolorchestra"
    with pytest.raises(RecipeError, match=told):
        method_spec("magic")


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A folder outside of this repository with a method; its name is new for each test, as Python keeps modules."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"own_{request.node.name.partition('[')[0]}"
    assert new.main([str(tmp_path / name)]) == 0
    return tmp_path / name


def test_a_folder_of_ones_own_is_found_by_path_and_then_by_name(own: Path) -> None:
    with pytest.raises(RecipeError, match="no method"):
        method_spec(own.name)
    spec = method_spec(str(own))
    assert spec.name == spec.load("tiny").method == own.name
    assert method_spec(own.name) is spec
    world = find_world(own.name)
    assert world is not None
    assert world.baselines["aimless"].__module__ == f"{own.name}.world"
    with ProcessPoolExecutor(1, get_context("spawn")) as workers:
        assert workers.submit(spec.load, "tiny").result() == spec.load("tiny")


def test_a_path_into_agentic_names_the_method_there() -> None:
    assert find_package(str(AGENTIC / "memagent") + "/") == "agentic.memagent"


def test_a_folder_is_found_by_its_name_from_where_it_lies(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own.parent)
    assert find_package(own.name) == own.name


@pytest.mark.parametrize(
    ("name", "says"), [("json", "json/__init__.py has it"), ("my-method", "by the name 'my-method'")]
)
def test_a_folder_whose_name_cannot_be_imported_is_told(own: Path, name: str, says: str) -> None:
    with pytest.raises(RecipeError, match=f"{says}. Rename the folder"):
        method_spec(str(own.rename(own.with_name(name))))


def test_a_folder_that_was_renamed_is_told(own: Path) -> None:
    with pytest.raises(RecipeError, match=f"SPEC has the name '{own.name}'; write that of the folder"):
        method_spec(str(own.rename(own.with_name(f"{own.name}_2"))))


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
        ("python:core.types.derive_seed", 1024, r"derive_seed gave \d+; let it return a core.policy.base.Policy"),
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
        keys = {"role_key_files": {"judge": str(tmp_path / "key")}}
        asked = recipe({"judge": url, "verifier": url}).model_copy(update=keys)
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
