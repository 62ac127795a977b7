"""The `tiny` preset's demonstrations: calls that the rollout can read, habits that are not the best routes."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from agentic.toolorchestra.config import load_recipe
from agentic.toolorchestra.demonstrations import ANSWERERS, Annotator, demonstrate, found
from agentic.toolorchestra.experts import Experts, Models
from agentic.toolorchestra.formats import FORMATS
from agentic.toolorchestra.prompts import tool_schemas
from agentic.toolorchestra.scripted_experts import reply
from agentic.toolorchestra.tasks import BEST, KINDS, PREFERENCES, generate
from agentic.toolorchestra.tiny import TAGS, train_tokenizer
from agentic.toolorchestra.world import ATTRIBUTES, THINGS, split_of
from core.policy.base import Roles
from core.rewards.math import last_boxed
from core.tool_calls import CallError


@pytest.fixture(scope="module")
def turns():
    rng = Random(1)
    return [turn for _ in range(400) for turn in demonstrate(rng, Annotator())]


def test_the_rollout_reads_their_calls_and_refuses_the_malformed_ones(turns):
    config = load_recipe("tiny").toolorchestra
    models = {name: m.model_copy(update={"url": "http://127.0.0.1:1/v1"}) for name, m in config.models.items()}
    config = config.model_copy(update={"models": models})
    schemas = tool_schemas(config, Experts(Models(config, None), generate("dev", 1)[0], Roles({})))
    calls = [FORMATS["compact"].call(f"{turn.thought}</think>{turn.call}", schemas) for turn in turns]
    refused = Counter(call.kind for call in calls if isinstance(call, CallError))
    assert refused.keys() == {"missing_argument"}
    assert 0.01 < refused.total() / len(calls) < 0.06
    names = Counter(call.name for call in calls if not isinstance(call, CallError))
    assert 0.35 < names["search"] / names["answer"] < 0.65


def test_they_think_of_kind_and_preference_before_each_call(turns):
    for turn in turns:
        kind, preference = turn.task.metadata["kind"], turn.task.metadata["preference"]
        assert turn.thought == f" {kind} {preference}"


def test_habits_know_nothing_of_what_is_best():
    annotator, rng = Annotator(), Random(2)
    best = [
        sum(annotator.answerer(rng, kind, preference) == BEST[kind][preference][-1] for _ in range(300)) / 300
        for kind in KINDS
        for preference in PREFERENCES
    ]
    assert sum(best) / len(best) < 0.35
    assert min(best) > 0.03  # else nothing could be learned from trying
    assert {annotator.answerer(rng, "easy", "cheap") for _ in range(200)} == set(ANSWERERS)


def test_nothing_of_dev_or_test_is_in_them(turns):
    seen = " ".join(f"{turn.task.question} {' '.join(turn.lines)}" for turn in turns)
    assert {split_of(name) for name in THINGS if f" {name}" in seen} == {"train"}


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
