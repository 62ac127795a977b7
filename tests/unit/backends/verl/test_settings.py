from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from core.backends.verl import settings
from core.backends.verl.settings import RECIPE, read_recipe
from core.config import RecipeError
from core.rollout.method import method_spec

PLAIN_SAMPLING = {"top_p": 1, "calculate_log_probs": True}


def write_recipe(folder: Path, *overrides: str) -> dict[str, str]:
    """What verl's configuration says of a recipe that was written."""
    path = folder / "agentic_recipe.yaml"
    path.write_text(yaml.safe_dump(method_spec("memagent").load("tiny", overrides).dump(), sort_keys=False))
    settings._load.cache_clear()
    return {RECIPE: str(path)}


def make_config(recipe: Any, **changes: Any) -> dict[str, Any]:
    """verl's configuration, as far as it must agree with the recipe; `changes` are by path, with __ for a dot."""
    rollout = recipe.rollout
    config: dict[str, Any] = {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "actor_rollout_ref": {
            "actor": {"use_kl_loss": recipe.algorithm.kl_loss_coef > 0, "ppo_epochs": 1, "shuffle": False},
            "rollout": {"n": rollout.group_size, "temperature": rollout.temperature} | PLAIN_SAMPLING,
        },
        "data": {"train_batch_size": rollout.tasks_per_step},
        "trainer": {"use_v1": True, "v1": {"trainer_mode": "tokentrue_sync"}},
    }
    for path, value in changes.items():
        *parents, name = path.split("__")
        section = config
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = value
    return config


def test_a_recipe_that_agrees(tmp_path: Path) -> None:
    recipe = method_spec("memagent").load("tiny")
    assert read_recipe(make_config(recipe) | write_recipe(tmp_path)).dump() == recipe.dump()


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("algorithm__adv_estimator", "rloo", "adv_estimator is rloo, must be grpo: .* takes a row for a rollout"),
        ("algorithm__use_kl_in_reward", True, "use_kl_in_reward is True, must be False"),
        ("algorithm__filter_groups__enable", True, "filter_groups.enable is True"),
        ("algorithm__rollout_correction__bypass_mode", True, "bypass_mode is True"),
        ("algorithm__rollout_correction__rollout_is", "token", "rollout_is is token, must be None: .*algorithm.tis"),
        ("actor_rollout_ref__actor__shuffle", True, "one step"),
        ("actor_rollout_ref__actor__ppo_epochs", 2, "num_steps_per_rollout"),
        ("actor_rollout_ref__rollout__n", 3, "rollout.group_size"),
        ("actor_rollout_ref__rollout__temperature", 0.1, "rollout.temperature"),
        ("actor_rollout_ref__rollout__top_p", 0.9, "without top-p"),
        ("actor_rollout_ref__rollout__calculate_log_probs", False, "calculate_log_probs is False"),
        ("data__train_batch_size", 1, "tasks_per_step"),
        ("trainer__use_v1", False, "use_v1 is False, must be True: the older trainer takes one row"),
        ("trainer__v1__trainer_mode", "sync", "set it to tokentrue_sync, .*VERL_USE_EXTERNAL_MODULES"),
    ],
)
def test_a_setting_that_contradicts_is_named(tmp_path: Path, change: str, value: Any, message: str) -> None:
    recipe = method_spec("memagent").load("tiny")
    with pytest.raises(RecipeError, match=message):
        read_recipe(make_config(recipe, **{change: value}) | write_recipe(tmp_path))


@pytest.mark.parametrize("name", ["turn_grpo", "gigpo"])
def test_advantages_by_turn_are_refused_by_name(tmp_path: Path, name: str) -> None:
    recipe = method_spec("memagent").load("tiny")
    with pytest.raises(RecipeError, match=f"algorithm.adv_estimator={name} has no place on verl, .*embedded backend"):
        read_recipe(make_config(recipe) | write_recipe(tmp_path, f"algorithm.adv_estimator={name}"))


def test_what_the_loss_of_verl_lacks_is_refused(tmp_path: Path) -> None:
    recipe = method_spec("memagent").load("tiny")
    own = write_recipe(tmp_path, "algorithm.vf_coef=0.1", "algorithm.adv_estimator=gae")
    with pytest.raises(RecipeError, match=r"algorithm\.vf_coef is for the embedded backend alone; on verl set"):
        read_recipe(make_config(recipe) | own)


def test_a_broken_recipe_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "agentic_recipe.yaml"
    path.write_text("run: {}\n")
    settings._load.cache_clear()
    with pytest.raises(RecipeError, match=f"{path}: has no `method`"):
        read_recipe({RECIPE: str(path)})
    path.write_text("method: memagent\nalgorithm: {name: grpo, clipp: 1}\n")
    with pytest.raises(RecipeError, match=r"algorithm\.clipp"):
        read_recipe({RECIPE: str(path)})


def test_a_configuration_that_names_no_recipe_is_told_how() -> None:
    with pytest.raises(RecipeError, match=r"has no agentic_recipe: give \+agentic_recipe=FILE"):
        read_recipe({"trainer": {}})
