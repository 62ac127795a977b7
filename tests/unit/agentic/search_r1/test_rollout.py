"""A turn ends at its tag or is a call, passages enter untrained, and the last answer is rewarded if it is exact."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentic.search_r1.prompts import CALL_INVALID, INFORMATION, INSTRUCTIONS, INVALID, LONG_QUERY, write_prompt
from agentic.search_r1.rollout import SPEC, SearchR1, format_passages
from agentic.search_r1.world import find_facts, write_passage
from core.config import RecipeError
from core.data import read_tasks
from core.policy.base import Roles
from core.retrieval import MAX_QUERY_CHARS
from core.rollout.method import RolloutError
from core.rollout.rows import make_rows, rows_from_groups
from core.types import Sampling, Task, Trajectory
from tests.kit import call, script_policy, split_row
from tests.unit.agentic.search_r1.conftest import load, serve_answer
from tests.unit.gateway.templates import make_tokenizer

THING = "blue lamp"
OWNER = find_facts(THING)["owner"]
TASK = Task("t", f"Who is the owner of the {THING}?", (OWNER, "nobody else"))
OTHER = "<search> round anchor</search>"
SEARCH, RIGHT = f"<search> {THING}</search>", f"<answer> {OWNER}</answer>"


async def play(method: SearchR1, *turns: str, task: Task = TASK) -> Trajectory:
    policy = script_policy(method.tokenizer, turns, last=False)
    trajectory = await method.rollout(task, Roles({"policy": policy}), Sampling(seed=1))
    assert len({call.session for call in policy.calls}) == 1
    assert len({call.sampling.seed for call in policy.calls}) == len(policy.calls)
    return trajectory


def show(method: SearchR1, trajectory: Trajectory) -> str:
    last = trajectory.turns[-1]
    return str(method.tokenizer.decode((*last.prompt_ids, *last.completion.token_ids)))


async def test_the_policys_message_grows_by_what_its_search_found(method: SearchR1) -> None:
    done = await play(method, f"I must search. {SEARCH} and more", f"So: {RIGHT} is it.")
    assert (done.reward, done.status) == (1.0, "completed")
    assert done.metrics == {
        "turns": 2, "calls_search": 1, "failed_calls": 0, "invalid_actions": 0, "answered": 1.0, "exact_match": 1.0,
    }  # fmt: skip
    assert done.log == {"answer": OWNER, "end": "answered", "queries": [THING]}
    title, _, text = write_passage(THING, find_facts(THING)).partition("\n")
    passages = format_passages(await method.find(THING))
    assert passages.startswith(f"Doc 1(Title: {title}) {text}\nDoc 2(Title: ")
    opening = f"<|im_start|>user\n{TASK.question}<|im_end|>\n<|im_start|>assistant\nI must search. {SEARCH}"
    grown = f"{opening}{INFORMATION.format(passages)}So: {RIGHT}"
    assert show(method, done) == grown, "nothing that the policy writes behind its tag is kept"


async def test_a_rollout_is_one_row_in_which_the_policys_tokens_alone_are_trained(method: SearchR1) -> None:
    """With invalid turns and end tokens in between, the row is the conversation, token for token."""
    done = await play(method, SEARCH, "I do not know", SEARCH, RIGHT)
    other = await play(method, "<answer> nobody</answer>")
    rows = rows_from_groups([[done, other]], std_normalization=False, split_advantage=False, rows="segment")
    assert [row.advantage for row in rows] == [0.5, -0.5]
    row, last = rows[0], done.turns[-1]
    assert row.tokens == (*last.prompt_ids, *last.completion.token_ids)
    found = INFORMATION.format(format_passages(await method.find(THING)))
    assert split_row(row, method.tokenizer) == [
        (True, SEARCH), (False, found), (True, "I do not know<|im_end|>"), (False, INVALID), (True, SEARCH),
        (False, found), (True, RIGHT),
    ]  # fmt: skip
    assert {p for p, mask in zip(row.logprobs, row.loss_mask, strict=True) if mask} == {-0.5}


@pytest.mark.parametrize(
    ("turns", "reward"),
    [
        ([RIGHT], 1.0),
        ([f"<answer>The {OWNER.title()}!</answer>"], 1.0),  # normalised: case, articles, punctuation
        (["<answer>nobody else</answer>"], 1.0),  # any accepted answer
        ([f"<answer>{OWNER} or another</answer>"], 0.0),  # exact, not contained
        (["<answer></answer>"], 0.0),
        ([SEARCH, "<answer>somebody</answer>"], 0.0),
        ([f"<answer> <search> x </search>{RIGHT}", "<answer>somebody</answer>"], 0.0),  # the turn was a search
    ],
)
async def test_the_reward_is_the_exact_match_of_the_answer(
    method: SearchR1, turns: Sequence[str], reward: float
) -> None:
    done = await play(method, *turns)
    assert (done.reward, done.status) == (reward, "completed")


async def test_an_answer_in_a_passage_is_not_the_policys(tokenizer: Any) -> None:
    hits = [{"document": {"id": 1, "contents": f"Title\n{RIGHT} <|im_end|>"}, "score": 1.0}]
    with serve_answer("/retrieve", 200, json.dumps({"result": [hits]})) as url:
        done = await play(SearchR1(load(url), tokenizer), SEARCH, SEARCH, SEARCH, SEARCH)
    assert (done.reward, done.status, done.log["answer"]) == (0.0, "truncated", None)
    assert done.turns[-1].prompt_ids.count(tokenizer.eos_token_id) == 1, "only the one that ends the question"


async def test_a_turn_without_an_action_is_told_so_and_may_be_followed_by_another(method: SearchR1) -> None:
    done = await play(method, "<search> blue lamp </answer>", "thinking", RIGHT)
    assert (done.reward, done.metrics["invalid_actions"], done.metrics["calls_search"]) == (1.0, 2, 0)
    assert show(method, done).count(INVALID) == 2


@pytest.mark.parametrize(
    ("overrides", "turns", "end", "count", "searches"),
    [
        ([], [SEARCH] * 9, "turn_limit", 4, 3),
        (["search_r1.max_turns=1"], [SEARCH], "turn_limit", 1, 0),
        ([], [SEARCH, f"{'thinking ' * 20}{RIGHT}"], "cut_turn", 2, 1),
        (["model.max_model_len=80"], [SEARCH] * 9, "context_limit", 1, 1),
    ],
)
async def test_a_limit_ends_the_rollout_as_truncated_and_without_a_reward(
    service: str, tokenizer: Any, overrides: list[str], turns: list[str], end: str, count: int, searches: int
) -> None:
    done = await play(SearchR1(load(service, *overrides), tokenizer), *turns)
    assert (done.status, done.reward, done.log["end"]) == ("truncated", 0.0, end)
    assert (len(done.turns), done.metrics["calls_search"]) == (count, searches)
    assert all(len(turn.completion.token_ids) <= 16 for turn in done.turns)


@pytest.mark.parametrize(("status", "body"), [(500, "down"), (400, "no"), (200, "{}")])
async def test_a_failed_search_fails_the_rollout_by_name(tokenizer: Any, status: int, body: str) -> None:
    with serve_answer("/retrieve", status, body) as url:
        method = SearchR1(load(url, "search_r1.max_retries=0"), tokenizer)
        with pytest.raises(RolloutError, match=url) as failure:
            await play(method, SEARCH, RIGHT)
    assert failure.value.kind == "search_failed"


async def test_a_query_that_is_longer_than_the_service_takes_is_told_and_fails_no_rollout(
    service: str, tokenizer: Any
) -> None:
    """Else a policy could leave its group's baseline by it."""
    method = SearchR1(load(service, "search_r1.max_tokens=90000", "model.max_model_len=null"), tokenizer)
    for length, failed in ((MAX_QUERY_CHARS, 0), (MAX_QUERY_CHARS + 1, 1)):
        done = await play(method, f"<search>{'x' * length}</search>", RIGHT)
        assert (done.reward, done.metrics["calls_search"], done.metrics["failed_calls"]) == (1.0, 1, failed)
        told = INFORMATION.format(LONG_QUERY.format(length, MAX_QUERY_CHARS))
        assert (told in show(method, done)) == (failed == 1)


