"""Departures are differences between the settings of ours and of what was published."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from agentic.agentflow.rollout import SPEC as AGENTFLOW
from agentic.memagent.rollout import SPEC as MEMAGENT
from agentic.toolorchestra.rollout import SPEC as TOOLORCHESTRA
from benchmarks.aime.published import RELEASED, SLIME, agent_settings, protocol, single_settings
from benchmarks.harness.plan import is_saved
from benchmarks.harness.published import Protocol, compare_cells, mark_cell, save_published
from benchmarks.harness.run import build_result
from benchmarks.heldout.evaluate import describe_left_out
from benchmarks.questions import evaluate as questions
from benchmarks.tau2 import protocols as tau2
from core.report.summary import build_summary, join_departures
from core.report.table import PublishedScore
from core.runs.files import hold_lock
from core.runs.run_folder import RunFolder
from core.types import Sampling

from .conftest import CELL, make_result, make_sample

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
    assert mark_cell(CELL, PROTOCOL, {"prompt": "a"}, "M").notes == {
        "published_as": "M",
        "protocol": "theirs",
        "departures": ["tasks: not set; published: 1,280", "user: not set; published: gpt-5"],
    }
    assert mark_cell(CELL, PROTOCOL, {"prompt": "b"}).notes["protocol"] is None


def test_a_departure_that_not_all_variants_share_names_its_variants() -> None:
    noted = {"a": ["x", "y"], "b": ["x"], "c": ["x", "y"]}
    results = [make_result(name, "one", [1.0], notes={"departures": lines}) for name, lines in noted.items()]
    alone = [make_result("a", "two", [1.0], notes={"departures": ["z"]}), make_result("b", "two", [1.0])]
    assert list(join_departures([*results, *alone])) == ["x", "a, c: y", "z"], "old results tell of none"


def test_departures_are_those_of_the_results_that_are_there(folder: RunFolder) -> None:
    """ "tasks: 2" stood beside "tasks: 3" for good, once a second call had asked for more."""

    def evaluate(n: int) -> list[str]:
        cell = replace(CELL, n=n, repeats=None)
        (cell,) = compare_cells(folder, [cell], lambda cell: (PROTOCOL, {**PROTOCOL.settings, "tasks": cell.n}), ())
        if not is_saved(cell, folder):
            samples = [[make_sample(f"t{i}", 0)] for i in range(n)]
            folder.save_evaluation(build_result(cell, samples, scores={"official": [1.0] * n}))
        departures: list[str] = build_summary(folder)["departures"]
        return departures

    assert evaluate(2) == ["tasks: 2; published: 1,280"]
    assert evaluate(3) == ["tasks: 3; published: 1,280"]
    assert evaluate(2) == ["tasks: 3; published: 1,280"], "the result of three tasks is there, and stays"


def test_two_evaluations_of_a_run_save_one_after_the_other(folder: RunFolder) -> None:
    lock = hold_lock(folder.evaluation_path / ".published.lock")
    lock.__enter__()
    with ThreadPoolExecutor(1) as other:
        saving = other.submit(save_published, folder, (), ["x"])
        with pytest.raises(TimeoutError):
            saving.result(timeout=0.3)
        folder.save_published((), ["y"])
        lock.__exit__(None, None, None)
        saving.result()
    assert folder.published["departures"] == ["x", "y"]


def test_a_departure_that_is_gone_is_not_kept(folder: RunFolder) -> None:
    save_published(folder, (), ["full-context has no score on a at 7 tokens: b", "x"])
    save_published(folder, (), ["y"], ["full-context has no score on a at 7 tokens:"])
    assert folder.published["departures"] == ["y", "x"]


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
    assert "several calls in a command: the last one runs; published: all run" in lines
    assert "time for the steps: no limit; published: no step begins after 300 s" in lines
    assert not protocol("single", "paper").covers(single_settings("{question} Box it.", 16))


def test_what_the_released_search_service_leaves_out_is_a_departure_of_frames_and_hle() -> None:
    ours = questions.our_settings("hle", TOOLORCHESTRA.load("published"), SAMPLING, "0" * 64)
    (line,) = (line for line in questions.protocol("hle").list_departures(ours) if line.startswith("search service"))
    assert "published: the question's own pages of more than 100 characters" in line


def test_what_a_long_conversation_loses_is_a_departure_of_tau2() -> None:
    worlds = {"user": "gpt-5", "judge": "gpt-5", "max_steps": 200}
    cell = replace(CELL, variant=tau2.COMPAT, settings={"split": "base"}, repeats=1)
    ours = tau2.our_settings(cell, TOOLORCHESTRA.load("paper"), worlds, "1.0.1")
    (line,) = (line for line in tau2.protocol(tau2.COMPAT).list_departures(ours) if line.startswith("what does not"))
    assert line.endswith("the oldest messages but the first; published: the middle of the conversation")


def test_documents_that_lost_their_middle_are_told() -> None:
    (line,) = describe_left_out("dev", {"chunks_left_out": [22, 0, None]}, MEMAGENT.left_out)
    assert line.startswith("dev: 1 of 3 tasks lost 22 chunks of the middle of their document")
