"""MemAgent's presets: which of our own options they use, and what a mistake says."""

from __future__ import annotations

import pytest

from agentic.memagent.rollout import SPEC
from core.train.command import main


@pytest.mark.parametrize("name", ["seed", "paper"])
def test_our_own_options_are_off_where_a_source_is_followed(name):
    section = SPEC.load(name).memagent
    options = (section.gate_update, section.align, section.prompt_order, section.prompt_style)
    assert options == (False, "none", "official", "official")


def test_a_mistake_on_the_command_line_is_an_error_message(capsys, tmp_path):
    assert main(["memagent", "--preset", "tyni", "--out", str(tmp_path / "run")]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("error: preset 'tyni'")
    assert "tiny" in captured.err
    assert not (tmp_path / "run").exists()
