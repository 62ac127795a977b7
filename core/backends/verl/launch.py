"""Start a method on verl from a preset.

    tokentrue train METHOD --backend verl --preset NAME --out DIR [--set key.path=value ...] [--dry-run] [--start-ray]

The dry run prints the script that would run and needs neither verl nor a GPU. A recipe becomes verl's settings, which
hydra takes as `key.path=value`; core/backends/verl/settings.py says what must agree, here as in the job.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Iterator
from functools import partial
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import yaml

from core.backends.checks import refuse_first, refuse_on_cluster
from core.backends.job import Job, JobPaths, join_python_path, launch
from core.backends.verl.data import AGENT
from core.backends.verl.settings import LOOP, LOOPS, RECIPE, check_settings
from core.config import Recipe, RecipeError
from core.config.clusters import VerlSection
from core.hub import is_hub_id, read_json

VERSION = "0.9.1"
"""Names the release of verl whose trainers ours extend. Its methods that they replace are no public interface."""
ACTOR, ROLLOUT, MODEL = (f"actor_rollout_ref.{part}" for part in ("actor", "rollout", "model"))
POSITIONS = f"{MODEL}.override_config.max_position_embeddings"


def main(arguments: list[str] | None = None) -> int:
    return launch(arguments, ["verl"], make_job)


def make_job(recipe: Recipe, backend: str, out: Path) -> Job:
    """Make the job of a recipe. Raises RecipeError as `render`."""
    recipe, paths = recipe.model_copy(update={"slime": None}), VerlPaths(out)
    verl, model = cluster(recipe), recipe.model.path
    files = {paths.recipe: recipe.dump(), paths.loops: [{"name": AGENT, "_target_": LOOP}]}
    words = [f"  {shlex.quote(as_hydra(key, value))}" for key, value in render(recipe, paths).items()]
    return Job(
        recipe=recipe,
        cluster=verl,
        paths=paths,
        framework="verl",
        nodes=verl.nodes,
        files={path: yaml.safe_dump(value, sort_keys=False, allow_unicode=True) for path, value in files.items()},
        settings=["SETTINGS=(", *words, ")"],
        command=["-- python3 -m verl.trainer.main_ppo", '"${SETTINGS[@]}"'],
        environment={
            "PYTHONPATH": join_python_path(recipe.method),
            "PYTHONUNBUFFERED": "1",
            "VERL_USE_EXTERNAL_MODULES": "core.backends.verl.trainer",
            "WANDB_MODE": recipe.run.tracker_mode,
            "WANDB_DIR": str(paths.out),
            "TENSORBOARD_DIR": str(paths.out / "tensorboard"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{paths.out / 'mlflow.db'}",
            **verl.env,
        },
        models={"model": model},
        folders={} if is_hub_id(model) else {"model.path": model},
        find_local_problems=partial(find_local_problems, recipe, verl),
        unread={f"inference.{key}": "verl.overrides" for key in ("kv_tokens", "max_num_seqs", "max_prefill_tokens")},
    )


def find_local_problems(recipe: Recipe, verl: VerlSection) -> Iterator[str]:
    """Name what is missing. An id of the hub is downloaded by each node.

    Raises:
        CheckpointError: the model's config is broken.
    """
    install = f"run inside an image that has it, or pip install 'verl[{verl.engine},fsdp]=={VERSION}'"
    if (found := next((one.version for one in distributions(name="verl")), "none")) != VERSION:
        yield f"verl {VERSION} is needed, and here is {found}; {install}"
    if find_spec(verl.engine) is None:
        yield f"no {verl.engine} here; {install}"
    path = Path(recipe.model.path)
    if is_hub_id(path):
        return
    if not (path / "config.json").is_file():
        yield f"model.path: no model at {path}. Download it there with `hf download`, or give an id of the hub"
        return
    config, longest = read_json(path / "config.json"), recipe.model.max_model_len or 0
    limit = {**(config.get("text_config") or {}), **config}.get("max_position_embeddings") or longest
    if longest > limit and POSITIONS not in {key.lstrip("+") for key in verl.overrides}:
        fix = f"lower it, or --set 'verl.overrides={{+{POSITIONS}: {longest}}}' if the model is meant for it"
        yield f"model.max_model_len: {longest} is above the {limit} positions of {path}, which verl refuses; {fix}"


class VerlPaths(JobPaths):
    """Names the files of a job of verl."""

    def __init__(self, out: Path):
        super().__init__(out, "parquet")
        self.loops = self.out / "agent_loops.yaml"
        self.checkpoints = self.out / "verl"


def cluster(recipe: Recipe) -> VerlSection:
    """Return the recipe's `verl` section, or its defaults, checked against the rest of the recipe.

    Raises:
        RecipeError: the recipe needs what verl cannot do.
    """
    verl, optimizer = recipe.verl or VerlSection(), recipe.optimizer
    refuse_on_cluster(recipe, "verl", verl.engine, also=("model.lora",))
    steps, scheduler = recipe.run.steps * recipe.algorithm.num_steps_per_rollout, optimizer.lr_scheduler_type
    unfit = {
        "model.max_model_len is null, and verl must know its longest row; set it to the engine's limit": (
            recipe.model.max_model_len is None
        ),
        "optimizer.lr_scheduler_type is linear, which verl lacks; set it to constant or cosine": scheduler == "linear",
        f"optimizer.lr_decay_steps is {optimizer.lr_decay_steps}; on verl the rate reaches 0 at the run's end, after "
        f"{steps} steps: set it to null": scheduler == "cosine" and optimizer.lr_decay_steps != steps,
        f"verl.trainer_mode is {verl.trainer_mode}, which trains on rollouts of older weights; set algorithm.tis, "
        "such as [0,2]": verl.trainer_mode != "sync" and recipe.algorithm.tis is None,
    }
    refuse_first(unfit)
    return verl


UNREAD = {
    *(f"{ACTOR}.{name}" for name in "loss_agg_mode clip_ratio clip_ratio_low clip_ratio_high clip_ratio_c".split()),
    *(f"{ROLLOUT}.{name}" for name in ("logprobs_mode", "repetition_penalty")),
    *(f"algorithm.{name}" for name in ("adv_estimator", "norm_adv_by_std_in_grpo", "gamma", "lam")),
    f"{ACTOR}.policy_loss.loss_mode", "custom_reward_function.path", "trainer.critic_warmup",
}  # fmt: skip
"""Names what our loss, credit and calls do not read, or what would change the log-probs that they rest on."""


def render(recipe: Recipe, paths: VerlPaths) -> dict[str, Any]:
    """Render all settings.

    Raises:
        RecipeError: as `cluster`, `verl.overrides` repeats a setting, or one contradicts the recipe.
    """
    verl, settings = cluster(recipe), _render_recipe(recipe, paths)
    for key in verl.overrides:
        if key.lstrip("+") in settings:
            raise RecipeError(f"verl.overrides.{key} is given already, from the recipe; set it there")
        if key.lstrip("+") in UNREAD:
            raise RecipeError(f"verl.overrides.{key} does not go with rows, credit and loss of ours; leave it out")
    check_settings(recipe, {**settings, **{key.lstrip("+"): value for key, value in verl.overrides.items()}})
    return {**settings, **verl.overrides}


def as_hydra(key: str, value: Any) -> str:
    """Write a setting as a word of the command line. Text in quotes is text, whatever hydra could read it as."""
    if isinstance(value, str) and re.fullmatch(r"(?!(?i:null|true|false|nan|inf)$)[A-Za-z/][\w/.-]*", value):
        return f"{key}={value}"
    return f"{key}={json.dumps(value, ensure_ascii=False)}"


def _render_recipe(recipe: Recipe, paths: VerlPaths) -> dict[str, Any]:
    verl, model, rollout, run = cluster(recipe), recipe.model, recipe.rollout, recipe.run
    algorithm, optimizer, kl, lora = recipe.algorithm, recipe.optimizer, recipe.algorithm.kl_loss_coef, model.lora
    # verl fails on a row that is longer than a pack, so a pack takes any row.
    longest, sharing = model.max_model_len or 0, verl.ulysses_sequence_parallel_size
    pack = math.ceil(max(optimizer.max_tokens_per_pack, longest) / sharing)
    settings = {
        "data.train_files": str(paths.train),
        "data.val_files": str(paths.eval if run.eval_every else paths.train),  # verl opens one in any case
        "data.train_batch_size": rollout.tasks_per_step,
        "data.max_prompt_length": longest,
        "data.max_response_length": longest,
        "data.shuffle": recipe.data.shuffle,
        "data.seed": run.seeds[0],
        f"{MODEL}.path": model.path,
        f"{MODEL}.enable_gradient_checkpointing": optimizer.gradient_checkpointing,
        f"{MODEL}.lora_rank": lora and lora.rank,
        f"{MODEL}.lora_alpha": lora and lora.alpha,
        f"{MODEL}.target_modules": lora and lora.targets,
        f"{ACTOR}.ppo_mini_batch_size": rollout.tasks_per_step,  # our trainer cuts the steps
        f"{ACTOR}.use_dynamic_bsz": True,
        f"{ACTOR}.ppo_max_token_len_per_gpu": pack,
        f"{ACTOR}.ulysses_sequence_parallel_size": sharing,
        f"{ACTOR}.clip_ratio_low": algorithm.clip_ratio_low,
        f"{ACTOR}.clip_ratio_high": algorithm.clip_ratio_high,
        f"{ACTOR}.use_kl_loss": kl > 0,
        f"{ACTOR}.kl_loss_coef": kl or None,
        f"{ACTOR}.kl_loss_type": algorithm.kl_loss_type if kl else None,
        f"{ACTOR}.entropy_coeff": algorithm.entropy_coef,
        f"{ACTOR}.optim.lr": optimizer.lr,
        f"{ACTOR}.optim.lr_scheduler_type": optimizer.lr_scheduler_type,
        # verl changes the rate once for each batch, however many steps that has.
        f"{ACTOR}.optim.lr_warmup_steps": math.ceil(optimizer.lr_warmup_steps / algorithm.num_steps_per_rollout),
        f"{ACTOR}.optim.betas": (optimizer.beta1, optimizer.beta2),
        f"{ACTOR}.optim.weight_decay": optimizer.weight_decay,
        f"{ACTOR}.optim.clip_grad": optimizer.clip_grad,
        f"{ACTOR}.fsdp_config.param_offload": optimizer.cpu_offload,
        f"{ACTOR}.fsdp_config.optimizer_offload": optimizer.cpu_offload,
        "algorithm.adv_estimator": "grpo",
        f"{ROLLOUT}.name": verl.engine,
        f"{ROLLOUT}.tensor_model_parallel_size": verl.tensor_model_parallel_size,
        f"{ROLLOUT}.load_format": lora and "safetensors",  # verl then sends the engine the adapters alone
        f"{ROLLOUT}.max_model_len": longest,
        f"{ROLLOUT}.n": rollout.group_size,
        f"{ROLLOUT}.temperature": rollout.temperature,
        f"{ROLLOUT}.top_k": rollout.top_k,
        f"{ROLLOUT}.seed": run.seeds[0],
        f"{ROLLOUT}.val_kwargs.temperature": run.eval_temperature,
        f"{ROLLOUT}.val_kwargs.top_p": run.eval_top_p,
        LOOPS: str(paths.loops),
        f"+{RECIPE}": str(paths.recipe),
        "trainer.nnodes": verl.nodes,
        "trainer.n_gpus_per_node": verl.gpus_per_node,
        "trainer.v1.trainer_mode": f"tokentrue_{verl.trainer_mode}",
        "trainer.total_training_steps": run.steps,
        "trainer.total_epochs": run.steps,  # an epoch has a step at least, so this never ends a run
        "trainer.save_freq": run.save_every,
        "trainer.default_local_dir": str(paths.checkpoints),
        "trainer.test_freq": run.eval_every or -1,
        "trainer.val_before_train": run.eval_every > 0,
        "trainer.rollout_data_dir": str(paths.out / f"seed-{run.seeds[0]}") if run.record_every else None,
        "trainer.logger": ("console", *run.trackers),
        "trainer.project_name": recipe.method,
        "trainer.experiment_name": paths.out.name,
        "hydra.run.dir": str(paths.out / "hydra"),
    }
    return {key: value for key, value in settings.items() if value is not None}
