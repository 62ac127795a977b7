"""A task `route`: the look-up reward, the probability of a choice, and tasks whose subjects are in one split alone."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.toolorchestra.routellm import (
    GSM8K,
    PRICES,
    draw_agreeing,
    drop_copies,
    encode,
    make_task,
    make_tasks,
    read_routes,
    solve,
    split_routes,
)
from agentic.toolorchestra.routing import choice_probabilities, route_messages
from core.data import DataError, read_tasks, write_jsonl
from core.data.files import write_records
from core.text.conversation import Renderer
from core.types import Task
from tests.unit.agentic.toolorchestra.conftest import Tell, recipe

RECORD = {"set": "mmlu_law", "prompt": "Who may sue?", "weak": False, "strong": True}


def route(**changes: Any) -> Task:
    return make_task({**RECORD, **changes}, "t", 0.3)


@pytest.mark.parametrize(
    ("text", "weak", "strong", "reward"),
    [
        ("strong", False, True, 0.7),
        ("strong", True, False, -0.3),
        ("weak", True, True, 1.0),
        ("weak", False, True, 0.0),
        ("perhaps", True, True, -1.3),  # no model is named: one less than the worst choice
    ],
)
async def test_reward_is_right_minus_price(tell: Tell, text: str, weak: bool, strong: bool, reward: float) -> None:
    story = await tell([text], route(weak=weak, strong=strong), reward="outcome")
    assert story.trajectory.reward == pytest.approx(reward)
    assert story.metrics["calls_strong"] == (text == "strong")
    assert story.metrics["malformed"] == (text == "perhaps")
    assert len(story.trajectory.turns) == 1


@pytest.mark.parametrize("max_tokens", [1, 400])
async def test_a_template_that_closes_an_empty_thought_leaves_the_choice(tell: Tell, max_tokens: int) -> None:
    names = {"right": {"user": False, "tool": True}, "cost": {"user": 0.0, "tool": 0.3}}  # words of one token
    task = replace(route(), metadata={**route().metadata, **names})
    story = await tell(["tool"], task, reward="outcome", thinking=False, max_tokens=max_tokens)
    assert "</think>" in story.prompts[0]
    assert story.trajectory.reward == pytest.approx(0.7)


def test_probability_of_a_choice_is_exact_for_one_token() -> None:
    found = choice_probabilities("strong", ["weak", "strong"], (math.log(0.2),))
    assert found == pytest.approx({"p_strong": 0.2, "p_weak": 0.8})
    found = choice_probabilities("weak", ["weak", "strong"], (math.log(0.9),))
    assert found == pytest.approx({"p_strong": 0.1, "p_weak": 0.9})
    assert choice_probabilities("weak", ["weak", "strong"], (-0.1, -0.1)) == {}


async def test_prompt_shows_question_price_and_names(tell: Tell) -> None:
    preference = {"pref_vec": {"price": 1}}  # no feature of a group, but a route weighs by its own price
    story = await tell(["weak"], replace(route(), metadata={**route().metadata, **preference}))
    (prompt,) = story.prompts
    places = [prompt.index(part) for part in ("Who may sue?", "costs 0.3, which is very expensive", "weak or strong")]
    assert places == sorted(places)


async def test_long_questions_keep_their_end_and_the_cut_is_counted(tell: Tell, tokenizer: Any) -> None:
    story = await tell(["weak"], route(prompt="word " * 400 + "the end?"), budget={"total": 20})
    assert "the end?" in story.prompts[0]
    assert story.metrics["tokens_cut"] == len(tokenizer.encode("word " * 400 + "the end?")) - 20


@pytest.mark.parametrize("broken", [{"right": {"weak": True}}, {"cost": {"weak": 0.0}}, {"right": None}])
async def test_a_record_without_outcomes_is_a_bad_task(tell: Tell, broken: dict[str, Any]) -> None:
    task = Task("t", "q", ("weak",), metadata={**route().metadata, **broken})
    with pytest.raises(Exception, match=r"metadata\.right"):
        await tell(["weak"], task)


def make_records() -> list[dict[str, Any]]:
    subjects = [GSM8K, *(f"mmlu_{i}" for i in range(12))]
    return [
        {"set": subject, "prompt": f"{subject} {i}", "weak": i % 3 == 0, "strong": i % 2 == 0}
        for subject in subjects
        for i in range(20)
    ]


def test_splits_have_no_subject_and_no_prompt_in_common_and_each_subject_is_kept_out_by_one_fold() -> None:
    kept_out: list[str] = []
    for fold in range(4):
        parts = split_routes(make_records(), fold)
        subjects = [{r["set"] for r in records} - {GSM8K} for records in parts.values()]
        assert sum(map(len, subjects)) == len(set().union(*subjects)) == 12
        assert len({r["prompt"] for records in parts.values() for r in records}) == len(make_records())
        kept_out += {r["set"] for r in parts["test"]} - {GSM8K}
    assert sorted(kept_out) == sorted(f"mmlu_{i}" for i in range(12))


def test_a_training_prompt_with_a_passage_of_the_test_is_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    passage = " ".join(f"word{i}" for i in range(13))
    parts = {
        "train": [{**RECORD, "prompt": f"Who? {passage}"}, RECORD],
        "dev": [],
        "test": [{**RECORD, "prompt": f"Which? {passage}"}],
    }
    kept = drop_copies(parts)
    assert kept == {"train": [RECORD], "dev": [], "test": parts["test"]}
    assert "dropped from train" in capsys.readouterr().err


def test_tasks_have_every_price_and_the_best_choice(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "t.jsonl", make_tasks(make_records()[:4], "test"))
    tasks = read_tasks(tmp_path / "t.jsonl", require_context=False)
    assert len(tasks) == 4 * len(PRICES)
    assert len({task.task_id for task in tasks}) == len(tasks)
    assert [task.metadata["price"] for task in tasks[:4]] == [f"{price:g}" for price in PRICES]
    assert len({task.metadata["question_id"] for task in tasks[:4]}) == 1, "intervals take them together"
    assert (route().answers, route(weak=True).answers, route(strong=False).answers) == (
        ("strong",), ("weak",), ("weak",),
    )  # fmt: skip


def test_repeated_prompts_are_told_and_wrong_fields_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.jsonl"
    task = {"question": RECORD["prompt"], "metadata": {"kind": RECORD["set"], "weak": False, "strong": True}}
    write_records(path, [task, {**task, "weak": True}])
    assert read_routes(path) == [RECORD]
    assert "a prompt that is there twice (1 times)" in capsys.readouterr().err
    write_records(path, [{**task, "metadata": {"kind": "mmlu_law", "weak": "no", "strong": True}}])
    with pytest.raises(DataError, match="weak"):
        read_routes(path)


def test_downloaded_tasks_are_read_from_all_files_of_their_folder(tmp_path: Path) -> None:
    for i, name in enumerate(("test", "train")):
        task = Task(name, f"Question {i}", ("weak",), metadata={"kind": "mmlu_law", "weak": True, "strong": False})
        write_jsonl(tmp_path / f"{name}.jsonl", [task])
    fields = {"set": "mmlu_law", "weak": True, "strong": False}
    assert read_routes(tmp_path) == [{"prompt": f"Question {i}", **fields} for i in range(2)]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no records"):
        read_routes(tmp_path / "empty")


def test_a_demonstration_is_the_prompt_of_the_rollout_and_one_token(tokenizer: Any) -> None:
    config = recipe(max_tokens=1)
    prompt, reply = encode(config, tokenizer, route(), "strong")
    renderer = Renderer(tokenizer, {"enable_thinking": True})
    assert prompt == renderer.render(route_messages(config.toolorchestra, renderer, route())[0])
    assert len(reply) == 1


@pytest.mark.parametrize(
    ("weak", "label", "shown"),
    [(False, "strong", [19, 18, 17, 14]), (True, "weak", [1, 2, 3, 6])],
)
def test_supervised_training_is_shown_a_choice_as_often_as_it_gains(
    tokenizer: Any, weak: bool, label: str, shown: list[int]
) -> None:
    """The label is the same at every price, so nothing else would tell the policy that the price matters."""
    tasks = [make_task({**RECORD, "weak": weak}, "t", price) for price in PRICES]
    assert {answer for task in tasks for answer in task.answers} == {label}
    assert [len(list(solve(Random(0), recipe(max_tokens=1), tokenizer, [task]))) for task in tasks] == shown


def test_the_drawn_prompts_gain_as_much_by_a_strong_call_as_all_prompts() -> None:
    """Of four agreeing prompts one is drawn, and stands for all four."""
    outcomes = [(False, True), (True, True), (True, True), (False, False), (True, True)]
    records = [{"set": "a", "prompt": str(i), "weak": w, "strong": s} for i, (w, s) in enumerate(outcomes)]

    def gain(tasks: list[Task]) -> float:
        rewards = (
            {model: t.metadata["right"][model] - t.metadata["cost"][model] for model in t.metadata["cost"]}
            for t in tasks
        )
        return sum(reward["strong"] - reward["weak"] for reward in rewards)

    drawn, whole = draw_agreeing(records), [make_task(record, "x", 0.3) for record in records]
    assert len(drawn) == 2
    assert gain([make_task(record, "x", 0.3) for record in drawn]) == pytest.approx(gain(whole)) == pytest.approx(-0.5)
