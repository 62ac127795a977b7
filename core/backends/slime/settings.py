"""Reads slime's arguments for the hooks: the recipe, which must agree with them, and a few options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from core.backends.slime.flags import ESTIMATORS, check_algorithm, check_fan_out
from core.config import Recipe, RecipeError
from core.rollout.method import MethodSpec

RECIPE_KEY = "agentic_recipe"


def method_name(args: Any) -> str:
    """Return the name of the method whose recipe came with slime's arguments.

    Raises:
        RecipeError: there is no recipe, or it names no method.
    """
    values = _recipe_values(args)
    if "method" not in values:
        raise RecipeError(
            f"{RECIPE_KEY} has no `method`, which names the folder of agentic/ whose rollouts slime runs: write the "
            "resolved recipe there (`--dry-run` prints it)"
        )
    return str(values["method"])


def read_recipe(spec: MethodSpec, args: Any) -> Recipe:
    """Read the recipe under `agentic_recipe` of slime's arguments, which must agree with them.

    Raises:
        RecipeError: it is missing, broken, or contradicts slime's own arguments.
    """
    try:
        recipe = spec.recipe.model_validate(_recipe_values(args))
    except ValidationError as error:
        raise RecipeError(f"{RECIPE_KEY} is not a recipe of {spec.name}: {error}") from error
    converted = has_path(args, "custom_convert_samples_to_train_data_path")
    if not converted and not has_path(args, "custom_reward_post_process_path"):
        raise RecipeError(
            "slime would make rows of its own: give --custom-convert-samples-to-train-data-path or "
            "--custom-reward-post-process-path this method's hook (core/backends/slime/hooks.py)"
        )
    check_algorithm(recipe)
    if not converted:
        check_fan_out(recipe, spec.regrade(recipe) is not None)
    check_arguments(recipe, args, converted)
    return recipe


def check_arguments(recipe: Recipe, args: Any, converted: bool) -> None:
    """Raise RecipeError for the first of slime's arguments with which rows or advantages would not be the recipe's.

    `converted`: slime gets container Samples. An argument that `args` lacks is well.
    """
    rollout = recipe.rollout
    required: dict[str, tuple[Any, str]] = {
        "n_samples_per_prompt": (rollout.group_size, "the recipe's rollout.group_size"),
        "rollout_batch_size": (rollout.tasks_per_step, "the recipe's rollout.tasks_per_step"),
        "rollout_temperature": (rollout.temperature, "the recipe's rollout.temperature"),
        "rollout_top_p": (1.0, "top-p replay has no place in our rows"),
        "advantage_estimator": (
            ESTIMATORS[recipe.algorithm.loss_mode],
            "the recipe's algorithm.loss_mode; advantages are made before slime sees the rows",
        ),
        "normalize_advantages": (False, "advantages are normalised already"),
        "calculate_per_token_loss": (
            recipe.algorithm.loss_agg == "token" and not converted,
            "convert gives loss_agg as rollout_mask_sums",
        ),
        "use_dynamic_batch_size": (True, "rollouts have different numbers of rows"),
        "apply_chat_template": (False, "the method writes its own prompts"),
        "mask_offpolicy_in_partial_rollout": (False, "rows have the masks of their turns; algorithm.tis corrects them"),
        "log_passrate": (False, "slime counts rows there, not rollouts"),
    }
    if not converted:
        required["partial_rollout"] = (False, "slime cannot keep a group some of whose rollouts are fanned out")
        is_vime = recipe.slime is not None and recipe.slime.framework == "vime"
        if is_vime and "fully_async" in str(getattr(args, "rollout_function_path", None)):
            raise RecipeError(
                "--rollout-function-path: vime's fully asynchronous rollout runs a group again when new weights abort "
                "one of its calls, and the job ends if the others are fanned out; set slime.rows=container"
            )
    for name, (value, reason) in required.items():
        if (given := getattr(args, name, value)) != value:
            raise RecipeError(f"--{name.replace('_', '-')} is {given}, must be {value}: {reason}")
    batch = rollout.tasks_per_step * rollout.group_size
    if batch % getattr(args, "global_batch_size", batch):
        raise RecipeError(f"--global-batch-size {args.global_batch_size} does not divide the batch of {batch} rollouts")


def has_path(args: Any, name: str) -> bool:
    """Tell whether slime was given a hook of this name."""
    return getattr(args, name, None) is not None


def reward_key(args: Any, evaluation: bool = False) -> str | None:
    """Return the key under which slime wants rewards; None for plain numbers."""
    training: str | None = getattr(args, "reward_key", None)
    return (getattr(args, "eval_reward_key", None) or training) if evaluation else training


def _recipe_values(args: Any) -> Mapping[str, Any]:
    values: Mapping[str, Any] | None = getattr(args, RECIPE_KEY, None)
    if values is None:
        raise RecipeError(
            f"slime's arguments have no {RECIPE_KEY!r}: give --custom-config-path a YAML file whose key {RECIPE_KEY} "
            "holds the resolved recipe (`--dry-run` prints it)"
        )
    return values
