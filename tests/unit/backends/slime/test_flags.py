"""A recipe as slime's flags: each section says a thing once, and what slime cannot do is refused with the fix."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agentic.memagent.rollout import SPEC
from core.algorithms.coefficients import BATCH_ESTIMATORS
from core.backends.slime import flags, launch
from core.config import RecipeError
from core.rollout.method import method_spec

PATHS = flags.Paths(Path("/runs/x"))
HOOKS = "core.backends.slime.hooks"
OFFLOADED = "--overlap-cpu-optimizer-d2h-h2d --use-precision-aware-optimizer"


def rendered(*overrides: str) -> dict[str, list[str]]:
    return flags.groups(SPEC.load("seed", overrides), PATHS)


def refused(*overrides: str, preset: str = "seed") -> str:
    with pytest.raises(RecipeError) as caught:
        flags.groups(SPEC.load(preset, overrides), PATHS)
    return str(caught.value)


def value(words: list[str], flag: str) -> str:
    assert words.count(flag) == 1, f"{flag} in {words}"
    return words[words.index(flag) + 1]


@pytest.mark.parametrize(
    ("override", "group", "words"),
    [
        ("algorithm.std_normalization=false", "GRPO", "--disable-grpo-std-normalization"),
        ("algorithm.clip_ratio_c=3", "GRPO", "--eps-clip-c 3.0"),
        ("algorithm.loss_mode=gspo", "GRPO", "--advantage-estimator gspo"),
        ("algorithm.loss_mode=cispo", "GRPO", "--advantage-estimator cispo"),
        ("algorithm.tis=[0.5,2]", "GRPO", "--use-tis --tis-clip-low 0.5 --tis-clip 2.0"),
        ("optimizer.cpu_offload=true", "OPTIMIZER", f"--optimizer-cpu-offload {OFFLOADED}"),
        ("slime.context_parallel=2", "PERF", "--max-tokens-per-gpu 8192"),
        ("algorithm.num_steps_per_rollout=4", "ROLLOUT", "--global-batch-size 64"),
        ("algorithm.dynamic_sampling=true", "CUSTOM", f"--dynamic-sampling-filter-path {HOOKS}.dynamic_filter"),
        ("rollout.concurrency=100", "SGLANG", "--sglang-server-concurrency 50"),
        ("run.trackers=[wandb]", "WANDB", "--use-wandb --wandb-mode offline --wandb-project memagent --wandb-group x"),
        ("slime.flags={--use-fault-tolerance: true, --x: [1, 2]}", "MISC", "--use-fault-tolerance --x 1 2"),
        ("slime.checkpoint.save=/other", "CKPT", "--load /other --save /other"),
        ("rollout.top_k=20", "EVAL", "--eval-top-k -1"),  # as the embedded backend evaluates
    ],
)
def test_a_setting_reaches_its_group(override: str, group: str, words: str) -> None:
    assert words in " ".join(rendered(override)[group])
    assert words not in " ".join(rendered()[group])


def test_rollout_on_gpus_of_its_own() -> None:
    words = rendered("slime.colocate=false", "slime.rollout_gpus=16", "algorithm.tis=[0, 2]")["ACTOR"]
    assert "--colocate" not in words
    assert value(words, "--rollout-num-gpus") == "16"


def test_the_servers_refuse_what_outgrows_the_recipes_context() -> None:
    flag, paper = "--sglang-context-length", method_spec("toolorchestra").load("paper", ["model.max_model_len=9000"])
    assert value(flags.groups(paper, PATHS)["SGLANG"], flag) == "9000"
    assert flag not in rendered()["SGLANG"], "a flag of the user's own says it already"
    assert value(rendered()["MISC"], flag) == "131072"
    assert flag not in rendered(f"slime.flags.{flag}=false", "slime.rollout_gpus=12", JUDGE)["SGLANG"]


def test_the_rollouts_in_flight_are_those_of_the_recipe_beside_further_models_too() -> None:
    words = rendered("rollout.concurrency=96", "slime.rollout_gpus=12", JUDGE)["SGLANG"]
    engines = 12 // 4  # as slime counts them (`get_rollout_num_engines`)
    assert engines * int(value(words, "--sglang-server-concurrency")) == 96


def test_a_rate_falls_to_the_end_of_the_run_where_slime_counts_epochs() -> None:
    linear = "optimizer.lr_scheduler_type=linear"
    assert value(rendered(linear)["OPTIMIZER"], "--lr-decay-iters") == "100"
    assert "--lr-decay-iters" not in rendered(linear, "slime.num_epoch=3")["OPTIMIZER"]
    longer = rendered(linear, "slime.num_epoch=3", "optimizer.lr_decay_steps=700")["OPTIMIZER"]
    assert value(longer, "--lr-decay-iters") == "700"


def test_further_models_are_frozen_and_take_their_gpus_from_the_policy() -> None:
    judge_of = "{path: /data/judge, gpus: 2, gpus_per_engine: 2, overrides: {mem_fraction_static: 0.6}}"
    recipe = SPEC.load("seed", ["slime.rollout_gpus=10", f"slime.sglang.models={{judge: {judge_of}}}"])
    assert value(flags.groups(recipe, PATHS)["SGLANG"], "--sglang-config") == "/runs/x/servers.yaml"
    policy, judge = yaml.safe_load(launch.server_config(flags.cluster(recipe)) or "")["sglang"]
    assert (policy["name"], policy["update_weights"]) == ("policy", True)
    assert policy["server_groups"] == [{"worker_type": "regular", "num_gpus": 8}]
    own = {"num_gpus": 2, "num_gpus_per_engine": 2, "overrides": {"mem_fraction_static": 0.6}}
    served_judge = {"name": "judge", "model_path": "/data/judge", "update_weights": False}
    assert judge == {**served_judge, "server_groups": [{"worker_type": "regular", **own}]}


JUDGE = "slime.sglang.models={judge: {path: /data/judge, gpus: 4}}"


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        (["run.seeds=[0, 1]"], "set run.seeds=[0]"),
        (["model.dtype=float32"], "set model.dtype=bfloat16"),
        (["rollout.top_p=0.9"], "rollout.top_p is 0.9"),
        (["model.lora={rank: 8}"], "on slime set model.lora=null"),
        (["model.compile=true"], "for the embedded backend alone; on slime set model.compile=false"),
        (["optimizer.name=adamw8bit"], "on slime set optimizer.name=adamw"),
        (["algorithm.observation_coef=0.1", "algorithm.rows=segment"], "on slime set algorithm.observation_coef=0.0"),
        (["inference.servers=[http://a:1]"], "on slime set inference.servers=[]"),
        (["inference.replicas=2"], "on slime set inference.replicas=0"),
        (["rollout.ahead=1", "algorithm.tis=[0, 2]"], "on slime set rollout.ahead=0"),
        (["algorithm.num_steps_per_rollout=3"], "let algorithm.num_steps_per_rollout divide"),
        (["roles={judge: 'model:/data/judge'}"], "slime.roles.judge, or set roles.judge=http"),
        (["slime.flags={--lr: 1e-5}"], "slime.flags.--lr: already in group OPTIMIZER"),
        (["slime.flags={lr: 1e-5}"], "with its leading --"),
        (["slime.colocate=false"], "set slime.rollout_gpus"),
        (["slime.colocate=false", "slime.rollout_gpus=8"], "with older weights; set algorithm.tis"),
        (["run.trackers=[wandb, mlflow]"], "run.trackers: slime has no mlflow; use wandb or tensorboard"),
        (["slime.rows=fan_out"], "algorithm.loss_agg is turn, which slime does not have for fanned-out rollouts"),
        (["slime.rows=fan_out", "algorithm.update_group_size=4"], "leave rollouts of a group out"),
        (["slime.rows=fan_out", "algorithm.min_group_std=0.1"], "leave rollouts of a group out"),
        (["algorithm.loss_mode=dppo_tv"], "loss_mode=dppo_tv is no loss of slime; use vanilla, gspo, cispo"),
        *(
            (
                [f"algorithm.adv_estimator={name}", "slime.rows=fan_out"],
                f"algorithm.adv_estimator={name} needs the whole batch or its turns, which fanned-out",
            )
            for name in ("gigpo", *BATCH_ESTIMATORS)
        ),
        (
            ["algorithm.adv_estimator=gae", "algorithm.vf_coef=1", "algorithm.split_advantage=false"],
            "algorithm.vf_coef is for the embedded backend alone",
        ),
        (["slime.sglang.gpus_per_engine=3"], "policy: 8 GPUs do not make whole engines of 3"),
        (["slime.rollout_gpus=4", JUDGE], "leave none to the policy"),
        (["slime.roles={verifier: judge}"], "roles.verifier is 'judge', which is not in sglang.models (known: none)"),
        (["slime.sglang.models={judge: {path: x, gpus: 4, worker_type: regular}}"], "unknown key"),
        (["slime.sglang.models={judge: {path: x}}"], "slime.sglang.models.judge.gpus: missing"),
    ],
)
def test_what_cannot_be_is_refused_with_the_fix(overrides: list[str], named: str) -> None:
    assert named in refused(*overrides)


def test_a_model_of_the_cluster_takes_the_place_of_a_role() -> None:
    overrides = ["slime.rollout_gpus=12", JUDGE, "slime.roles={judge: judge}", "roles={judge: 'model:/data/judge'}"]
    assert "--sglang-config" in flags.groups(SPEC.load("seed", overrides), PATHS)["SGLANG"]


def test_a_preset_without_a_cluster_names_one_that_has_it() -> None:
    assert "use a preset that has one, such as --preset seed" in refused(preset="tiny")


def test_nodes_of_the_cluster_are_counted() -> None:
    def nodes(*overrides: str) -> int:
        slime = SPEC.load("seed", overrides).slime
        assert slime is not None
        return slime.all_nodes

    assert nodes() == 1
    assert nodes("slime.nodes=2") == 2
    assert nodes("slime.rollout_gpus=12", JUDGE) == 2
    assert nodes("slime.colocate=false", "slime.rollout_gpus=16") == 3


def test_flags_of_the_preset_replace_those_of_slimes_scripts() -> None:
    words = rendered("slime.flags={--attention-backend: fused, --attention-softmax-in-fp32: false}")["MISC"]
    assert value(words, "--attention-backend") == "fused"
    assert "--attention-softmax-in-fp32" not in words
    assert "--accumulate-allreduce-grads-in-fp32" in words


def test_fan_out_gives_slime_the_reward_hook_instead_of_the_converter() -> None:
    words = rendered("slime.rows=fan_out", "algorithm.loss_agg=token")["CUSTOM"]
    assert value(words, "--custom-reward-post-process-path") == f"{HOOKS}.post_process_rewards"
    assert "--custom-convert-samples-to-train-data-path" not in words
    assert "--calculate-per-token-loss" in words


def test_fan_out_is_refused_for_a_reward_that_compares_a_group() -> None:
    recipe = method_spec("toolorchestra").load("seed", ["slime.rows=fan_out"])
    told = r"lack a reward that compares a group; take another reward, or set slime\.rows=container"
    with pytest.raises(RecipeError, match=told):
        flags.cluster(recipe)


@pytest.mark.parametrize("name", ["turn_grpo", "gigpo"])
def test_a_conversation_is_a_row_for_each_turn_where_turns_have_advantages_of_their_own(name: str) -> None:
    """slime needs them, and Search-R1 takes them for these estimators alone."""
    search_r1 = method_spec("search_r1")
    recipe = search_r1.load("paper", [f"algorithm.adv_estimator={name}", "algorithm.rows=turn"])
    assert value(flags.groups(recipe, PATHS)["GRPO"], "--advantage-estimator") == "grpo"
    with pytest.raises(RecipeError, match=r"set algorithm\.rows=turn"):
        flags.groups(search_r1.load("paper", [f"algorithm.adv_estimator={name}"]), PATHS)
    with pytest.raises(RecipeError, match=r"set algorithm\.rows=segment"):
        search_r1.load("paper", ["algorithm.rows=turn"])
