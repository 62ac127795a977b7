"""Reads the recipe that verl's configuration names, which must agree with the rest of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from core.algorithms.coefficients import TURN_ESTIMATORS
from core.backends.checks import refuse_embedded_only, refuse_first
from core.config import Recipe, RecipeError
from core.config.load import read_yaml
from core.rollout.method import method_spec

LOOP = "core.backends.verl.loop.MethodAgentLoop"
LOOPS = "actor_rollout_ref.rollout.agent.agent_loop_config_path"
RECIPE = "agentic_recipe"
"""Names the key, of ours, under which verl's configuration has the file of the resolved recipe."""
MODES = {f"tokentrue_{mode}": mode for mode in ("sync", "colocate_async", "separate_async")}
"""Maps our trainers' names in `trainer.v1.trainer_mode` to those of verl's trainers that they extend."""


def read_recipe(config: Any) -> Recipe:
    """Read the recipe that verl's configuration names, and with which it must agree.

    Raises:
        RecipeError: it is missing, broken, or contradicts the configuration.
    """
    path = find(config, RECIPE)
    if not path:
        raise RecipeError(f"verl's configuration has no {RECIPE}: give +{RECIPE}=FILE, which holds a resolved recipe")
    recipe = _load(path)
    check_settings(recipe, config)
    return recipe


@cache
def _load(path: str) -> Recipe:
    values = read_yaml(Path(path))
    if not isinstance(values, Mapping) or "method" not in values:
        raise RecipeError(f"{path}: has no `method`; write the resolved recipe there (`--dry-run` prints it)")
    recipe: Recipe = method_spec(str(values["method"])).load(path)
    return recipe


def check_settings(recipe: Recipe, config: Any) -> None:
    """Raise RecipeError for the first of verl's settings with which rows, advantages or weights would not be ours."""
    rollout, algorithm = recipe.rollout, recipe.algorithm
    own = "advantages are made over rollouts, before any estimator sees rows"
    required: dict[str, tuple[Any, str]] = {
        "trainer.use_v1": (True, "the older trainer takes one row for a rollout, and has a loss of its own"),
        "algorithm.adv_estimator": ("grpo", "every other estimator of verl takes a row for a rollout"),
        "algorithm.use_kl_in_reward": (False, own),
        "algorithm.filter_groups.enable": (False, "verl would compare the rewards of rows, failed ones among them"),
        "algorithm.rollout_correction.bypass_mode": (False, "our loss compares with the trainer's own log-probs"),
        "algorithm.rollout_correction.rollout_is": (None, "the recipe's algorithm.tis does that in our loss"),
        "algorithm.rollout_correction.rollout_rs": (None, "the recipe's algorithm.tis does that in our loss"),
        "actor_rollout_ref.actor.use_kl_loss": (algorithm.kl_loss_coef > 0, "the recipe's algorithm.kl_loss_coef"),
        "actor_rollout_ref.actor.ppo_epochs": (1, "the recipe's algorithm.num_steps_per_rollout counts the steps"),
        "actor_rollout_ref.actor.shuffle": (False, "the rows of a rollout belong into one step"),
        "actor_rollout_ref.rollout.n": (rollout.group_size, "the recipe's rollout.group_size"),
        "actor_rollout_ref.rollout.temperature": (rollout.temperature, "the recipe's rollout.temperature"),
        "actor_rollout_ref.rollout.top_p": (1.0, "rows are trained without top-p"),
        "actor_rollout_ref.rollout.calculate_log_probs": (True, "rows keep the log-probs of the engine"),
        "data.train_batch_size": (rollout.tasks_per_step, "the recipe's rollout.tasks_per_step"),
    }
    for key, (value, reason) in required.items():
        if (given := find(config, key, value)) != value:
            raise RecipeError(f"{key} is {given}, must be {value}: {reason}")
    refuse_embedded_only(recipe, "verl", within="algorithm.")
    mode = find(config, "trainer.v1.trainer_mode", next(iter(MODES)))
    unfit = {
        f"trainer.v1.trainer_mode is {mode}, whose mini-batches count rows: set it to tokentrue_{mode}, with "
        "core.backends.verl.trainer in the environment variable VERL_USE_EXTERNAL_MODULES": mode not in MODES,
        f"algorithm.adv_estimator={algorithm.adv_estimator} has no place on verl, whose batch does not keep the "
        "rewards of turns; use another one, or the embedded backend": algorithm.adv_estimator in TURN_ESTIMATORS,
        "algorithm.dynamic_sampling has no place on verl, whose filter takes the 0 of a failed rollout for a "
        "reward; set it to false": algorithm.dynamic_sampling,
    }
    refuse_first(unfit)


def find(config: Any, key: str, default: Any = None) -> Any:
    """Return the value of `key`, a path with dots, in verl's configuration, or in settings by their whole paths."""
    if key in config:
        return config[key]
    for part in key.split("."):
        if config is None or part not in config:
            return default
        config = config[part]
    return config
