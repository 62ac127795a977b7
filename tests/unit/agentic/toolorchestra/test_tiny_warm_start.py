"""The `tiny` preset's demonstrations: calls that the rollout can read, habits that are not the best routes."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from agentic.toolorchestra.experts import Experts, ModelPool
from agentic.toolorchestra.formats import FORMATS
from agentic.toolorchestra.prompts import tool_schemas
from agentic.toolorchestra.rollout import SPEC
from agentic.toolorchestra.tiny.demonstrations import HabitualAnnotator, demonstrate, found
from agentic.toolorchestra.tiny.scripted_experts import reply
from agentic.toolorchestra.tiny.start_model import TAGS, train_tokenizer
from agentic.toolorchestra.tiny.tasks import BEST, KINDS, PREFERENCES, generate
from agentic.toolorchestra.tiny.facts import ATTRIBUTES, THINGS, assign_split
from core.policy.base import Roles
from core.rewards.math import last_boxed
from core.text.tool_calls import CallError, ToolCall


@pytest.fixture(scope="module")
def turns():
    rng = Random(1)
    return [turn for _ in range(400) for turn in demonstrate(rng, HabitualAnnotator())]


def test_the_rollout_reads_their_calls(turns):
    config = SPEC.load("tiny").toolorchestra
    models = {name: m.model_copy(update={"url": "http://127.0.0.1:1/v1"}) for name, m in config.models.items()}
    config = config.model_copy(update={"models": models})
    schemas = tool_schemas(config, Experts(ModelPool(config, None).for_rollout(Roles({})), generate("dev", 1)[0]))
    calls = [FORMATS["compact"].call(f"{turn.thought}</think>{turn.call}", schemas) for turn in turns]
    assert not [call for call in calls if isinstance(call, CallError)]
    names = Counter(call.name for call in calls if isinstance(call, ToolCall))
    assert 0.35 < names["search"] / names["answer"] < 0.7


def test_they_think_of_kind_and_preference_before_each_call(turns):
    for turn in turns:
        kind, preference = turn.task.metadata["kind"], turn.task.metadata["preference"]
        assert turn.thought == f" {kind} {preference}"


def test_habits_know_nothing_of_what_is_best():
    annotator = HabitualAnnotator()
    best = [((kind, preference), route) for kind, routes in BEST.items() for preference, route in routes.items()]
    assert sum(annotator.favourite(*case) == route[-1] for case, route in best) == 3
    assert sum(annotator.searches(*case) == (len(route) == 2) for case, route in best) == 7
    assert len(best) == 15


def test_nothing_of_dev_or_test_is_in_them(turns):
    seen = " ".join(f"{turn.task.question} {' '.join(turn.lines)}" for turn in turns)
    assert {assign_split(name) for name in THINGS if f" {name}" in seen} == {"train"}


def test_a_search_finds_what_is_asked_in_a_form_that_experts_read():
    line = found(Random(3), "What is the price of lamp plus 12?")
    assert line.startswith("search search-1 = [1] lamp The price of lamp is ")
    value = int(line.split()[-1].strip("."))
    assert last_boxed(reply("abacus", f"answer: What is the price of lamp plus 12?\n{line}")) == str(value + 12)


def test_each_word_that_matters_is_one_token_and_tags_cannot_be_forged():
    tokenizer = train_tokenizer()
    for word in (*ATTRIBUTES, *THINGS, *KINDS, *PREFERENCES):
        assert len(tokenizer.encode(f" {word}")) == 1
    assert all(len(tokenizer.encode(tag, add_special_tokens=False)) == 1 for tag in TAGS)
