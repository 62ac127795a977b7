"""Every flag that is rendered is one of slime's, or of vime's, and its own parser takes all of them together.

    SLIME_ROOT=FOLDER .venv/bin/python -m pytest tests/contract/test_slime_flags.py
    SLIME_ROOT=FOLDER MEGATRON_ROOT=FOLDER SLIME_PYTHON=PYTHON .venv/bin/python -m pytest ...

The first reads slime's sources. The second runs slime's parser, which is Megatron's and SGLang's too: PYTHON is that of
an environment with SGLang (the CPU build will do), six and wandb, and Megatron-LM is at the commit that slime's
Dockerfile names. VIME_ROOT and VIME_PYTHON (with vLLM and vllm-router) do the same for vime, with its Megatron-LM.
"""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.backends.slime import flags
from core.backends.slime.framework import FRAMEWORKS
from core.backends.slime.launch import choose_framework
from core.config import Recipe
from core.rollout.method import method_spec
from tests import kit
from tests.contract.test_presets import CLUSTER

MEGATRON = os.environ.get("MEGATRON_ROOT")

MEGATRON_FLAGS = """
--tensor-model-parallel-size --sequence-parallel --pipeline-model-parallel-size --context-parallel-size
--expert-model-parallel-size --expert-tensor-parallel-size --recompute-granularity --recompute-method
--recompute-num-layers --optimizer --lr-decay-style --lr-decay-iters --lr-warmup-iters --weight-decay --adam-beta1
--adam-beta2 --attention-dropout --hidden-dropout --accumulate-allreduce-grads-in-fp32 --attention-softmax-in-fp32
--attention-backend --rotary-base --optimizer-cpu-offload --overlap-cpu-optimizer-d2h-h2d
--use-precision-aware-optimizer
""".split()
ENGINE_FLAGS = {
    "slime": "--sglang-mem-fraction-static --sglang-context-length --router-policy".split(),
    "vime": "--vllm-gpu-memory-utilization --vllm-max-model-len --router-policy".split(),
}

SEED_WITH_EVERYTHING = [
    "algorithm.std_normalization=false",
    "algorithm.clip_ratio_c=3",
    "algorithm.tis=[0.5, 2]",
    "algorithm.tis_mode=mask",
    "algorithm.dynamic_sampling=true",
    "optimizer.lr_scheduler_type=cosine",
    "optimizer.lr_decay_steps=5000",
    "optimizer.lr_warmup_steps=5",
    "optimizer.clip_grad=0.5",
    "optimizer.cpu_offload=true",
    "run.trackers=[wandb, tensorboard]",
    "slime.colocate=false",
    "slime.rollout_gpus=16",
    "slime.sglang.models={judge: {path: /data/judge, gpus: 8}}",
    # consistent_hashing is in the router of slime's image, not in PyPI's
    "slime.flags={--use-fault-tolerance: true, --router-policy: power_of_two}",
]
RECIPES: dict[str, tuple[str, str, list[str]]] = {
    f"{method}-{preset}": (method, preset, []) for method, preset in CLUSTER
} | {
    "memagent-everything": ("memagent", "seed", SEED_WITH_EVERYTHING),
    "memagent-fan-out": ("memagent", "seed", ["slime.rows=fan_out", "algorithm.loss_agg=token"]),
}
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "model_type": "qwen2",
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "max_position_embeddings": 32768,
    "num_attention_heads": 28,
    "num_hidden_layers": 28,
    "num_key_value_heads": 4,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": False,
    "vocab_size": 152064,
}
PARSE = """
import json, os, sys
import megatron.training.arguments
megatron.training.arguments.get_device_arch_version = lambda: 9  # Hopper; there may be no GPU here
from importlib import import_module
args = vars(import_module(os.environ["FRAMEWORK"] + ".utils.arguments").parse_args())
with open(os.environ["PARSED"], "w") as file:
    json.dump({k: v for k, v in args.items() if isinstance(v, (str, int, float, dict, type(None)))}, file)
"""


def recipe_of(name: str, framework: str, *overrides: str) -> Recipe:
    method, preset, more = RECIPES[name]
    return choose_framework(method_spec(method).load(preset, [*more, *overrides]), framework)


def find(framework: str, what: str) -> str:
    """The value of SLIME_ROOT, VIME_PYTHON or the like; without it the test is skipped."""
    variable = f"{framework.upper()}_{what}"
    value = os.environ.get(variable)
    kit.require(value, f"needs {framework}: set {variable} to {'a checkout of it' if what == 'ROOT' else 'its Python'}")
    return str(value)


