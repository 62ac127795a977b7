"""The agent reads on within its context, sums up when a page does not fit, and is trained on what it sampled."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentic.compaction.rollout import END, HEADING, INSTRUCTIONS, REQUEST, SPEC, CompactingReader, split_pages
from core.config import RecipeError
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import RolloutError
from core.rollout.rows import make_rows
from core.text.tokenizer import encode_text
from core.types import Sampling, Task, Trajectory
from tests.kit import script_policy

FACTS = [" ant has anchor.", " bat has basket.", " cat has camera.", " dog has drum."]
ANSWER = "ant has anchor."
SUMMARY = " ant has anchor."


def make_task(pages: Sequence[str]) -> Task:
    return Task("t", "What does the ant have?", (ANSWER,), "\n\n".join(pages))


def make_reader(method: CompactingReader, answer_after: str = END, summary: str = SUMMARY) -> ScriptedPolicy:
    """A policy that reads until `answer_after` stands in its context, and then answers."""
    tokenizer = method.tokenizer

    def respond(prompt: tuple[int, ...], sampling: Sampling) -> tuple[int, ...]:
        text = tokenizer.decode(prompt)
        if REQUEST in text:
            reply = summary
        else:
            reply = f"\\boxed{{{summary}}}" if answer_after in text else "next"
        return (*encode_text(tokenizer, reply), tokenizer.eos_token_id)

    return ScriptedPolicy(respond, logprob=-0.5)


async def run(method: CompactingReader, task: Task, policy: Any) -> Trajectory:
    return await method.rollout(task, Roles({"policy": policy}), Sampling(seed=1))


async def test_a_task_that_fits_is_one_conversation(method):
    policy = make_reader(method)
    trajectory = await run(method, make_task(FACTS[:2]), policy)
    assert (trajectory.reward, trajectory.status) == (1.0, "completed")
    assert [turn.role for turn in trajectory.turns] == ["act"] * 4
    assert len(make_rows(trajectory.turns, "segment")) == 1
    shown = method.tokenizer.decode(trajectory.turns[-1].prompt_ids)
    assert [message.partition("\n")[2] for message in shown.split("<|im_end|>\n")[:-1]] == [
        "What does the ant have?" + INSTRUCTIONS, "next", FACTS[0], "next", FACTS[1], "next", END,
    ]  # fmt: skip
    assert len({call.session for call in policy.calls}) == 1


async def test_a_full_context_is_summed_up_and_the_summary_replaces_the_pages(method):
    pages = ["".join(FACTS)] * 7
    trajectory = await run(method, make_task(pages), make_reader(method))
    assert trajectory.reward == 1.0
    rows = make_rows(trajectory.turns, "segment")
    segments = [[trajectory.turns[place] for place in row.turns] for row in rows]
    assert trajectory.metrics["compactions"] == len(segments) - 1 >= 2
    for segment, following in pairwise(segments):
        assert segment[-1].role == "summary"
        assert following[0].role == "act"
        shown = method.tokenizer.decode(following[0].prompt_ids)
        messages = [message.partition("\n")[2] for message in shown.split("<|im_end|>\n")[:-1]]
        assert messages[:2] == ["What does the ant have?" + INSTRUCTIONS, HEADING + SUMMARY]
        assert messages[2:] in ([pages[0]], [END])
    shown = [turn for turn in trajectory.turns if turn.role == "act"]
    assert len(shown) == len(pages) + 2
    assert all(turn.trained for turn in trajectory.turns)


async def test_an_action_stands_behind_the_thoughts(tokenizer):
    sizes = ["compaction.max_action_tokens=60", "compaction.context_tokens=500", "model.max_model_len=600"]
    method = SPEC.build(SPEC.load("tiny", sizes), tokenizer)
    policy = script_policy(tokenizer, ["<think>next?</think>next", "<think>\\boxed{ ant has anchor.}"])
    trajectory = await run(method, make_task(FACTS[:2]), policy)
    assert (len(trajectory.turns), trajectory.reward, trajectory.log["answer"]) == (2, 0.0, "")


async def test_the_answer_ends_the_reading(method):
    trajectory = await run(method, make_task(FACTS), make_reader(method, answer_after=FACTS[0]))
    assert len(trajectory.turns) == 2
    assert trajectory.reward == 1.0


async def test_an_agent_that_never_answers_is_truncated_and_a_malformed_call_is_a_wrong_answer(method):
    trajectory = await run(method, make_task(FACTS[:2]), make_reader(method, answer_after="never"))
    assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == ("truncated", 0.0, 4)
    policy = ScriptedPolicy(lambda prompt, sampling: encode_text(method.tokenizer, "next next"))
    trajectory = await run(method, make_task(FACTS[:2]), policy)
    assert (trajectory.status, trajectory.reward, len(trajectory.turns)) == ("completed", 0.0, 1)


def test_an_empty_line_ends_a_page_whatever_ends_a_line() -> None:
    assert [len(split_pages(Task("t", "?", ("a",), f"One.{end}{end}Two."))) for end in ("\n", "\r\n", " ")] == [2, 2, 1]


async def test_a_task_without_pages_or_with_a_page_that_never_fits_fails_with_a_name(method):
    with pytest.raises(RolloutError, match="field `context` is empty") as failure:
        await run(method, make_task([" \n"]), make_reader(method))
    assert failure.value.kind == "no_context"
    told = r"page of \d+ tokens, which does not fit into compaction.context_tokens=120"
    with pytest.raises(RolloutError, match=told):
        await run(method, make_task([FACTS[0], FACTS[1] * 30]), make_reader(method))


def test_a_model_that_refuses_the_context_is_refused():
    with pytest.raises(RecipeError, match=r"compaction.context_tokens is 120, and model.max_model_len=100"):
        SPEC.load("tiny", ["model.max_model_len=100"])


@settings(max_examples=60, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 8), min_size=1, max_size=8), seed=st.integers(0, 99), context=st.integers(130, 240)
)
def test_no_call_outgrows_the_context_whatever_the_policy_writes(tokenizer, sizes, seed, context):
    overrides = [f"compaction.context_tokens={context}", "model.max_model_len=null"]
    method, rng = SPEC.build(SPEC.load("tiny", overrides), tokenizer), Random(seed)
    call = (*encode_text(tokenizer, "next"), tokenizer.eos_token_id)

    def respond(prompt: tuple[int, ...], sampling: Sampling) -> Sequence[int]:
        return call if rng.random() < 0.7 else rng.choices(range(len(tokenizer)), k=sampling.max_new_tokens)

    policy = ScriptedPolicy(respond, logprob=-0.5)
    trajectory = asyncio.run(run(method, make_task([FACTS[0] * size for size in sizes]), policy))
    for turn in trajectory.turns:
        limit = method.config.max_summary_tokens if turn.role == "summary" else method.config.max_action_tokens
        assert len(turn.prompt_ids) + limit <= context


EMPTY, WHOLE = "".join(FACTS[1:] + FACTS[1:2]), "".join(FACTS)
DOCUMENT = make_task([EMPTY, EMPTY, WHOLE, EMPTY, EMPTY, EMPTY])
KEPT, LOST = SUMMARY, " bat has basket."


def list_credit(trajectory: Trajectory) -> list[float | None]:
    """The rewards of the summaries, after a look at those of all other turns."""
    assert {turn.reward for turn in trajectory.turns if turn.role != "summary"} == {None}
    return [turn.reward for turn in trajectory.turns if turn.role == "summary"]


async def test_a_summary_that_can_keep_an_answer_earns_1_if_it_does(method):
    lost = await run(method, DOCUMENT, make_reader(method, summary=LOST))
    # Each of the four comes when the context holds two pages, or a summary and a page; the third page has the answer.
    assert list_credit(lost) == [None, 0.0, None, None]
    keeps = make_reader(method, summary=KEPT)
    assert list_credit(await run(method, make_task([WHOLE, *[EMPTY] * 5]), keeps)) == [1.0] * 4
    assert list_credit(await run(method, replace(DOCUMENT, answers=()), keeps)) == [None] * 4


async def test_a_state_is_the_place_in_the_document_and_what_the_context_holds_of_it(method):
    kept, lost = [await run(method, DOCUMENT, make_reader(method, summary=each)) for each in (KEPT, LOST)]
    again = await run(method, DOCUMENT, make_reader(method, answer_after=WHOLE, summary=KEPT))
    states = [[turn.state for turn in done.turns] for done in (kept, lost, again)]
    first = [turn.role for turn in kept.turns].index("summary")
    assert states[0][: first + 1] == states[1][: first + 1]
    assert not {*states[0][first + 1 :]} & {*states[1][first + 1 :]}, "the summary is what they know"
    assert states[0][: len(states[2])] == states[2]
    assert len({(turn.role, turn.state) for turn in kept.turns}) == len(kept.turns)


async def test_untrained_summaries_earn_nothing_and_leave_the_rest_trained(tokenizer):
    method = SPEC.build(SPEC.load("tiny", ["compaction.train_summary=false"]), tokenizer)
    trajectory = await run(method, DOCUMENT, make_reader(method, summary=LOST))
    assert {(turn.role, turn.trained) for turn in trajectory.turns} == {("act", True), ("summary", False)}
    assert {(turn.reward, turn.state) for turn in trajectory.turns if turn.role == "summary"} == {(None, None)}
