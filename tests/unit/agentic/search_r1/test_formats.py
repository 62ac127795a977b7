"""Searches as calls of a tool, and answers in a box: read as the template writes them, with passages untrained."""

from __future__ import annotations

import pytest

from agentic.search_r1.prompts import CALL_INVALID, write_prompt
from agentic.search_r1.rollout import SearchR1
from agentic.search_r1.world import find_facts
from core.policy.base import Roles
from core.rollout.rows import make_rows
from core.types import Sampling, Task, Trajectory
from tests.kit import call, script_policy
from tests.unit.agentic.search_r1.conftest import load
from tests.unit.gateway.templates import make_tokenizer

THING = "blue lamp"
OWNER = find_facts(THING)["owner"]
TASK = Task("t", f"Who is the owner of the {THING}?", (OWNER,))
ANSWER = f"The passage names them: \\boxed{{{OWNER}}}"
HEAD, TAIL = "\n<|im_start|>user<tool_response>\n", "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


async def play(service: str, *replies: str) -> tuple[Trajectory, list[str]]:
    """Return the rollout, and what was shown after each turn but the last."""
    tokenizer = make_tokenizer("qwen3")
    form = "search_r1.format=calls", "search_r1.prompt=released"
    room = "search_r1.max_turns=4", "search_r1.max_tokens=500", "model.max_model_len=null"
    recipe = load(service, *form, *room)
    policy = script_policy(tokenizer, replies, last=False)
    done = await SearchR1(recipe, tokenizer).rollout(TASK, Roles({"policy": policy}), Sampling(seed=1))
    (row,) = make_rows(done.turns, "segment")
    assert sum(row.loss_mask) == sum(len(turn.completion.token_ids) for turn in done.turns)
    first = tokenizer.decode(done.turns[0].prompt_ids)
    assert '"name": "search"' in first
    assert "<search>" not in first
    assert TASK.question in first
    turns = [(*turn.prompt_ids, *turn.completion.token_ids) for turn in done.turns]
    return done, [tokenizer.decode(b.prompt_ids[len(a) :]) for a, b in zip(turns, done.turns[1:], strict=False)]


async def test_a_search_is_a_call_and_its_passages_are_the_tools_message(service: str) -> None:
    done, shown = await play(service, f"I do not know. {call('search', query=THING)}", ANSWER)
    assert (done.reward, done.status, done.log["answer"], done.log["queries"]) == (1.0, "completed", OWNER, [THING])
    assert done.metrics == {
        "turns": 2, "calls_search": 1, "failed_calls": 0, "invalid_actions": 0, "answered": 1.0, "exact_match": 1.0,
    }  # fmt: skip
    assert shown[0].startswith(f"{HEAD}Doc 1(Title: {THING}) {THING}: ")
    assert shown[0].endswith(TAIL)
    done, _ = await play(service, call("search", query=THING).removesuffix("\n</tool_call>"), ANSWER)
    assert (done.metrics["calls_search"], done.metrics["unended_call"]) == (1, 1)


@pytest.mark.parametrize(
    ("reply", "told"),
    [
        ("I think, and neither search nor answer.", f"\n<|im_start|>user\n{CALL_INVALID}<|im_end|>\n"),
        (call("search", question=THING), f"{HEAD}error: search needs the argument query"),
        (call("search", query=THING) * 2, f"{HEAD}error: call search once in a turn"),
    ],
)
async def test_another_turn_is_invalid_and_is_told_so(reply: str, told: str, service: str) -> None:
    done, shown = await play(service, reply, ANSWER)
    assert shown[0].startswith(told)
    assert (done.reward, done.metrics["invalid_actions"], done.metrics["calls_search"]) == (1.0, 1, 0)


def test_a_question_gets_a_question_mark_if_it_has_none() -> None:
    shown = [str(write_prompt("released", question)[1]) for question in ("Who", "Who?", "谁？")]
    assert shown == [" Who?\n", " Who?\n", " 谁？\n"]
