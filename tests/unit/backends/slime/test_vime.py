"""The same recipe on vime: its job is slime's but for the rollout engine, and the hooks ask vLLM's routers."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentic.memagent.rollout import SPEC
from core.backends.slime import flags, launch
from core.backends.slime.bridge import open_policies, router_urls
from core.backends.slime.framework import SLIME, VIME, framework_of
from core.config import Recipe, RecipeError
from core.policy.sglang import SGLangPolicy
from core.policy.vllm import VLLMPolicy
from core.rollout.method import method_spec
from tests.contract.test_presets import CLUSTER
from tests.unit.backends.slime.standin import arguments
from tests.unit.backends.slime.test_hooks import RECIPE

PATHS = flags.Paths(Path("/runs/x"))
ENGINE_FLAGS = {
    "--sglang-mem-fraction-static": "--vllm-gpu-memory-utilization",
    "--sglang-context-length": "--vllm-max-model-len",
    "--sglang-server-concurrency": "--vllm-server-concurrency",
    "--sglang-config": "--vllm-config",
}


def recipe_on(framework: str, *overrides: str) -> Recipe:
    return launch.choose_framework(SPEC.load("seed", overrides), framework)


def words_of(recipe: Recipe) -> list[str]:
    return [word for words in flags.groups(recipe, PATHS).values() for word in words]


def words_on(framework: str, *overrides: str) -> list[str]:
    return words_of(recipe_on(framework, *overrides))


@pytest.mark.parametrize(("method", "preset"), CLUSTER)
def test_every_preset_differs_in_the_names_of_the_engines_flags_alone(method: str, preset: str) -> None:
    recipe = method_spec(method).load(preset, [])
    on_slime, on_vime = (words_of(launch.choose_framework(recipe, framework)) for framework in ("slime", "vime"))
    assert on_vime == [ENGINE_FLAGS.get(word, word) for word in on_slime]
    assert not [word for word in on_vime if re.search("sglang|slime", word.removeprefix("core.backends.slime.hooks"))]


def test_functions_and_servers_are_vimes() -> None:
    more = ["algorithm.tis=[0.5, 2]", "algorithm.tis_mode=mask", "slime.rollout_gpus=12"]
    more.append("slime.sglang.models={judge: {path: /data/judge, gpus: 4, overrides: {max_model_len: 9}}}")
    words = words_on("vime", *more)
    assert words[words.index("--custom-tis-function-path") + 1] == "vime.backends.megatron_utils.loss.icepop_function"
    assert words[words.index("--vllm-config") + 1] == "/runs/x/servers.yaml"
    served = yaml.safe_load(launch.server_config(flags.cluster(recipe_on("vime", *more))) or "")
    assert [model["name"] for model in served["vllm"]] == ["policy", "judge"]
    assert served["vllm"][1]["server_groups"][0]["overrides"] == {"max_model_len": 9}


def test_the_command_prints_vimes_job(capsys: pytest.CaptureFixture[str]) -> None:
    assert launch.main(["memagent", "--backend", "vime", "--out", "/nowhere/x y", "--dry-run"]) == 0
    script = capsys.readouterr().out
    subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    assert "# memagent, preset seed, on vime." in script
    assert "\nVLLM_ARGS=(--rollout-num-gpus-per-engine 4 " in script
    assert "source /root/vime/scripts/models/qwen2.5-7B.sh" in script
    assert "-- python3 /root/vime/train.py" in script
    (environment,) = re.findall(r"--runtime-env-json=(.*) \\$", script, re.MULTILINE)
    variables = json.loads(shlex.split(environment)[0])["env_vars"]
    assert "/root/vime" in variables["PYTHONPATH"].split(":")
    assert variables["VLLM_ALLOW_LONG_MAX_MODEL_LEN"] == "1"
    assert not [name for name in variables if name.startswith("SGLANG")]
    held = yaml.safe_load(re.findall(r"agentic_recipe.yaml' <<'YAML'\n(.*?)\nYAML\n", script, re.DOTALL)[0])
    assert SPEC.recipe.model_validate(held["agentic_recipe"]) == recipe_on("vime")


def test_a_flag_under_its_own_name_goes_before_a_renamed_one() -> None:
    words = words_on("vime", "slime.flags.--vllm-gpu-memory-utilization=0.6")
    assert words.count("--vllm-gpu-memory-utilization") == 1
    assert words[words.index("--vllm-gpu-memory-utilization") + 1] == "0.6"


@pytest.mark.parametrize(
    ("framework", "override", "named"),
    [
        ("vime", "slime.flags.--sglang-dp-size=2", "--set slime.flags.--sglang-dp-size=false) and set a --vllm-..."),
        ("slime", "slime.flags.--vllm-max-model-len=9", "is a flag of vime"),
        ("vime", "slime.env.SGLANG_X=debug", "slime.env.SGLANG_X is for the engine of slime"),
        (
            "vime",
            "slime.flags.--rollout-function-path=slime.rollout.fully_async_rollout.generate_rollout_fully_async",
            "if vime has it, write vime.rollout.fully_async_rollout.generate_rollout_fully_async",
        ),
        ("vime", "slime.flags.--vllm-server-concurrency=2", "already in group VLLM"),
        ("vime", "algorithm.loss_mode=dppo_tv", "loss_mode=dppo_tv is no loss of vime; use vanilla, gspo, cispo"),
        ("vime", "rollout.top_k=20", "rollout.top_k is 20, and vLLM's log-probs"),
        ("vime", "algorithm.router_aux_loss_coef=0.1", "for the embedded backend alone; on vime set"),
    ],
)
def test_what_it_does_not_have_is_refused_with_the_fix(framework: str, override: str, named: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(named)):
        launch.make_job(recipe_on(framework, override), PATHS.out)


def test_fanned_out_rollouts_are_refused_where_an_abort_would_end_the_job() -> None:
    """vime's AsyncRolloutWorker raises for a group that it runs again, where slime's loses it (vime at 8c1c944bc)."""
    path, fan_out = "rollout.fully_async_rollout.generate_rollout_fully_async", ["slime.rows=fan_out"]
    more = ["slime.colocate=false", "slime.rollout_gpus=8", "run.eval_every=0", "algorithm.loss_agg=token"]
    more += ["algorithm.tis=[0, 2]"]
    jobs = {name: [*more, f"slime.flags.--rollout-function-path={name}.{path}"] for name in ("slime", "vime")}
    with pytest.raises(RecipeError, match=r"the job ends if the others are fanned out; set slime\.rows=container"):
        launch.make_job(recipe_on("vime", *jobs["vime"], *fan_out), PATHS.out)
    launch.make_job(recipe_on("vime", *jobs["vime"]), PATHS.out)
    launch.make_job(recipe_on("slime", *jobs["slime"], *fan_out), PATHS.out)


def test_vime_has_one_script_for_gpus_apart_too() -> None:
    """Its own examples/fully_async starts train.py (vime at 8c1c944bc); slime has train_async.py."""
    for framework, script in (("slime", "/root/slime/train_async.py"), ("vime", "/root/vime/train.py")):
        tis = ["algorithm.tis=[0, 2]"] if framework == "slime" else []  # which samples ahead with that script
        recipe = recipe_on(framework, "slime.colocate=false", "slime.rollout_gpus=8", *tis)
        assert launch.make_job(recipe, PATHS.out).command[0] == f"-- python3 {script}"


def test_a_flag_of_the_other_engine_may_be_left_out() -> None:
    assert words_on("vime", "slime.flags.--sglang-dp-size=false") == words_on("vime")


def on_vime(recipe: dict[str, Any], port: int = 1, **more: Any) -> Any:
    """What vime would hold after a launch of `recipe`."""
    args = arguments(recipe, vllm_router_ip="127.0.0.1", vllm_router_port=port, vllm_model_routers=None, **more)
    for name in [name for name in vars(args) if name.startswith("sglang_")]:
        delattr(args, name)
    return args


async def test_the_policy_is_vllms_router_and_slimes_is_sglangs() -> None:
    recipe = Recipe.model_validate(RECIPE)
    assert (framework_of(on_vime(RECIPE)), framework_of(arguments(RECIPE))) == (VIME, SLIME)
    assert router_urls(recipe, on_vime(RECIPE, 3000)) == {"policy": "vllm+http://127.0.0.1:3000"}
    async with open_policies(on_vime(RECIPE, 3000), recipe, None) as policies:
        assert isinstance(policies["policy"], VLLMPolicy)
        assert policies["policy"].url == "http://127.0.0.1:3000"
    async with open_policies(arguments(RECIPE), recipe, None) as policies:
        assert isinstance(policies["policy"], SGLangPolicy)
