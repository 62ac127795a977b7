"""The presets load, and say what they are."""

from __future__ import annotations

import pytest
import yaml

from agentic.memagent.config import PRESETS, load_recipe
from core.config import RecipeError
from core.engine.train import main

NAMES = sorted(path.stem for path in PRESETS.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_loads_and_names_what_it_follows(name):
    recipe = load_recipe(name)
    assert recipe.method == "memagent"
    assert recipe.preset == name
    assert recipe.follows
    assert recipe.departures
    assert recipe.model.max_model_len is None or recipe.model.max_model_len > recipe.memagent.chunk_tokens


def test_the_presets_of_the_issue_are_there():
    assert {"tiny", "seed", "paper"} <= set(NAMES)


def test_seed_follows_slime_agentic():
    recipe = load_recipe("seed")
    section, algorithm = recipe.memagent, recipe.algorithm
    assert (section.train_update, section.train_final) == (True, False)
    assert (algorithm.std_normalization, algorithm.split_advantage) == (True, True)
    assert (section.chunk_tokens, section.max_memory_tokens, recipe.rollout.group_size) == (5000, 1024, 16)


def test_paper_follows_the_paper():
    recipe = load_recipe("paper")
    section, algorithm = recipe.memagent, recipe.algorithm
    assert (section.train_update, section.train_final) == (True, True)
    assert (algorithm.std_normalization, algorithm.loss_agg, algorithm.kl_loss_coef) == (False, "token", 0.001)


@pytest.mark.parametrize("name", ["seed", "paper"])
def test_our_own_options_are_off_where_a_source_is_followed(name):
    section = load_recipe(name).memagent
    assert (section.gate_update, section.align, section.prompt_order, section.prompt_style) == (
        False,
        "none",
        "official",
        "official",
    )


def test_a_wrong_key_of_the_warm_start_names_the_right_one():
    with pytest.raises(RecipeError, match=r"did you mean warm_start\.steps"):
        load_recipe("tiny", ["warm_start.step=3"])


@pytest.mark.parametrize("override", ["memagent.chunk_tokens=0", "memagent.max_chunks=0", "memagent.align=words"])
def test_a_wrong_value_names_its_key(override):
    with pytest.raises(RecipeError, match=override.split("=")[0]):
        load_recipe("tiny", [override])


@pytest.mark.parametrize("name", NAMES)
def test_dry_run_prints_a_recipe_that_loads_as_the_same(name, capsys, tmp_path):
    overrides = ["optimizer.lr=3e-7", "run.seeds=[1, 2]"]
    arguments = [part for override in overrides for part in ("--set", override)]
    assert main(["memagent", "--preset", name, "--dry-run", *arguments]) == 0
    printed = capsys.readouterr().out
    path = tmp_path / "printed.yaml"
    path.write_text(printed)
    assert load_recipe(str(path)) == load_recipe(name, overrides)
    assert yaml.safe_load(printed)["optimizer"]["lr"] == 3e-7


def test_a_mistake_on_the_command_line_is_an_error_message(capsys, tmp_path):
    assert main(["memagent", "--preset", "tyni", "--out", str(tmp_path / "run")]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: preset 'tyni'")
    assert "tiny" in captured.err
    assert not (tmp_path / "run").exists()
