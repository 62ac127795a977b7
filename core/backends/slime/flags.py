"""Renders a recipe as the command-line flags of slime or vime, in the groups of slime's own scripts (scripts/run-*.sh).

Flags that equal slime's default and are not in those scripts are left out. The architecture (MODEL_ARGS) is not here:
the job's script sources slime's own file for it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from core.algorithms.coefficients import TURN_ESTIMATORS
from core.backends.checks import refuse_embedded_only, refuse_first, refuse_on_cluster
from core.backends.job import JobPaths
from core.backends.slime.framework import FRAMEWORKS, framework_flags
from core.config import Recipe, RecipeError
from core.config.clusters import SlimeSection
from core.rollout.method import method_spec

Flags = Mapping[str, Any]
"""Maps a flag to its value: True for a flag without one, None or False to leave it out, a tuple for several values."""

SCRIPT_FLAGS: Flags = {
    "--tensor-model-parallel-size": 1,
    "--pipeline-model-parallel-size": 1,
    "--expert-model-parallel-size": 1,
    "--expert-tensor-parallel-size": 1,
    "--attention-dropout": 0.0,
    "--hidden-dropout": 0.0,
    "--accumulate-allreduce-grads-in-fp32": True,
    "--attention-softmax-in-fp32": True,
    "--attention-backend": "flash",
}
"""Holds what slime's scripts always give; Megatron's defaults would drop out a tenth and sum gradients in bfloat16."""


class Paths(JobPaths):
    """Names the files of a job of slime."""

    def __init__(self, out: Path):
        super().__init__(out, "jsonl")
        self.servers = self.out / "servers.yaml"
        self.checkpoints = self.out / "torch_dist"


CONTEXT = "--sglang-context-length"

ESTIMATORS = {"vanilla": "grpo", "gspo": "gspo", "cispo": "cispo"}
"""Maps a `loss_mode` to the --advantage-estimator under which slime computes that loss of given advantages."""


def cluster(recipe: Recipe) -> SlimeSection:
    """Return the recipe's `slime` section, checked against the rest of the recipe.

    Raises:
        RecipeError: there is none, or the recipe needs what slime cannot do.
    """
    slime = recipe.slime
    if slime is None:
        raise RecipeError(
            f"preset {recipe.preset!r} has no section `slime`, which says what the cluster is; "
            "use a preset that has one, such as --preset seed or paper, or add it (core/config/clusters.py)"
        )
    refuse_on_cluster(recipe, slime.framework, FRAMEWORKS[slime.framework].engine, served=slime.roles)
    rollouts = recipe.rollout.tasks_per_step * recipe.rollout.group_size
    if batch_size(recipe) * recipe.algorithm.num_steps_per_rollout != rollouts:
        raise RecipeError(
            "slime splits a batch evenly; let algorithm.num_steps_per_rollout divide tasks_per_step x group_size"
        )
    check_algorithm(recipe)
    if not slime.colocate and FRAMEWORKS[slime.framework].apart_script != "train.py" and recipe.algorithm.tis is None:
        raise RecipeError(
            "slime.colocate=false samples a step while the one before it is trained, so with older weights; set "
            "algorithm.tis, such as [0,2]"
        )
    if slime.rows == "fan_out":
        check_fan_out(recipe, regrade=method_spec(recipe.method).regrade(recipe) is not None)
    if "mlflow" in recipe.run.trackers:
        raise RecipeError(f"run.trackers: {slime.framework} has no mlflow; use wandb or tensorboard")
    return slime


def check_algorithm(recipe: Recipe) -> None:
    """Raise RecipeError for an algorithm that slime's rows or slime's loss cannot have. Those of vime are the same."""
    algorithm, name = recipe.algorithm, recipe.slime.framework if recipe.slime else "slime"
    refuse_embedded_only(recipe, name, within="algorithm.")
    mode, estimator = algorithm.loss_mode, algorithm.adv_estimator
    unfit = {
        f"algorithm.loss_mode={mode} is no loss of {name}; use {', '.join(ESTIMATORS)}": mode not in ESTIMATORS,
        f"algorithm.adv_estimator={estimator} gives the turns of a row different advantages, and a row of {name} has "
        "one; set algorithm.rows=turn": estimator in TURN_ESTIMATORS and algorithm.rows != "turn",
    }
    refuse_first(unfit)


def check_fan_out(recipe: Recipe, regrade: bool) -> None:
    """Raise RecipeError for a recipe that needs container Samples. `regrade`: its rewards compare a group."""
    algorithm, other = recipe.algorithm, "or set slime.rows=container (--custom-convert-samples-to-train-data-path)"
    unfit = {
        f"fanned-out rollouts lack a reward that compares a group; take another reward, {other}": regrade,
        "algorithm.overlong_buffer_len and overlong_filter need whole rollouts, which fanned-out ones are not; set "
        f"them to null and false, {other}": algorithm.overlong_buffer_len or algorithm.overlong_filter,
        f"algorithm.adv_estimator={algorithm.adv_estimator} needs the whole batch or its turns, which fanned-out "
        f"rollouts do not have; use grpo or rloo, {other}": algorithm.adv_estimator not in ("grpo", "rloo"),
        "algorithm.update_group_size and min_group_std leave rollouts of a group out, and fanned-out ones know no "
        f"group; set them to null and 0, {other}": algorithm.update_group_size or algorithm.min_group_std,
        f"algorithm.loss_agg is {algorithm.loss_agg}, which slime does not have for fanned-out rollouts; use rollout "
        f"or token, {other}": algorithm.loss_agg not in ("rollout", "token"),
    }
    refuse_first(unfit)


def batch_size(recipe: Recipe) -> int:
    """Count the rollouts of one optimizer step."""
    return recipe.rollout.tasks_per_step * recipe.rollout.group_size // recipe.algorithm.num_steps_per_rollout


def groups(recipe: Recipe, paths: Paths) -> dict[str, list[str]]:
    """Render all flags: name of the group -> its arguments.

    Raises:
        RecipeError: as `cluster` and `framework_flags`, or `slime.flags` repeats a flag.
    """
    slime = cluster(recipe)
    own = framework_flags(slime)
    rendered = {
        "ACTOR": _actor(slime),
        "CKPT": _checkpoints(recipe, slime, paths),
        "ROLLOUT": _rollout(recipe, slime, paths),
        "EVAL": _evaluation(recipe, slime, paths),
        "PERF": _perf(recipe, slime),
        "GRPO": _grpo(recipe, slime),
        "OPTIMIZER": _optimizer(recipe, slime),
        "WANDB": _trackers(recipe, paths),
        FRAMEWORKS[slime.framework].engine.upper(): _servers(recipe, slime, paths, own),
        "CUSTOM": _custom(recipe, slime, paths),
    }
    for name, flags in rendered.items():
        if repeated := sorted(own.keys() & flags.keys()):
            raise RecipeError(
                f"slime.flags.{repeated[0]}: already in group {name}, rendered from the recipe; set it there"
            )
    return {name: arguments(flags) for name, flags in {**rendered, "MISC": {**SCRIPT_FLAGS, **own}}.items()}


def arguments(flags: Flags) -> list[str]:
    """Turn {"--lr": 1e-6, "--colocate": True, "--save": None} into ["--lr", "1e-6", "--colocate"]."""
    words: list[str] = []
    for flag, value in flags.items():
        if value is None or value is False:
            continue
        values = () if value is True else value if isinstance(value, tuple) else (value,)
        words += [flag, *(_text(value) for value in values)]
    return words


def _actor(slime: SlimeSection) -> Flags:
    return {
        "--actor-num-nodes": slime.nodes,
        "--actor-num-gpus-per-node": slime.gpus_per_node,
        "--num-gpus-per-node": slime.gpus_per_node if slime.gpus_per_node != 8 else None,
        "--colocate": slime.colocate,
        "--rollout-num-gpus": slime.rollout_gpus,
    }


def _checkpoints(recipe: Recipe, slime: SlimeSection, paths: Paths) -> Flags:
    save = slime.checkpoint.save or str(paths.checkpoints)
    return {
        "--hf-checkpoint": slime.checkpoint.hf,
        "--ref-load": slime.checkpoint.ref_load,
        "--load": save,
        "--save": save,
        "--save-interval": recipe.run.save_every,
    }


def _rollout(recipe: Recipe, slime: SlimeSection, paths: Paths) -> Flags:
    rollout = recipe.rollout
    return {
        "--prompt-data": str(paths.train),
        "--input-key": "prompt",
        "--label-key": "label",
        "--rollout-shuffle": recipe.data.shuffle,
        "--num-epoch": slime.num_epoch,
        "--num-rollout": None if slime.num_epoch else recipe.run.steps,
        "--rollout-batch-size": rollout.tasks_per_step,
        "--n-samples-per-prompt": rollout.group_size,
        "--rollout-temperature": rollout.temperature,
        "--rollout-top-k": rollout.top_k if rollout.top_k != -1 else None,
        "--rollout-seed": recipe.run.seeds[0],
        "--global-batch-size": batch_size(recipe),
        "--balance-data": True,
    }


def _evaluation(recipe: Recipe, slime: SlimeSection, paths: Paths) -> Flags:
    if not recipe.run.eval_every:
        return {}
    return {
        "--eval-interval": recipe.run.eval_every,
        "--eval-prompt-data": (slime.eval_name, str(paths.eval)),
        "--n-samples-per-eval-prompt": 1,
        "--eval-temperature": recipe.run.eval_temperature,
        "--eval-top-p": recipe.run.eval_top_p,
        **({"--eval-top-k": -1} if recipe.rollout.top_k != -1 else {}),  # or slime takes that of the rollouts
    }


def _perf(recipe: Recipe, slime: SlimeSection) -> Flags:
    full = recipe.optimizer.gradient_checkpointing
    return {
        "--context-parallel-size": slime.context_parallel,
        "--recompute-granularity": "full" if full else None,
        "--recompute-method": "uniform" if full else None,
        "--recompute-num-layers": 1 if full else None,
        "--use-dynamic-batch-size": True,
        # The GPUs of one context-parallel group hold one pack of tokens together.
        "--max-tokens-per-gpu": recipe.optimizer.max_tokens_per_pack // slime.context_parallel,
    }


def _grpo(recipe: Recipe, slime: SlimeSection) -> Flags:
    algorithm = recipe.algorithm
    kl, (tis_low, tis_high) = algorithm.kl_loss_coef > 0, algorithm.tis or (None, None)
    icepop = f"{slime.framework}.backends.megatron_utils.loss.icepop_function"
    return {
        "--advantage-estimator": ESTIMATORS[algorithm.loss_mode],
        "--disable-grpo-std-normalization": not algorithm.std_normalization,
        "--use-kl-loss": kl,
        "--kl-loss-coef": algorithm.kl_loss_coef if kl else None,
        "--kl-loss-type": algorithm.kl_loss_type if kl else None,
        "--entropy-coef": algorithm.entropy_coef,
        "--eps-clip": algorithm.clip_ratio_low,
        "--eps-clip-high": algorithm.clip_ratio_high,
        "--eps-clip-c": algorithm.clip_ratio_c,
        "--use-tis": algorithm.tis is not None,
        "--tis-clip-low": tis_low,
        "--tis-clip": tis_high,
        "--custom-tis-function-path": icepop if algorithm.tis and algorithm.tis_mode == "mask" else None,
    }


def _optimizer(recipe: Recipe, slime: SlimeSection) -> Flags:
    optimizer, steps = recipe.optimizer, recipe.run.steps * recipe.algorithm.num_steps_per_rollout
    # With `num_epoch` slime alone knows when the run ends, and without the flag its rate falls until then.
    to_the_end = slime.num_epoch is not None and optimizer.lr_decay_steps == steps
    return {
        "--optimizer": "adam",
        "--lr": optimizer.lr,
        "--lr-decay-style": optimizer.lr_scheduler_type,
        "--lr-decay-iters": None if to_the_end else optimizer.lr_decay_steps,
        "--lr-warmup-iters": optimizer.lr_warmup_steps or None,
        "--weight-decay": optimizer.weight_decay,
        "--adam-beta1": optimizer.beta1,
        "--adam-beta2": optimizer.beta2,
        "--clip-grad": optimizer.clip_grad if optimizer.clip_grad != 1 else None,
        "--seed": recipe.run.seeds[0],
        # Megatron refuses the first flag without the last one.
        "--optimizer-cpu-offload": optimizer.cpu_offload,
        "--overlap-cpu-optimizer-d2h-h2d": optimizer.cpu_offload,
        "--use-precision-aware-optimizer": optimizer.cpu_offload,
    }


def _trackers(recipe: Recipe, paths: Paths) -> Flags:
    # The key of W&B is never written out: log in on the head node, or set WANDB_API_KEY where `ray start` is run.
    wandb, tensorboard = "wandb" in recipe.run.trackers, "tensorboard" in recipe.run.trackers
    return {
        "--use-wandb": wandb,
        "--wandb-mode": recipe.run.tracker_mode if wandb else None,
        "--wandb-project": recipe.method if wandb else None,
        "--wandb-group": paths.out.name if wandb else None,
        "--wandb-dir": str(paths.out) if wandb else None,
        "--use-tensorboard": tensorboard,
        "--tb-project-name": recipe.method if tensorboard else None,
        "--tb-experiment-name": paths.out.name if tensorboard else None,
    }


def _servers(recipe: Recipe, slime: SlimeSection, paths: Paths, own: Flags) -> Flags:
    framework, serving = FRAMEWORKS[slime.framework], slime.sglang
    # slime multiplies by all engines of the policy's size that its GPUs would make, those of further models included.
    engines = max(1, slime.serving_gpus // serving.gpus_per_engine)
    concurrency = -(-recipe.rollout.concurrency // engines)  # rollouts in flight on each engine, rounded up
    context = framework.renamed.get(CONTEXT, CONTEXT)
    is_ours = context not in own and not serving.models  # further models would be bound by it, too
    return {
        "--rollout-num-gpus-per-engine": serving.gpus_per_engine,
        **({context: recipe.model.max_model_len} if is_ours else {}),
        framework.flag("server-concurrency"): concurrency if concurrency != 512 else None,
        framework.flag("config"): str(paths.servers) if serving.models else None,
    }


def _custom(recipe: Recipe, slime: SlimeSection, paths: Paths) -> Flags:
    module, fan_out = "core.backends.slime.hooks", slime.rows == "fan_out"
    return {
        "--custom-generate-function-path": f"{module}.generate",
        "--custom-rm-path": f"{module}.reward_func",
        "--dynamic-sampling-filter-path": f"{module}.dynamic_filter" if recipe.algorithm.dynamic_sampling else None,
        "--custom-rollout-log-function-path": f"{module}.rollout_log",
        "--custom-eval-rollout-log-function-path": f"{module}.eval_log",
        "--custom-convert-samples-to-train-data-path": None if fan_out else f"{module}.convert",
        "--custom-reward-post-process-path": f"{module}.post_process_rewards" if fan_out else None,
        "--calculate-per-token-loss": fan_out and recipe.algorithm.loss_agg == "token",
        "--custom-config-path": str(paths.recipe),
    }


def _text(value: Any) -> str:
    """Write a value as a person would: 1e-6 and not Python's 1e-06."""
    if isinstance(value, bool):
        return json.dumps(value)
    return str(value).replace("e-0", "e-") if isinstance(value, float) else str(value)
