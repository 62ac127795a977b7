from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from core.backends.verl import settings
from core.backends.verl.settings import RECIPE, read_recipe
from core.config import RecipeError
from core.rollout.method import method_spec


def write_recipe(folder: Path, *overrides: str) -> dict[str, str]:
    """What verl's configuration says of a recipe that was written."""
    path = folder / "agentic_recipe.yaml"
    path.write_text(yaml.safe_dump(method_spec("memagent").load("tiny", overrides).dump(), sort_keys=False))
    settings._load.cache_clear()
    return {RECIPE: str(path)}


def test_a_recipe_that_agrees(tmp_path: Path) -> None:
    recipe = method_spec("memagent").load("tiny")
    rollout = {"n": recipe.rollout.group_size, "temperature": recipe.rollout.temperature, "top_p": 1}
    config = {
        "algorithm": {"adv_estimator": "grpo", "use_kl_in_reward": False},
        "actor_rollout_ref": {"actor": {"ppo_epochs": 1, "shuffle": False}, "rollout": rollout},
        "data": {"train_batch_size": recipe.rollout.tasks_per_step},
        "trainer": {"use_v1": True, "v1": {"trainer_mode": "tokentrue_sync"}},
    }
    assert read_recipe(config | write_recipe(tmp_path)).dump() == recipe.dump()
    with pytest.raises(RecipeError, match=r"trainer\.use_v1 is False, must be True: the older trainer takes one row"):
        read_recipe(config | {"trainer": {"use_v1": False}} | write_recipe(tmp_path))


@pytest.mark.parametrize(
    ("change", "value", "message"),
    [
        ("algorithm.adv_estimator", "rloo", "adv_estimator is rloo, must be grpo: .* takes a row for a rollout"),
        ("algorithm.use_kl_in_reward", True, "use_kl_in_reward is True, must be False"),
        ("algorithm.filter_groups.enable", True, "filter_groups.enable is True"),
        ("algorithm.rollout_correction.bypass_mode", True, "bypass_mode is True"),
        ("algorithm.rollout_correction.rollout_is", "token", "rollout_is is token, must be None: .*algorithm.tis"),
        ("actor_rollout_ref.actor.shuffle", True, "one step"),
        ("actor_rollout_ref.actor.ppo_epochs", 2, "num_steps_per_rollout"),
        ("actor_rollout_ref.rollout.n", 3, "rollout.group_size"),
        ("actor_rollout_ref.rollout.temperature", 0.1, "rollout.temperature"),
        ("actor_rollout_ref.rollout.top_p", 0.9, "without top-p"),
        ("actor_rollout_ref.rollout.calculate_log_probs", False, "calculate_log_probs is False"),
        ("data.train_batch_size", 1, "tasks_per_step"),
        ("trainer.v1.trainer_mode", "sync", "set it to tokentrue_sync, .*VERL_USE_EXTERNAL_MODULES"),
    ],
)
def test_a_setting_that_contradicts_is_named(tmp_path: Path, change: str, value: Any, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        read_recipe({change: value} | write_recipe(tmp_path))


@pytest.mark.parametrize("name", ["turn_grpo", "gigpo"])
def test_advantages_by_turn_are_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(RecipeError, match=f"algorithm.adv_estimator={name} has no place on verl, .*embedded backend"):
        read_recipe(write_recipe(tmp_path, f"algorithm.adv_estimator={name}"))


def test_what_the_loss_of_verl_lacks_is_refused(tmp_path: Path) -> None:
    own = write_recipe(tmp_path, "algorithm.vf_coef=0.1", "algorithm.adv_estimator=gae")
    with pytest.raises(RecipeError, match=r"algorithm\.vf_coef is for the embedded backend alone; on verl set"):
        read_recipe(own)


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
