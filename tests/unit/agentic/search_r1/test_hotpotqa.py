"""The demonstrations on multi-hop questions: the annotator asks for what is named, and reads all gold paragraphs."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import pytest

from agentic.search_r1.hotpotqa import WORLD, find_paragraphs
from agentic.search_r1.rollout import SPEC, SearchR1
from agentic.search_r1.world import make_searcher
from core.config import RecipeError
from core.data import write_jsonl
from core.data.tasks import read_tasks
from core.policy.base import Roles
from core.types import Sampling, Task
from tests.unit.agentic.search_r1.conftest import load

PARAGRAPHS = {
    "Note G": "Ada (writer) wrote it.",
    "Ada (writer)": "She was born in London.",
    "Void": "Nothing.",
    "Empty": "Less.",
}
CONTEXT = "\n\n".join(f"Document {n}:\n{title}\n{text}" for n, (title, text) in enumerate(PARAGRAPHS.items(), 1))


def make_task(question: str, gold: list[str], answer: str = "London") -> Task:
    needles = [{"key": title, "value": PARAGRAPHS[title]} for title in gold]
    return Task(question, question, (answer,), context=CONTEXT, metadata={"needles": needles})


NAMED = make_task("Where was the author of Note G born?", ["Ada (writer)", "Note G"])
UNNAMED = make_task("Where was the first programmer born?", ["Ada (writer)"])
TOO_LONG = make_task("Which of Note G, Ada, Void and Empty has a birthplace?", list(PARAGRAPHS))


@pytest.fixture
def recipe(tmp_path: Path) -> Any:
    write_jsonl(tmp_path / "train.jsonl", [NAMED, UNNAMED, TOO_LONG])
    return SPEC.load("desk", [f"data.train={tmp_path / 'train.jsonl'}", "model.max_model_len=4096"])


@pytest.mark.parametrize(
    ("task", "queries"), [(NAMED, ["Note G", "Ada (writer)"]), (UNNAMED, [UNNAMED.question])], ids=["named", "unnamed"]
)
def test_the_annotator_asks_for_what_is_named_and_answers_when_he_has_read_it(
    task: Task, queries: list[str], recipe: Any, tokenizer: Any
) -> None:
    turns = list(WORLD.solve(Random(0), recipe, tokenizer, [task]))  # type: ignore[misc]
    said = [tokenizer.decode(completion) for _, completion in turns]
    assert said == [*(f"<search> {query}</search>" for query in queries), "<answer> London</answer>"]
    read = tokenizer.decode(turns[-1][0])
    for needle in task.metadata["needles"]:
        assert f"(Title: {needle['key']}) {needle['value']}" in read
    assert read.count("Doc 2") == len(queries)  # another paragraph beside each


def test_questions_with_more_gold_paragraphs_than_searches_are_left_out_and_counted(
    recipe: Any, tokenizer: Any, capsys: Any
) -> None:
    tasks = read_tasks(recipe.data.train, require_context=True)
    assert len(tasks) == 3
    assert len(list(WORLD.solve(Random(0), recipe, tokenizer, tasks))) == 3 + 2  # type: ignore[misc]
    assert "1 of 3 tasks need more turns" in capsys.readouterr().err
    for turns in islice(WORLD.demonstrate(Random(0), recipe, tokenizer), 20):  # type: ignore[misc]
        assert "which of note g" not in tokenizer.decode(turns[0][0]).casefold()
    with pytest.raises(RecipeError, match=r"search_r1\.max_turns"):
        list(WORLD.solve(Random(0), recipe, tokenizer, [TOO_LONG]))  # type: ignore[misc]


def test_a_task_without_gold_paragraphs_is_named(recipe: Any, tokenizer: Any) -> None:
    with pytest.raises(RecipeError, match="task mine has no gold paragraphs"):
        list(WORLD.solve(Random(0), recipe, tokenizer, [Task("mine", "Where?", ("here",))]))  # type: ignore[misc]


def test_of_paragraphs_with_one_title_that_with_the_evidence_is_gold() -> None:
    texts = ["Ada\nA name.", "Ada\nBorn in London.", "Ada\nWrote."]
    context = "\n\n".join(f"Document {n}:\n{text}" for n, text in enumerate(texts, 1))
    needles = [{"key": "Ada", "value": value} for value in ("London", "Wrote.", "Born")]
    task = Task("1", "Where?", ("London",), context=context, metadata={"needles": needles})
    assert find_paragraphs(task) == (texts[1:], texts[:1])


def test_another_format_than_that_of_the_demonstrations_is_refused(recipe: Any, tokenizer: Any) -> None:
    section = recipe.search_r1.model_copy(update={"format": "calls"})
    with pytest.raises(RecipeError, match=r"search_r1\.format"):
        next(WORLD.demonstrate(Random(0), recipe.model_copy(update={"search_r1": section}), tokenizer))  # type: ignore[misc]


async def test_the_baselines_search_for_the_question_or_for_nothing(service: str, tokenizer: Any) -> None:
    recipe, asked = load(service), []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return f"{'' if prompt.endswith('<answer>') else '<answer>'} London</answer>"

    for name, searches in {"question-first": 1, "no-search": 0}.items():
        method = WORLD.baselines[name](recipe, tokenizer)
        done = await method.rollout(NAMED, Roles({"policy": make_searcher(tokenizer, answer)}), Sampling())
        assert (done.reward, done.metrics["calls_search"], len(done.turns)) == (1.0, searches, searches + 1)
        assert done.log["queries"] == [NAMED.question] * searches
        assert ("<information>" in asked.pop()) == bool(searches)
        assert not asked


async def test_the_baselines_keep_the_role_that_reads_pages(
    service: str, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rollout(self: SearchR1, task: Task, roles: Roles, sampling: Sampling) -> list[str]:
        return [*roles]

    monkeypatch.setattr(SearchR1, "rollout", rollout)
    policy = make_searcher(tokenizer, str)
    for make in WORLD.baselines.values():
        roles = Roles({"policy": policy, "reader": policy})
        assert await make(load(service), tokenizer).rollout(NAMED, roles, Sampling()) == ["policy", "reader"]