def words_of(recipe: Recipe, paths: flags.Paths) -> list[str]:
    return [word for words in flags.groups(recipe, paths).values() for word in words]


def flags_in(path: Path) -> set[str]:
    """The flags that a file of slime defines: literals starting with -- that are an argument of some call."""
    calls = (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    values = (arg.value for call in calls for arg in call.args if isinstance(arg, ast.Constant))
    return {value for value in values if isinstance(value, str) and value.startswith("--")}


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", RECIPES)
def test_every_flag_is_the_frameworks(name: str, framework: str) -> None:
    sources = Path(find(framework, "ROOT")) / framework
    engine = f"backends/{FRAMEWORKS[framework].engine}_utils/arguments.py"
    own = flags_in(sources / "utils/arguments.py") | flags_in(sources / engine)
    assert "--rollout-batch-size" in own
    words = words_of(recipe_of(name, framework), flags.Paths(Path("/x")))
    rendered = {word for word in words if word.startswith("--")}
    assert rendered - own - {*MEGATRON_FLAGS, *ENGINE_FLAGS[framework]} == set()


@pytest.mark.optional
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.skipif(MEGATRON is None, reason="needs Megatron-LM: set MEGATRON_ROOT")
def test_its_parser_takes_them_all_and_reads_the_recipe(name: str, framework: str, tmp_path: Path) -> None:
    root, python = find(framework, "ROOT"), find(framework, "PYTHON")
    (tmp_path / "ref").mkdir()
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    places = [f"slime.checkpoint.hf={tmp_path}", f"slime.checkpoint.ref_load={tmp_path / 'ref'}"]
    recipe = recipe_of(name, framework, f"slime.root={root}", *places)
    paths = flags.Paths(tmp_path / "run")
    paths.out.mkdir()
    paths.recipe.write_text(yaml.safe_dump({"agentic_recipe": recipe.dump()}))
    model = ["bash", "-c", f"source {root}/scripts/models/qwen2.5-7B.sh; printf '%s\\n' \"${{MODEL_ARGS[@]}}\""]
    model_args = subprocess.run(model, check=True, text=True, capture_output=True).stdout.split()
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(MEGATRON), root, os.environ.get("PYTHONPATH", "")]),
        "CUDA_DEVICE_MAX_CONNECTIONS": "1",
        "PARSED": str(tmp_path / "parsed.json"),
        "FRAMEWORK": framework,
    }
    command = [python, "-c", PARSE, *model_args, *words_of(recipe, paths)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stderr[-3000:]}"
    args: dict[str, Any] = json.loads((tmp_path / "parsed.json").read_text())
    slime, length = recipe.slime, "vllm_max_model_len" if framework == "vime" else "sglang_context_length"
    assert slime is not None
    assert args["agentic_recipe"] == recipe.dump()
    expected = {
        "rollout_batch_size": recipe.rollout.tasks_per_step,
        "n_samples_per_prompt": recipe.rollout.group_size,
        "global_batch_size": flags.batch_size(recipe),
        "rollout_temperature": recipe.rollout.temperature,
        "grpo_std_normalization": recipe.algorithm.std_normalization,
        "eps_clip": recipe.algorithm.clip_ratio_low,
        "eps_clip_high": recipe.algorithm.clip_ratio_high,
        "eps_clip_c": recipe.algorithm.clip_ratio_c,
        "kl_loss_coef": recipe.algorithm.kl_loss_coef,
        "kl_loss_type": recipe.algorithm.kl_loss_type,
        "use_tis": recipe.algorithm.tis is not None,
        "lr": recipe.optimizer.lr,
        "adam_beta2": recipe.optimizer.beta2,
        "clip_grad": recipe.optimizer.clip_grad,
        "lr_warmup_iters": recipe.optimizer.lr_warmup_steps,
        "lr_decay_style": recipe.optimizer.lr_scheduler_type,
        "tensor_model_parallel_size": slime.flags.get("--tensor-model-parallel-size", 1),
        "world_size": slime.train_gpus,
        "rollout_num_gpus": slime.serving_gpus,
        "colocate": slime.colocate,
        "save_interval": recipe.run.save_every,
        "eval_interval": recipe.run.eval_every,
        length: slime.flags.get("--sglang-context-length"),
        "reward_key": slime.flags.get("--reward-key"),
    }
    assert {key: args[key] for key in expected} == expected