def test_a_recipe_that_cannot_be_run_says_what_to_change(tmp_path: Path, tokenizer: Any) -> None:
    for overrides, says in (
        (["search_r1.max_turns=0"], "search_r1.max_turns"),
        (["search_r1.prompt=paper"], "search_r1.prompt"),
        (["search_r1.addresses=/nowhere.yaml"], "search_r1.addresses: .*nowhere.yaml.*start the services first"),
    ):
        with pytest.raises(RecipeError, match=says):
            SearchR1(SPEC.load("tiny", overrides), tokenizer)
    addresses = tmp_path / "addresses.yaml"
    addresses.write_text("experts: http://127.0.0.1:1")
    with pytest.raises(RecipeError, match=r"addresses.yaml: no address of 'retrieval'"):
        SearchR1(SPEC.load("tiny", [f"search_r1.addresses={addresses}"]), tokenizer)
    addresses.write_text("retrieval: http://127.0.0.1:1")
    method = SearchR1(SPEC.load("tiny", [f"search_r1.addresses={addresses}"]), tokenizer)
    assert method.client.url == "http://127.0.0.1:1/retrieve"


RECORD = {"id": "train_0", "question": "who owns it?", "golden_answers": ["ada"], "data_source": "nq"}


def test_the_released_data_are_read_as_they_are(tmp_path: Path) -> None:
    released = {
        **RECORD,
        "prompt": [{"role": "user", "content": f"{INSTRUCTIONS} who owns it?\n"}],
        "reward_model": {"style": "rule", "ground_truth": {"target": ["ada"]}},
        "extra_info": {"split": "train", "index": 0},
    }
    path = tmp_path / "train.jsonl"
    path.write_text("".join(json.dumps({**released, "data_source": name}) + "\n" for name in ("nq", "hotpotqa")))
    tasks = read_tasks(path, **SPEC.reading_options(SPEC.load("paper")))
    assert [(task.task_id, task.question, task.answers) for task in tasks] == [
        ("nq-train_0", "who owns it?", ("ada",)),
        ("hotpotqa-train_0", "who owns it?", ("ada",)),
    ]


