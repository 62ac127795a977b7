"""Presets are data: typed, checked before anything runs, and every mistake is named with its fix."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import FilePath, PositiveInt

from core.config import Recipe, RecipeError, Section
from core.config.load import load
from core.http_client import read_addresses
from core.options import Device, Port, Share, argparse_type
from core.sandbox import SandboxLimits
from core.sandbox.workspace import WorkspaceLimits
from tests.kit import make_recipe

PRESET = """
method: demo
follows: nobody
model: {path: models/small}
data: {train: train.jsonl, eval: dev.jsonl}
rollout: {tasks_per_step: 2, group_size: 4}
algorithm: {name: grpo, kl_loss_coef: 1e-3, tis: [0.5, 2]}
optimizer: {lr: 1e-6}
run: {steps: 5}
demo: {size: 3}
"""


class DemoSection(Section):
    size: int


class ExtraSection(Section):
    rate: float = 0.5
    size: int = 4


class LimitsSection(Section):
    extra: ExtraSection = ExtraSection(rate=0.25, size=8)


class DemoRecipe(Recipe):
    demo: DemoSection
    limits: LimitsSection = LimitsSection()
    extra: ExtraSection | None = None


@pytest.fixture
def presets(tmp_path: Path) -> Path:
    (tmp_path / "small.yaml").write_text(PRESET)
    (tmp_path / "large.yaml").write_text(PRESET)
    return tmp_path


def read(presets: Path, overrides: Sequence[str] = (), preset: str = "small", **options: Any) -> DemoRecipe:
    return load(DemoRecipe, presets, preset, overrides, **options)


def refused(presets: Path, *overrides: str, preset: str = "small") -> str:
    with pytest.raises(RecipeError) as caught:
        read(presets, overrides, preset)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("1E5", 1e5), ("5e-4", 5e-4), ("-1.5e+3", -1500.0), ("1.e-3", 1e-3), (".5e1", 5.0), ("2", 2)],
)
def test_numbers_with_an_exponent_are_numbers(presets, text, value):
    recipe = read(presets, [f"extra.rate={text}"])
    assert recipe.extra == ExtraSection(rate=value)


def test_overrides_reach_any_depth_and_make_sections(presets):
    words = "optimizer.lr=2e-5 run.seeds=[1,2] model.path=a=b extra.rate=1 roles.judge=http://h:1"
    recipe = read(presets, words.split())
    assert (recipe.optimizer.lr, recipe.run.seeds, recipe.model.path) == (2e-5, (1, 2), "a=b")
    assert (recipe.extra, recipe.roles) == (ExtraSection(rate=1.0), {"judge": "http://h:1"})
    assert read(presets, ["extra.rate=1", "extra=null"]).extra is None


def test_a_key_of_a_nested_section_leaves_the_rest_of_its_default(presets):
    assert read(presets, ["limits.extra.size=9"]).limits.extra == ExtraSection(rate=0.25, size=9)
    assert read(presets, ["extra.size=9"]).extra == ExtraSection(rate=0.5, size=9)


def test_the_dump_loads_as_the_same_recipe(presets, tmp_path):
    recipe = read(presets, ["extra.rate=1e-7"])
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(recipe.dump(), sort_keys=False))
    assert read(presets, preset=str(again)) == recipe


def test_an_unknown_preset_names_the_known_ones(presets):
    message = refused(presets, preset="smal")
    assert "smal" in message
    assert "large, small" in message


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("optimizer.learning=1", "optimizer.learning: unknown key; known keys: name, lr, lr_warmup_steps"),
        ("optimizer.warmup_step=1", "did you mean optimizer.lr_warmup_steps?"),
        ("optimiser.lr=1", "optimiser: unknown key; did you mean optimizer?"),
        ("extra.rat=1", "did you mean extra.rate?"),
    ],
)
def test_an_unknown_key_names_the_nearest_known_one(presets, override, named):
    message = refused(presets, override)
    assert named in message
    assert f"--set {override.partition('=')[0]}: " in message


def test_a_named_algorithm_sets_what_the_preset_leaves_out(presets):
    algorithm = read(presets, ["algorithm.name=dapo"]).algorithm
    assert (algorithm.clip_ratio_high, algorithm.dynamic_sampling, algorithm.kl_loss_coef) == (0.28, True, 1e-3)


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("rollout.group_size=0", "rollout.group_size"),
        ("rollout.temperature=0", "rollout.temperature"),
        ("algorithm.name=grop", "algorithm: name 'grop' is no known algorithm; known: grpo, dr_grpo, dapo, "),
        ("run.seeds=[-1]", "run.seeds"),
        ("run.seeds=0", "run.seeds: must be a list, such as [0]"),
        ("run.seeds=[1, 1]", "run: seeds [1, 1] name one twice"),
        ("optimizer=5", "optimizer: must be a section, a mapping of keys (is 5)"),
        ("optimizer.lr=.nan", "optimizer.lr"),
        (
            "roles.judge=localhost:30000",
            "roles.judge is 'localhost:30000'; use http://HOST:PORT, model:PATH, python:a.b.f or trained",
        ),
        ("roles.policy=http://host:1", "roles.policy is always the model being trained"),
        ("model.device=gpu", "model.device: 'gpu' is neither auto, cpu, cuda nor cuda:N"),
        ("algorithm.clip_ratio_low=2", "algorithm.clip_ratio_low: Input should be less than or equal to 1"),
        ("algorithm.tis=[2, 3]", "algorithm: tis is"),
        ("demo.size=null", "demo.size"),
    ],
)
def test_a_wrong_value_names_its_key(presets, override, named):
    message = refused(presets, override)
    assert f"--set {override.partition('=')[0]}: " in message
    assert named in message


def test_the_override_or_the_file_is_blamed(presets):
    (presets / "small.yaml").write_text(PRESET.replace("lr: 1e-6", "lrr: 1e-6"))
    assert refused(presets, "optimizer.lr=1", "run.stps=2").splitlines() == [
        f"{presets / 'small.yaml'}: optimizer.lrr: unknown key; did you mean optimizer.lr?",
        "--set run.stps: unknown key; did you mean run.steps?",
    ]
    sections = refused(presets, "optimizer={lr: 1, lr_scheduler_type: none}", preset="large")
    assert sections.startswith("--set optimizer: optimizer.lr_scheduler_type: ")


def test_a_recipe_of_another_method_is_told_before_its_sections(presets):
    told = r"small\.yaml: method is 'demo', and this is 'other'; run demo, or"
    with pytest.raises(RecipeError, match=told) as caught:
        read(presets, ["demo.sise=3"], method="other")
    assert "sise" not in str(caught.value)
    assert read(presets, method="demo").method == "demo"


@pytest.mark.parametrize("value", ["true", "on", "no"])
def test_a_truth_value_is_no_number(presets, value):
    message = refused(presets, f"optimizer.lr={value}")
    assert "with --set optimizer.lr: optimizer: lr must be no truth value" in message
    assert "seeds must be no truth value" in refused(presets, f"run.seeds=[1, {value}]")
    for limits in (SandboxLimits, WorkspaceLimits):
        with pytest.raises(ValueError, match="files must be no truth value"):
            limits(files=True)


def test_a_number_with_a_zero_before_it_is_decimal(presets):
    assert read(presets, ["run.steps=010"]).run.steps == 10
    assert read(presets, ["run.steps=1_0"]).run.steps == 10
    assert "run.steps" in refused(presets, "run.steps=0x10")


def test_evaluation_needs_held_out_tasks(presets):
    assert "run.eval_every needs data.eval" in refused(presets, "data.eval=null", "run.eval_every=5")
    assert read(presets, ["data.eval=null"]).data.eval is None


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("optimizer.lr", "write key.path=value"),
        ("=5", "write key.path=value"),
        ("run..steps=5", "write key.path=value"),
        ("method.name=x", "method is a value, not a section"),
        ("run.seeds=[1", "not valid YAML"),
        ("run={steps: 1, steps: 2}", "the key 'steps' is there twice"),
    ],
)
def test_a_malformed_override_is_shown(presets, override, named):
    message = refused(presets, override)
    assert override in message
    assert named in message


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("a: [", "not valid YAML"),
        (b"a: \xff", "not valid YAML: 'utf-8' codec can't decode"),
        (f"{PRESET}\nmethod: demo", "the key 'method' is there twice"),
        ("- a", "must be a mapping"),
        ("", "must be a mapping"),
        (PRESET.replace("demo: {size: 3}", ""), "demo: missing"),
        (PRESET.replace("lr: 1e-6", ""), "optimizer.lr: missing; add it"),
        (PRESET.replace("name: grpo, ", ""), "algorithm.name: missing; add one of core/algorithms/named.py"),
    ],
)
def test_a_broken_file_is_named(presets, text, named):
    (presets / "broken.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(presets, preset="broken")
    assert "broken.yaml" in message
    assert named in message


def test_a_decay_without_an_end_ends_with_the_run(presets):
    decay = "optimizer.lr_scheduler_type=linear"
    constant, linear = read(presets), read(presets, [decay])
    assert (constant.optimizer.lr_decay_steps, linear.optimizer.lr_decay_steps) == (None, 5)
    several = read(presets, [decay, "run.steps=7", "algorithm.num_steps_per_rollout=3"])
    assert several.optimizer.lr_decay_steps == 21
    assert DemoRecipe.model_validate(linear.dump()) == linear


def test_a_rate_that_would_be_0_before_the_end_is_refused_with_both_keys(presets):
    message = refused(presets, "optimizer.lr_scheduler_type=linear", "optimizer.lr_decay_steps=4")
    assert "optimizer.lr_decay_steps is 4, and run.steps=5 takes 5 optimizer steps" in message
    assert "Set optimizer.lr_decay_steps=null" in message
    assert "a run that has begun keeps its decay, and ends with it" in message
    assert "has no place in lr_scheduler_type=constant" in refused(presets, "optimizer.lr_decay_steps=4")


def test_a_rate_that_never_reaches_lr_is_a_departure(presets):
    departures = [read(presets, [f"optimizer.lr_warmup_steps={n}"]).list_departures() for n in (5, 6)]
    assert [sum("the run ends before" in line for line in listed) for listed in departures] == [0, 1]


def test_groups_that_are_trained_whole_have_no_update_group_size():
    group = {"tasks_per_step": 1, "group_size": 4}
    with pytest.raises(ValueError, match=r"update_group_size=4 leaves none out of rollout\.group_size=4"):
        make_recipe(Recipe, rollout=group, algorithm={"name": "grpo", "update_group_size": 4})
    make_recipe(Recipe, rollout=group, algorithm={"name": "grpo", "update_group_size": 3})


def test_the_best_checkpoint_needs_evaluations(presets):
    assert "run.keep=best needs held-out evaluations; set run.eval_every" in refused(presets, "run.keep=best")
    assert read(presets, ["run.keep=best", "run.eval_every=1"]).run.keep == "best"


def test_a_preset_holds_only_what_differs_from_the_one_that_it_extends(presets):
    text = "extends: small\nfollows: somebody\nrun: {seeds: [3]}\nmodel: {dtype: bfloat16}\n"
    (presets / "other.yaml").write_text(text)
    recipe, below = read(presets, preset="other"), read(presets)
    found = (recipe.preset, recipe.follows, recipe.run.seeds, recipe.model.dtype)
    assert found == ("other", "somebody", (3,), "bfloat16")
    kept = [(each.run.steps, each.model.path, each.optimizer) for each in (recipe, below)]
    assert kept[0] == kept[1]
    (presets / "other.yaml").write_text("extends: nothing\n")
    with pytest.raises(RecipeError, match=r"other\.yaml: extends: no preset .*nothing\.yaml"):
        read(presets, preset="other")


def test_a_departure_has_the_values_of_the_run() -> None:
    def departures(line: str, lr: float = 1e-3) -> list[str]:
        recipe = make_recipe(Recipe, departures=[line], optimizer={"lr": lr})
        return type(recipe).model_validate(recipe.dump()).fill_departures()  # what is kept has the keys

    line = "rate {optimizer.lr}, group {rollout.group_size}, rank {model.lora.rank}, \\boxed{}"
    assert departures(line) == ["rate 0.001, group 2, rank None, \\boxed{}"]
    assert departures(line, lr=5e-7) == ["rate 5e-07, group 2, rank None, \\boxed{}"]
    with pytest.raises(ValueError, match=r"departures: \{optimizer.rate\} names no key"):
        departures("{optimizer.rate}")


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ({"name": "grpo", "gamma": 0.9}, r"gamma has no place in adv_estimator=grpo; set it to 1\.0"),
        ({"name": "rloo", "turn_coef": 0.5}, "turn_coef has no place in adv_estimator=rloo"),
        ({"name": "ppo", "advantage_clip": 1.0}, "advantage_clip has no place in adv_estimator=gae; set it to null"),
        ({"name": "gigpo", "advantage_clip": 1.0}, "advantage_clip has no place in adv_estimator=gigpo"),
        ({"name": "reinforce_plus_plus", "advantage_clip": 1.0}, "advantage_clip has no place in adv_estimator=reinf"),
        ({"name": "ppo", "split_advantage": True}, "split_advantage has no place in adv_estimator=gae"),
        (
            {"name": "reinforce_plus_plus", "dynamic_sampling": True},
            "dynamic_sampling has no place in adv_estimator=re",
        ),
        ({"name": "reinforce_plus_plus", "min_group_std": 0.1}, "min_group_std has no place in adv_estimator=reinf"),
        ({"name": "turn_grpo", "min_group_std": 0.1}, "min_group_std has no place in adv_estimator=turn_grpo"),
        ({"name": "ppo", "vf_coef": 0.0}, "adv_estimator=gae needs a value head, which vf_coef trains"),
        ({"name": "grpo", "kl_coef": 0.1}, "std_normalization scales a KL of any size to 1; for kl_coef, set std_norm"),
        ({"name": "echo", "rows": "turn"}, "observation_coef is for the tokens between the turns of a row"),
        ({"name": "grpo", "kl_loss_coef": 0.1, "kl_loss_type": "k1"}, "k1 has the same gradient whatever the start"),
        ({"name": "gigpo", "dynamic_sampling": True}, "dynamic_sampling has no place in adv_estimator=gigpo"),
        ({"name": "grpo", "vf_coef": 0.1}, r"vf_coef has no place in adv_estimator=grpo; set it to 0\.0"),
        ({"name": "gspo", "clip_ratio_c": 3.0}, "clip_ratio_c has no place in loss_mode=gspo"),
        ({"name": "cispo", "clip_ratio_c": 3.0}, "clip_ratio_c has no place in loss_mode=cispo"),
        ({"name": "dppo", "tis": [0, 2]}, "has the engine's log-probs already"),
        ({"name": "dppo", "loss_mode": "dppo_kl", "tis": [0, 2]}, r"set algorithm\.tis=null"),
        ({"name": "grpo", "loss_agg": "constant"}, "max_response_length is missing"),
        ({"name": "dapo", "max_response_length": None}, "max_response_length is missing"),
        ({"name": "dapo", "max_response_length": 100}, "overlong_buffer_len 4096 is above max_response_length 100"),
        ({"name": "grpo", "clip_ratio_low": 0.0}, r"algorithm\.clip_ratio_low"),
        ({"name": "grpo", "clip_ratio_high": -0.1}, r"algorithm\.clip_ratio_high"),
        ({"name": "grpo", "clip_ratio_c": 1.0}, r"algorithm\.clip_ratio_c"),
        ({"name": "grpo", "kl_loss_coef": -0.001}, r"algorithm\.kl_loss_coef"),
        ({"name": "grpo", "tis": [2.0, 0.5]}, r"tis is \(2\.0, 0\.5\)"),
        ({"name": "grpo", "tis": [0.2, 0.28]}, r"tis is \(0\.2, 0\.28\)"),
        ({"name": "grpo", "tis_mode": "mask"}, "tis_mode=mask has no place without tis"),
    ],
)
def test_what_an_algorithm_would_ignore_or_cannot_use_is_refused(algorithm, message):
    with pytest.raises(ValueError, match=message):
        make_recipe(Recipe, algorithm=algorithm)


def test_a_filter_that_leaves_no_token_is_refused():
    with pytest.raises(ValueError, match="top_k=0 leaves no token to sample; -1 switches it off"):
        make_recipe(Recipe, rollout={"tasks_per_step": 1, "group_size": 2, "top_k": 0})


def test_a_loss_whose_ratio_is_to_the_engine_corrects_old_rollouts_by_itself():
    ahead = {"tasks_per_step": 1, "group_size": 2, "ahead": 1}
    recipe = make_recipe(Recipe, rollout=ahead, algorithm={"name": "dppo"})
    assert recipe.algorithm.tis is None
    with pytest.raises(ValueError, match=r"trains on rollouts of older weights; set algorithm\.tis"):
        make_recipe(Recipe, rollout=ahead, algorithm={"name": "gspo"})


@pytest.mark.parametrize("role", ["../other", "a/b", "adapter"])
def test_a_trained_role_is_the_name_of_a_folder(role):
    with pytest.raises(ValueError, match="its checkpoint is a folder of that name; rename it"):
        make_recipe(Recipe, roles={role: "trained"})


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (PositiveInt, "-2", "greater than 0 (is '-2')"),
        (PositiveInt, "many", "a valid integer, unable to parse"),
        (Port, "99999", "less than or equal to 65535 (is '99999')"),
        (Share, "2", "less than or equal to 1 (is '2')"),
        (Device, "gpu", "'gpu' is neither auto, cpu, cuda nor cuda:N"),
        (FilePath, "nofile", "does not point to a file (is 'nofile')"),
    ],
)
def test_another_is_refused_under_the_name_of_its_option(
    kind: Any, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--it", type=argparse_type(kind))
    with pytest.raises(SystemExit):
        parser.parse_args(["--it", text])
    error = capsys.readouterr().err
    assert "argument --it: " in error
    assert message in error


def test_a_name_stands_for_the_address_of_its_service(tmp_path: Path) -> None:
    path = tmp_path / "addresses.yaml"
    path.write_text("retrieval: http://127.0.0.1:4000\n")
    assert read_addresses("m.addresses", str(path))("{retrieval}/retrieve") == "http://127.0.0.1:4000/retrieve"
    assert read_addresses("m.addresses", None)("http://127.0.0.1:1/x") == "http://127.0.0.1:1/x"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "m.addresses: .*No such file.*start the services"),
        ("[", "is no YAML"),
        ("- a", "must map names to URLs"),
        ("experts: http://127.0.0.1:1", "no address of 'retrieval'.*it has experts"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, text: str | None, said: str) -> None:
    path = tmp_path / "addresses.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(RecipeError, match=said):
        read_addresses("m.addresses", str(path))("{retrieval}/retrieve")


def test_a_step_takes_no_more_optimizer_steps_than_it_has_rollouts():
    group = {"tasks_per_step": 2, "group_size": 4}
    for kept, most in ((None, 8), (3, 6)):
        own = {"name": "grpo", "update_group_size": kept}
        make_recipe(Recipe, rollout=group, algorithm={**own, "num_steps_per_rollout": most})
        with pytest.raises(ValueError, match=f"num_steps_per_rollout: a step trains on {most} rollouts at most"):
            make_recipe(Recipe, rollout=group, algorithm={**own, "num_steps_per_rollout": most + 1})
