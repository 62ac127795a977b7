"""Departures are differences between the settings of ours and of what was published."""

from __future__ import annotations

import pytest

from agentic.agentflow.rollout import SPEC as AGENTFLOW
from agentic.memagent.rollout import SPEC as MEMAGENT
from benchmarks.aime.published import RELEASED, SLIME, agent_settings, protocol, single_settings
from benchmarks.harness.published import Protocol, join_departures, mark_cell, save_published
from benchmarks.heldout.evaluate import report_left_out
from core.report.table import PublishedScore
from core.runs.run_folder import RunFolder
from core.types import Sampling

from .conftest import CELL, make_result

PROTOCOL = Protocol("theirs", {"prompt": "a", "tasks": 1280, "user": "gpt-5"}, frozenset({"prompt"}))
SAMPLING = Sampling(temperature=0.7, top_p=0.99)


def test_a_departure_names_both_values() -> None:
    assert PROTOCOL.list_departures({"prompt": "a", "tasks": 1280, "user": "gpt-5"}) == []
    assert PROTOCOL.list_departures({"prompt": "b", "tasks": 12800, "seed": 3}) == [
        "prompt: b; published: a",
        "tasks: 12,800; published: 1,280",
        "user: not set; published: gpt-5",
        "seed: 3; published: not set",
    ]


def test_a_cell_follows_a_protocol_whose_essential_settings_it_has() -> None:
    assert mark_cell(CELL, PROTOCOL, {"prompt": "a"}, "M").notes == {"published_as": "M", "protocol": "theirs"}
    assert mark_cell(CELL, PROTOCOL, {"prompt": "b"}).notes == {"protocol": None}


def test_a_departure_that_not_all_variants_share_names_its_variants() -> None:
    assert join_departures({"a": ["x", "y"], "b": ["x"], "c": ["x", "y"]}) == ["x", "a, c: y"]


def test_what_was_published_for_other_data_stays(folder: RunFolder) -> None:
    save_published(folder, [PublishedScore("M", "one", 0, 0.5, "s"), PublishedScore("M", "two", 0, 0.5, "s")], ["x"])
    save_published(folder, [PublishedScore("N", "one", 0, 0.5, "s")], ["y", "x"])
    assert [(row["name"], row["data"]) for row in folder.published["rows"]] == [("N", "one"), ("M", "two")]
    assert folder.published["departures"] == ["y", "x"]


@pytest.mark.parametrize(("preset", "name"), [("published", RELEASED), ("seed", SLIME)])
def test_aime_under_a_published_preset_has_its_prompts_and_steps(preset: str, name: str) -> None:
    recipe, theirs = AGENTFLOW.load(preset), protocol("agent", preset)
    ours = agent_settings(recipe, recipe.agentflow.planner.next_step.max_tokens, SAMPLING, 3)
    assert theirs.name == name
    assert theirs.covers(ours)
    same = ("prompts", "max_steps", "reward", "frequency penalty")
    assert not [line for line in theirs.list_departures(ours) if line.startswith(same)]


def test_aime_under_the_training_preset_does_not_pass_for_the_evaluation() -> None:
    recipe, theirs = AGENTFLOW.load("paper"), protocol("agent", "paper")
    ours = agent_settings(recipe, 4096, SAMPLING, 16)
    assert not theirs.covers(ours)
    lines = theirs.list_departures(ours)
    assert {"max_steps: 3; published: 10", "prompts: official; published: released"} <= set(lines)
    assert {"samples of a problem: 16; published: 3", "frequency penalty: 0.0; published: 1.2"} <= set(lines)
    assert any(line.startswith("tool Ground_Google_Search_Tool: not set; published: gemini") for line in lines)
    assert not protocol("single", "paper").covers(single_settings("{question} Box it.", 16))


def test_documents_that_lost_their_middle_are_told(folder: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    result = make_result("trained", "dev", [1.0, 0.0, 0.0], measures={"chunks_left_out": [22, 0, None]})
    report_left_out(result, folder, MEMAGENT.left_out)
    (line,) = folder.published["departures"]
    assert line.startswith("trained, dev: 1 of 3 tasks lost 22 chunks of the middle of their document")
    assert f"note: {line}" in capsys.readouterr().out
