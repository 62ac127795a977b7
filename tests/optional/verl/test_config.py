"""The settings of each preset's job, composed by verl's own hydra configuration and taken by its own checks.

An unknown key stops hydra, and a value that a dataclass of verl does not take stops its conversion.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.backends.verl import settings
from core.backends.verl.launch import VerlPaths, as_hydra, make_job, render
from core.backends.verl.settings import read_recipe
from core.config import Recipe
from core.rollout.method import method_spec
from tests import kit
from tests.contract.test_presets import CLUSTER

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def _verl() -> None:
    kit.require(find_spec("verl"), kit.VERL)


EIGHT = ["verl.nodes=1", "verl.gpus_per_node=8"]
EVERYTHING = [
    "algorithm.tis=[0, 2]",
    "algorithm.entropy_coef=0.01",
    "algorithm.num_steps_per_rollout=4",
    "model.lora={rank: 8, alpha: 16}",
    "optimizer.cpu_offload=true",
    "optimizer.lr_scheduler_type=cosine",
    "optimizer.lr_warmup_steps=10",
    "rollout.top_k=50",
    "run.trackers=[wandb, tensorboard, mlflow]",
    "verl.engine=sglang",
    "verl.tensor_model_parallel_size=2",
    "verl.trainer_mode=colocate_async",
    "verl.ulysses_sequence_parallel_size=2",
    "verl.overrides={actor_rollout_ref.rollout.gpu_memory_utilization: 0.7, trainer.max_actor_ckpt_to_keep: null, "
    "actor_rollout_ref.actor.strategy: fsdp2, +actor_rollout_ref.rollout.engine_kwargs.sglang.x: 'null'}",
]
RECIPES = {f"{method}-{preset}": (method, preset, EIGHT) for method, preset in CLUSTER}
RECIPES["memagent-everything"] = ("memagent", "seed", [*EIGHT, *EVERYTHING])


def load(name: str) -> Recipe:
    method, preset, overrides = RECIPES[name]
    recipe: Recipe = method_spec(method).load(preset, overrides)
    return recipe.model_copy(update={"slime": None})


def compose(words: list[str]) -> Any:
    import hydra
    import verl

    folder = Path(verl.__file__).parent / "trainer" / "config"
    with hydra.initialize_config_dir(str(folder), version_base=None):
        return hydra.compose("ppo_trainer", words)


def write_job(recipe: Recipe, out: Path) -> VerlPaths:
    """Write the files of the job as its script does."""
    paths = VerlPaths(out)
    paths.out.mkdir(parents=True)
    for path, text in make_job(recipe, "verl", out).files.items():
        path.write_text(text)
    settings._load.cache_clear()
    return paths


@pytest.mark.parametrize("name", RECIPES)
def test_verl_takes_the_settings_of_a_preset(name: str, tmp_path: Path) -> None:
    from verl.trainer.ppo.utils import need_critic, need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    recipe = load(name)
    paths = write_job(recipe, tmp_path / "a run = [1]")
    config = compose([as_hydra(key, value) for key, value in render(recipe, paths).items()])
    reference = need_reference_policy(config)
    validate_config(config, use_reference_policy=reference, use_critic=need_critic(config))
    rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    omega_conf_to_dataclass(config.algorithm)
    assert read_recipe(config) == recipe

    assert rollout.prompt_length == rollout.response_length == rollout.max_model_len == recipe.model.max_model_len
    assert (rollout.n, rollout.temperature) == (recipe.rollout.group_size, recipe.rollout.temperature)
    assert actor.engine.ulysses_sequence_parallel_size * actor.ppo_max_token_len_per_gpu >= rollout.max_model_len
    assert actor.optim.lr == recipe.optimizer.lr
    assert tuple(actor.optim.betas) == (recipe.optimizer.beta1, recipe.optimizer.beta2)
    assert reference == (recipe.algorithm.kl_loss_coef > 0)
    assert config.trainer.default_local_dir == str(paths.checkpoints)
    assert config.trainer.total_training_steps == recipe.run.steps
    assert config.trainer.nnodes * config.trainer.n_gpus_per_node == 8


def test_what_is_everything_arrives(tmp_path: Path, model: Path) -> None:
    from verl.utils.config import omega_conf_to_dataclass

    method, preset, overrides = RECIPES["memagent-everything"]
    recipe = method_spec(method).load(preset, [*overrides, f"model.path={model}"])
    config = compose([as_hydra(key, value) for key, value in render(recipe, VerlPaths(tmp_path)).items()])
    model_config = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    assert config.actor_rollout_ref.rollout.engine_kwargs.sglang.x == "null"
    assert config.actor_rollout_ref.actor.strategy == "fsdp2"
    assert config.trainer.v1.trainer_mode == "tokentrue_colocate_async"
    assert list(config.trainer.logger) == ["console", "wandb", "tensorboard", "mlflow"]
    assert config.actor_rollout_ref.actor.optim.lr_warmup_steps == 3
    assert list(model_config.target_modules)[:2] == ["q_proj", "k_proj"]
    assert (model_config.lora_rank, model_config.lora_alpha) == (8, 16)


def test_an_unknown_setting_stops_hydra(tmp_path: Path) -> None:
    from hydra.errors import ConfigCompositionException

    recipe = method_spec("memagent").load("seed", ["verl.overrides={trainer.devise: cpu}"])
    with pytest.raises(ConfigCompositionException, match=r"trainer\.devise"):
        compose([as_hydra(key, value) for key, value in render(recipe, VerlPaths(tmp_path)).items()])


def test_verls_own_entry_reads_the_words_of_the_script(tmp_path: Path) -> None:
    """The shell and verl's main read the words; --cfg makes it print its configuration and stop."""
    recipe = load("memagent-seed")
    paths = write_job(recipe, tmp_path / "a run")
    script = make_job(recipe, "verl", paths.out).script
    (array,) = re.findall(r"^SETTINGS=\(\n.*?^\)$", script, re.MULTILINE | re.DOTALL)
    command = f'{array}\n{sys.executable} -m verl.trainer.main_ppo "${{SETTINGS[@]}}" --cfg job --resolve'
    done = subprocess.run(["bash", "-ec", command], cwd=tmp_path, env=os.environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    config = yaml.safe_load(done.stdout[done.stdout.index("actor_rollout_ref:") :])
    assert config["trainer"]["default_local_dir"] == str(paths.checkpoints)
    assert config["data"]["train_batch_size"] == recipe.rollout.tasks_per_step


def test_our_trainers_are_there_for_the_names_that_are_rendered() -> None:
    code = (
        "from verl.trainer.ppo.v1 import get_trainer_cls; from core.backends.verl.settings import MODES; "
        "print(*(get_trainer_cls(name).__mro__[1].__name__ for name in MODES))"
    )
    environment = {**os.environ, "VERL_USE_EXTERNAL_MODULES": "core.backends.verl.trainer"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split()[-3:] == ["RolloutTrainer"] * 3
