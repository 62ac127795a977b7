"""The presets load, and say what they are."""

from __future__ import annotations

import pytest

from agentic.memagent.rollout import SPEC
from core.config import RecipeError
from core.engine.train import main


def test_seed_follows_slime_agentic():
    recipe = SPEC.load("seed")
    section, algorithm = recipe.memagent, recipe.algorithm
    assert (section.train_update, section.train_final) == (True, False)
    assert (algorithm.std_norm, algorithm.credit) == (True, "split")
    assert (section.chunk_tokens, section.max_memory_tokens, recipe.rollout.group_size) == (5000, 1024, 16)


def test_paper_follows_the_paper():
    recipe = SPEC.load("paper")
    section, algorithm = recipe.memagent, recipe.algorithm
    assert (section.train_update, section.train_final) == (True, True)
    assert (algorithm.std_norm, algorithm.loss_unit, algorithm.kl_coef) == (False, "token", 0.001)


@pytest.mark.parametrize("name", ["seed", "paper"])
def test_our_own_options_are_off_where_a_source_is_followed(name):
    section = SPEC.load(name).memagent
    assert (section.gate_update, section.align, section.prompt_order, section.prompt_style) == (
        False,
        "none",
        "official",
        "official",
    )


@pytest.mark.parametrize("override", ["memagent.chunk_tokens=0", "memagent.max_chunks=0", "memagent.align=words"])
def test_a_wrong_value_names_its_key(override):
    with pytest.raises(RecipeError, match=override.split("=")[0]):
        SPEC.load("tiny", [override])


def test_a_mistake_on_the_command_line_is_an_error_message(capsys, tmp_path):
    assert main(["memagent", "--preset", "tyni", "--out", str(tmp_path / "run")]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: preset 'tyni'")
    assert "tiny" in captured.err
    assert not (tmp_path / "run").exists()