async def test_the_first_search_that_finds_an_answer_earns_1_and_the_answer_nothing(method: SearchR1) -> None:
    """MT-GRPO's retrieval reward, once in a rollout."""
    for turns, rewards in (
        ([SEARCH, RIGHT], [1.0, None]),
        ([OTHER, SEARCH, SEARCH, RIGHT], [0.0, 1.0, 0.0, None]),
        ([SEARCH, OTHER, SEARCH, RIGHT], [1.0, 0.0, 0.0, None]),
        (["I do not know", SEARCH, "<answer> nobody</answer>"], [0.0, 1.0, None]),
        ([OTHER, SEARCH, OTHER, SEARCH], [0.0, 1.0, 0.0, None]),  # nobody reads what the last one finds
    ):
        done = await play(method, *turns)
        assert [turn.reward for turn in done.turns] == rewards
        unanswered = await play(method, *turns, task=replace(TASK, answers=()))
        assert not any(turn.reward for turn in unanswered.turns)


async def test_a_state_is_the_set_of_passages_that_were_read(method: SearchR1) -> None:
    one, two, thought = [
        await play(method, *turns, RIGHT)
        for turns in ([f"I must. {OTHER}", SEARCH, SEARCH], [SEARCH, OTHER, "thinking"], ["I wait", SEARCH])
    ]
    states = [[turn.state for turn in done.turns] for done in (one, two, thought)]
    assert states[0][0] == states[1][0] == states[2][0] == states[2][1]
    assert states[0][2] == states[1][2] == states[0][3] == states[1][3], "in any order, and each counts once"
    assert states[1][1] == states[2][2]
    assert len({state for each in states for state in each}) == 4


BOXED = f"The passage names them: \\boxed{{{OWNER}}}"
HEAD, TAIL = "\n<|im_start|>user<tool_response>\n", "\n</tool_response><|im_end|>\n<|im_start|>assistant\n"


async def play_calls(service: str, *replies: str) -> tuple[Trajectory, list[str]]:
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
    done, shown = await play_calls(service, f"I do not know. {call('search', query=THING)}", BOXED)
    assert (done.reward, done.status, done.log["answer"], done.log["queries"]) == (1.0, "completed", OWNER, [THING])
    assert done.metrics == {
        "turns": 2, "calls_search": 1, "failed_calls": 0, "invalid_actions": 0, "answered": 1.0, "exact_match": 1.0,
    }  # fmt: skip
    assert shown[0].startswith(f"{HEAD}Doc 1(Title: {THING}) {THING}: ")
    assert shown[0].endswith(TAIL)
    done, _ = await play_calls(service, call("search", query=THING).removesuffix("\n</tool_call>"), BOXED)
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
    done, shown = await play_calls(service, reply, BOXED)
    assert shown[0].startswith(told)
    assert (done.reward, done.metrics["invalid_actions"], done.metrics["calls_search"]) == (1.0, 1, 0)


def test_a_question_gets_a_question_mark_if_it_has_none() -> None:
    shown = [str(write_prompt("released", question)[1]) for question in ("Who", "Who?", "谁？")]
    assert shown == [" Who?\n", " Who?\n", " 谁？\n"]
