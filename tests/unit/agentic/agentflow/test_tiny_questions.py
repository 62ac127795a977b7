"""The tiny preset's questions: what they ask, what they need, and that nothing of a held-out one is in training."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from agentic.agentflow.tiny.demonstrations import CarelessAnnotator, demonstrate
from agentic.agentflow.tiny.facts import ENTITIES, UNKNOWN, look_up
from agentic.agentflow.tiny.questions import CODER, GENERATOR, ToyQuestion
from agentic.agentflow.tiny.tasks import KINDS, draw_question, generate, main, solve
from core.data import read_tasks


def test_the_right_steps_of_the_longest_question():
    question = ToyQuestion.read("Which item has number 37 times the age of boat?")
    age = look_up("age of boat")
    value = str(37 * int(age))
    assert question.next_step({}) == (GENERATOR, "age of boat")
    assert question.next_step({"age of boat": age}) == (CODER, f"37 * {age}")
    assert question.next_step({"age of boat": age, f"37 * {age}": value}) == (GENERATOR, f"item {value}")
    assert solve(question) == {"age of boat": age, f"37 * {age}": value, f"item {value}": look_up(f"item {value}")}
    assert question.needs == 3


@pytest.mark.parametrize(
    ("text", "steps"),
    [
        ("What is 12 minus 30?", {"12 - 30": "-18"}),
        ("What is the price of lamp?", {"price of lamp": look_up("price of lamp")}),
        ("Which item has number 12 minus 30?", {"12 - 30": "-18", "item -18": look_up("item -18")}),
    ],
)
def test_solutions(text, steps):
    assert solve(ToyQuestion.read(text)) == steps


def test_every_question_reads_back_and_needs_as_many_results_as_it_has_steps():
    rng = Random(0)
    for _ in range(300):
        _, question = draw_question(rng, "train")
        assert ToyQuestion.read(question.text) == question
        assert len(solve(question)) == question.needs


@pytest.mark.parametrize("text", ["", "What is love?", "What is 1 times 2 ?", "What is 1 over 2?"])
def test_other_questions_are_refused(text):
    with pytest.raises(ValueError, match="not a question"):
        ToyQuestion.read(text)


@pytest.mark.parametrize("query", ["price of gold", "colour of lamp", "37 * 2", "item lamp", "price of lamp?", ""])
def test_the_world_does_not_know_everything(query):
    assert look_up(query) == UNKNOWN


def test_no_fact_and_no_question_is_in_two_splits():
    steps, texts = {}, {}
    for split, count in (("train", 2048), ("dev", 64), ("test", 256)):
        tasks = generate(split, count)
        texts[split] = {task.question for task in tasks}
        assert len(texts[split]) == count
        solved = [solve(ToyQuestion.read(task.question)) for task in tasks]
        steps[split] = {step for steps in solved for step in steps if look_up(step) != UNKNOWN}
    for one, other in (("train", "dev"), ("train", "test"), ("dev", "test")):
        assert not texts[one] & texts[other]
        assert not steps[one] & steps[other]


def test_a_demonstration_asks_no_held_out_question():
    rng, held_out = Random(1), {task.question for split in ("dev", "test") for task in generate(split, 64)}
    asked = {turn.question for _ in range(1000) for turn in demonstrate(rng, CarelessAnnotator())}
    assert len(asked) > 800
    assert not asked & held_out


def test_a_demonstration_does_not_tell_what_the_world_knows():
    rng, told = Random(1), []
    for _ in range(1000):
        for turn in demonstrate(rng, CarelessAnnotator()):
            lines = [line.strip().partition(" = ") for line in turn.memory.splitlines() if line.startswith(" base")]
            told += [look_up(line[0].partition(" : ")[2]) == line[2] for line in lines if line[2] in ENTITIES]
    assert len(told) > 50
    assert sum(told) / len(told) < 0.1  # one in 62 by chance


def test_kinds_have_their_shares():
    kinds = Counter(task.metadata["kind"] for task in generate("train", 2000))
    for kind, (share, _) in KINDS.items():
        assert abs(kinds[kind] / 2000 - share) < 0.05
    assert sum(share for share, _ in KINDS.values()) == pytest.approx(1)


def test_the_command_line_writes_what_it_is_asked_for(tmp_path, monkeypatch):
    arguments = ["tasks", "--split", "dev", "--count", "5", "--out", str(tmp_path / "dev.jsonl")]
    monkeypatch.setattr("sys.argv", arguments)
    main()
    assert read_tasks(tmp_path / "dev.jsonl", require_context=False) == generate("dev", 5)


def test_more_questions_than_there_are_is_an_error(monkeypatch):
    monkeypatch.setattr("agentic.agentflow.tiny.tasks.KINDS", {"look_up": KINDS["look_up"]})
    with pytest.raises(ValueError, match="fewer than 300"):
        generate("dev", 300)
