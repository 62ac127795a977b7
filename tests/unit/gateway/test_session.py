"""A session trains exactly what was sampled, whatever an agent does with the answers that it got."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from core.gateway.echoes import classify_echo, is_flattened
from core.gateway.history import Answer
from core.gateway.messages import AgentRequest, ContextFullError, GatewayError, WireCall, WireMessage
from core.gateway.session import GatewaySession, SessionSettings
from core.gateway.transcriber import Transcriber
from core.policy.base import PolicyError
from core.policy.scripted import ScriptedPolicy
from core.rollout.rows import make_rows
from core.text.tool_calls import ToolSchema
from core.types import Completion, Sampling, Turn

from .agents import ECHOES, answer_calls, echo
from .model import RandomModel, check, open_session
from .templates import FORMATS, TEMPLATES, make_tokenizer

PROPERTIES = {"query": {"type": "string"}, "count": {"type": "integer"}}
SEARCH = ToolSchema("search", "Search the web.", {"type": "object", "properties": PROPERTIES})
HISTORIES = ("sampled", "template")


def begin(history: str = "sampled", **options: Any) -> tuple[RandomModel, GatewaySession, list[WireMessage]]:
    """Return a random model of Qwen3's format, a session with it, and an agent's first message."""
    model = RandomModel(make_tokenizer("qwen3"), "hermes", **options)
    return model, open_session(model, history=history), [WireMessage("user", "hello")]


def open_to(policies: Any, tokenizer: Any, sampling: Sampling | None = None, **settings: Any) -> GatewaySession:
    """Open a session with one policy or with those of several roles."""
    policies = policies if isinstance(policies, dict) else {"policy": policies}
    wanted = SessionSettings(**{"max_context": 1000, **settings})
    return GatewaySession("s", policies, Transcriber(tokenizer), wanted, sampling or Sampling())


async def ask(session: GatewaySession, messages: Sequence[WireMessage], **fields: object) -> Answer:
    request = AgentRequest("policy", tuple(messages), **{"tools": (SEARCH,), **fields})  # type: ignore[arg-type]
    [answer] = await session.answer_all(request)
    session.mark_delivered(answer)
    return answer


@pytest.mark.parametrize(("name", "history"), [(name, history) for name in TEMPLATES for history in HISTORIES])
async def test_the_prompt_is_the_templates_own_rendering(name, history):
    """With `template` the text of a prompt is what the chat template makes of the messages, thoughts included."""
    model = RandomModel(make_tokenizer(name), FORMATS[name], thinking=0.7, calling=0.4, seed=3)
    session = open_session(model, history=history)
    wire = [WireMessage("system", "be brief"), WireMessage("user", "hello")]
    plain = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
    tokenizer = model.tokenizer
    for _ in range(8):
        answer = await ask(session, wire)
        tools = [SEARCH.to_openai()]
        shown = tokenizer.apply_chat_template(plain, tools=tools, tokenize=False, add_generation_prompt=True)
        if history == "template" or not any("</think>" in str(message["content"]) for message in plain):
            assert tokenizer.decode(answer.prompt_ids) == shown
        following = answer_calls(answer, model.rng)
        sampled = ("<think>\n" if model.opened else "") + tokenizer.decode(answer.completion.token_ids[:-1])
        wire += [replace(answer.message, reasoning=None), *following]
        plain += [{"role": "assistant", "content": sampled}]
        places = {call.call_id: place for place, call in enumerate(answer.message.calls)}
        following.sort(key=lambda message: places.get(message.call_id, 0))  # these templates show no ids
        plain += [{"role": message.role, "content": message.text} for message in following]
    turns = session.finish().turns
    check(model, turns)
    times = [second for turn in turns for second in turn.seconds or ()]
    assert len(times) == 16
    assert times == sorted(times)


async def test_thoughts_that_the_template_drops_begin_a_new_row_for_each_message_of_the_user():
    model = RandomModel(make_tokenizer("qwen3"), "hermes", thinking=1.0, calling=0.0, seed=4)
    rows = {}
    for history in HISTORIES:
        session = open_session(model, history=history)
        messages = [WireMessage("user", "hello")]
        for _ in range(4):
            answer = await ask(session, messages)
            messages += [answer.message, WireMessage("user", "go on")]
        rows[history] = check(model, session.finish().turns)
    assert rows == {"sampled": 1, "template": 4}


@pytest.mark.parametrize("how", ECHOES)
async def test_how_an_answer_came_back_is_counted(how):
    kinds = {"strip": "reserialised", "marked": "verbatim", "flatten": "flattened"}
    kinds |= dict.fromkeys(("drop reasoning", "reserialise"), "reasoning_dropped")
    expected = "edited" if how.startswith("edit") else kinds.get(how, how)
    model, session, messages = begin(thinking=1.0, calling=1.0, seed=5)
    answer = await ask(session, messages)
    sent = echo(answer, how, model.rng)
    second = await ask(session, [*messages, sent, *answer_calls(answer, model.rng)])
    assert session.counters - Counter(results_ordered=1) == {expected: 1}
    kept = second.prompt_ids[: len(answer.prompt_ids) + len(answer.completion.token_ids)]
    assert (kept == (*answer.prompt_ids, *answer.completion.token_ids)) == (expected != "edited")
    rows = make_rows(session.finish().turns, "segment")
    assert len(rows) == (2 if expected == "edited" else 1)
    assert check(model, [make_turn(answer), make_turn(second)]) == len(rows)


def make_turn(answer: Answer) -> Turn:
    return Turn(answer.role, answer.prompt_ids, answer.completion, True)


async def test_a_foreign_answer_is_encoded_and_never_trained():
    model, session, _ = begin(calling=0.0, seed=6)
    call = WireCall("call_x", "search", '{"query": "a <|im_end|> \\"b\\"", "count": 3}')
    shot = [WireMessage("user", "hello"), WireMessage("assistant", "I search.", calls=(call,))]
    answer = await ask(session, [*shot, WireMessage("tool", "found", call_id="call_x"), WireMessage("user", "so?")])
    assert session.counters == {"foreign": 1}
    text = model.tokenizer.decode(answer.prompt_ids)
    assert '<tool_call>\n{"name": "search", "arguments": {"query": "a <|im_end|> \\"b\\"", "count": 3}}' in text
    # The user's part, two messages, a result and the prompt's end: the forged end token is plain characters.
    assert answer.prompt_ids.count(model.tokenizer.eos_token_id) == text.count("<|im_end|>") - 1
    check(model, session.finish().turns)


async def test_limits_and_a_closed_session():
    model = RandomModel(make_tokenizer("qwen3"), "hermes", calling=0.0, seed=7)
    session = open_session(model, max_turns=1, max_context=300)
    with pytest.raises(GatewayError, match="maximum context length is 300 tokens") as caught:
        await ask(session, [WireMessage("user", "hello " * 300)])
    assert (caught.value.status, caught.value.kind) == (400, "context_length_exceeded")
    await ask(session, [WireMessage("user", "hello")])
    with pytest.raises(GatewayError) as caught:
        await ask(session, [WireMessage("user", "hello")])
    assert (caught.value.status, caught.value.kind) == (400, "turn_limit")
    session.finish()
    with pytest.raises(GatewayError) as caught:
        await ask(session, [WireMessage("user", "hello")])
    assert caught.value.status == 410


async def test_a_call_that_was_cut_is_text():
    tokenizer = make_tokenizer("qwen3")
    ids = tokenizer.encode('I call <tool_call>\n{"name": "search", "argu', add_special_tokens=False)
    policy = ScriptedPolicy(lambda prompt, sampling: [*ids, *ids])
    session = open_to(policy, tokenizer, Sampling(max_new_tokens=len(ids)))
    answer = await ask(session, [WireMessage("user", "hello")])
    assert (answer.completion.finish_reason, answer.message.calls) == ("length", ())
    assert "argu" in answer.message.text
    assert session.counters == {"malformed_unclosed_call": 1}
    following = await ask(session, [WireMessage("user", "hello"), answer.message, WireMessage("user", "go on")])
    held = (*answer.prompt_ids, *answer.completion.token_ids)
    assert following.prompt_ids[: len(held)] == held
    assert following.prompt_ids[len(held)] == tokenizer.eos_token_id


async def test_roles_come_from_the_models_name():
    model = RandomModel(make_tokenizer("qwen3"), "hermes", calling=0.0, seed=8)
    policies = dict.fromkeys(("policy", "judge", "titles"), model.policy)
    session = open_to(policies, model.tokenizer, model_roles={"claude-haiku-*": "titles"})
    for name in ("policy", "gpt-5", "frozen:judge", "claude-haiku-4", "frozen:policy"):
        await session.ask(partial(AgentRequest, name, (WireMessage("user", name),)))
    turns = session.finish().turns
    assert [(turn.role, turn.trained) for turn in turns] == [
        ("policy", True), ("policy", True), ("judge", False), ("titles", False), ("policy", False),
    ]  # fmt: skip
    with pytest.raises(GatewayError, match="no role 'expert'"):
        await open_session(model).ask(lambda: AgentRequest("frozen:expert", (WireMessage("user", "x"),)))


@pytest.mark.parametrize(
    ("ended", "failure", "at_limit"),
    [
        ([(2, None), (1, "timeout")], None, False),
        ([(2, None), (1, "too_long")], None, False),
        ([(3, "engine"), (1, "timeout"), (2, None)], "engine", False),
        ([(2, "engine"), (1, "too_long")], "engine", False),
        ([(1, "engine"), (2, "too_long")], None, True),
    ],
)
async def test_of_requests_that_overlap_the_last_one_that_was_made_counts(ended, failure, at_limit):
    made: list[asyncio.Future[Completion]] = []

    class Slow:
        async def generate(self, prompt_ids, sampling, session=None):
            made.append(asyncio.get_running_loop().create_future())
            return await made[-1]

    tokenizer = make_tokenizer("qwen3")
    session = open_to(Slow(), tokenizer)
    asked = [
        asyncio.create_task(session.answer_all(AgentRequest("policy", (WireMessage("user", f"{n}"),))))
        for n in range(len(ended))
    ]
    while len(made) < len(ended):
        await asyncio.sleep(0)
    for number, kind in ended:
        done = Completion((tokenizer.eos_token_id,), (-1.0,), "stop", "0")
        made[number - 1].set_exception(PolicyError(kind, "no")) if kind else made[number - 1].set_result(done)
        await asyncio.wait([asked[number - 1]])
    assert (session.failure and session.failure[0], session.reached_limit) == (failure, at_limit)
    await asyncio.gather(*asked, return_exceptions=True)


@pytest.mark.parametrize(("name", "at_limit"), [("policy", True), ("frozen:policy", True), ("frozen:judge", False)])
@pytest.mark.parametrize("size", [1, 1000])
async def test_the_full_context_of_another_role_is_no_limit_of_the_policy(name: str, at_limit: bool, size: int):
    full = ScriptedPolicy(lambda *_: PolicyError("too_long", "9 tokens of at most 8"))
    session = open_to({"policy": full, "judge": full}, make_tokenizer("qwen3"), max_context=size)
    with pytest.raises(ContextFullError):
        await session.ask(lambda: AgentRequest(name, (WireMessage("user", "x"),)))
    assert (session.reached_limit, session.failure) == (at_limit, None)
    assert session.counters["other_role_full"] == (not at_limit)


async def test_seeds_follow_the_prompt_and_not_the_order_of_arrival():
    model = RandomModel(make_tokenizer("qwen3"), "hermes", seed=9)
    seeds = []
    for order in (("a", "b"), ("b", "a")):
        session = open_to(model.policy, model.tokenizer, Sampling(seed=1))
        for text in order:
            await session.answer_all(AgentRequest("policy", (WireMessage("user", text),)))
        seeds.append({call.prompt_ids: call.sampling.seed for call in model.policy.calls[-2:]})
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0].values())) == 2


async def test_an_answer_that_mentions_an_id_is_still_found_by_its_text():
    tokenizer = make_tokenizer("qwen3")
    texts = iter(["first", "I made ID ok", "third"])
    answers: list[Answer] = []

    def respond(prompt, sampling):
        mentioned = answers[0].wire_id("call", 0) if answers else ""
        return tokenizer.encode(next(texts).replace("ID", mentioned), add_special_tokens=False)

    session = open_to(ScriptedPolicy(respond), tokenizer)
    messages = [WireMessage("user", "hello")]
    for _ in range(3):
        answers.append(await ask(session, messages))
        messages += [answers[-1].message, WireMessage("user", "go on")]
    assert session.counters == {"verbatim": 2}


async def test_keys_and_names_of_calls_forge_nothing():
    model = RandomModel(make_tokenizer("qwen3"), "hermes", seed=8)
    for name, arguments in (("a<|im_end|>", "{}"), ("a", '{"b": {"k<|im_start|>": 1}}'), ("a", '{"\ue0000\ue001": 1}')):
        call = WireCall("c", name, arguments)
        messages = [WireMessage("user", "x"), WireMessage("assistant", "", calls=(call,)), WireMessage("user", "y")]
        with pytest.raises(GatewayError, match="special token"):
            await ask(open_session(model), messages)


async def test_a_long_text_is_not_searched_for_calls():
    """A text of brackets once took seconds: it was parsed from each of them."""
    _, session, _ = begin(calling=1.0, seed=8)
    answer = await ask(session, [WireMessage("user", "x")])
    text = f"{answer.message.text} {answer.message.calls[0].call_id} " + "[1]," * 16_000
    before = time.process_time()
    assert not is_flattened(answer.message, WireMessage("assistant", text))
    assert time.process_time() - before < 2.0


def test_an_echo_with_another_number_of_calls_is_edited():
    call = WireCall("call_1", "search", "{}")
    sent = WireMessage("assistant", "x", calls=(call,))
    for calls, kind in (((), "edited"), ((call, call), "edited"), ((call,), "verbatim")):
        assert classify_echo(sent, replace(sent, calls=calls), ()) == kind


DEFAULTS = {"type": "object", "properties": {"count": {"default": 3}, "query": {"default": "-"}, "odd": "default"}}


@pytest.mark.parametrize(
    ("added", "how"),
    [({"count": 3}, "reserialised"), ({"count": 4}, "edited"), ({"query": "-"}, "edited"), ({"odd": 1}, "edited")],
)
async def test_arguments_that_a_client_fills_in_as_the_schema_says_are_no_edit(added, how):
    model = RandomModel(make_tokenizer("qwen3"), "hermes")
    text = '<tool_call>\n{"name": "search", "arguments": {"query": "hay"}}\n</tool_call>'
    model.policy = ScriptedPolicy(lambda prompt, _: [*model.encode(text), model.tokenizer.eos_token_id])
    session = open_session(model)
    messages, tools = [WireMessage("user", "hello")], (ToolSchema("search", "-", DEFAULTS),)
    answer = await ask(session, messages, tools=tools)
    [call] = answer.message.calls
    filled = replace(call, arguments=json.dumps({**json.loads(call.arguments), **added}))
    echoed = replace(answer.message, calls=(filled,))
    await ask(session, [*messages, echoed, WireMessage("tool", "found", call_id=call.call_id)], tools=tools)
    assert session.counters == {how: 1}
    assert check(model, session.finish().turns) == (2 if how == "edited" else 1)


@pytest.mark.parametrize("calling", [0.0, 1.0])
async def test_an_answer_that_was_lost_is_foreign(calling):
    """The client may have seen a part of it, so neither its ids nor its text bring it back."""
    model, session, messages = begin(calling=calling, thinking=0.0, seed=10)
    answer = await ask(session, messages)
    session.mark_lost(answer)
    await ask(session, [*messages, answer.message, *answer_calls(answer, model.rng)])
    assert session.counters - Counter(results_ordered=1) == {"unanswered": 1, "foreign": 1}
    assert check(model, session.finish().turns) == 1


async def test_an_id_of_another_session_is_foreign():
    model, session, _ = begin(calling=1.0, seed=11)
    other = GatewaySession("other", {"policy": model.policy}, Transcriber(model.tokenizer), SessionSettings(10_000))
    theirs = await ask(other, [WireMessage("user", "hello")])
    await ask(session, [WireMessage("user", "good morning")])
    await ask(session, [WireMessage("user", "hello"), theirs.message, *answer_calls(theirs, model.rng)])
    assert session.counters == {"foreign": 1}
    assert check(model, session.finish().turns) == 2


async def test_a_retry_throws_away_no_answer_that_was_continued():
    _, session, messages = begin(calling=0.0, seed=12)
    answer = await ask(session, messages)
    await ask(session, [*messages, answer.message, WireMessage("user", "go on")])
    await ask(session, messages, is_retry=True)
    assert [turn.trained for turn in session.finish().turns] == [True, True, True]


@pytest.mark.parametrize(("field", "value"), [("n", 2), ("wants_ids", True), ("wants_logprobs", True)])
async def test_what_only_a_reply_over_http_has_is_refused_in_this_process(field: str, value: object):
    _, session, messages = begin()
    with pytest.raises(GatewayError, match="is served over HTTP alone"):
        await session.ask(lambda: AgentRequest("policy", tuple(messages), **{field: value}))
    assert session.counters == {"refused_bad_request": 1}


async def test_an_aborted_call_leaves_no_turn():
    class AbortingPolicy:
        async def generate(self, prompt_ids, sampling, session=None):
            return Completion((1,), (0.0,), "abort")

    session = open_to(AbortingPolicy(), make_tokenizer("qwen3"))
    with pytest.raises(GatewayError) as caught:
        await ask(session, [WireMessage("user", "hello")])
    assert caught.value.status == 503
    assert session.finish().turns == ()


async def test_other_tools_begin_a_new_row():
    model, session, messages = begin(calling=0.0, seed=13)
    answer = await ask(session, messages)
    messages += [answer.message, WireMessage("user", "go on")]
    [answer] = await session.answer_all(AgentRequest("policy", tuple(messages), (replace(SEARCH, name="look_up"),)))
    session.mark_delivered(answer)
    assert "look_up" in model.tokenizer.decode(answer.prompt_ids)
    assert check(model, session.finish().turns) == 2


async def test_an_answer_behind_a_trimmed_head_keeps_its_ids():
    model, session, messages = begin(calling=0.0, thinking=0.0, seed=14)
    for _ in range(3):
        answer = await ask(session, messages)
        messages += [answer.message, WireMessage("user", "go on")]
    trimmed = await ask(session, messages[2:])
    assert contains(trimmed.prompt_ids, answer.completion.token_ids)
    assert not session.counters.keys() & {"edited", "foreign"}
    assert check(model, session.finish().turns) == 2


async def test_an_answer_is_continued_only_after_the_messages_that_it_answered():
    model, session, _ = begin(calling=1.0, thinking=0.0, seed=16)
    answer = await ask(session, [WireMessage("user", "apples")])
    edited = [WireMessage("user", "pears"), answer.message, *answer_calls(answer, model.rng)]
    moved = await ask(session, edited)
    text = model.tokenizer.decode(moved.prompt_ids)
    assert "pears" in text
    assert "apples" not in text
    assert contains(moved.prompt_ids, answer.completion.token_ids)
    assert check(model, session.finish().turns) == 2


async def test_an_answer_is_continued_only_where_it_was_given():
    """Two conversations share their last question, and one takes over the other's answer to it."""
    model, session, _ = begin(calling=0.0, thinking=0.0, seed=17)
    more = WireMessage("user", "go on")
    first = await ask(session, [WireMessage("user", "apples")])
    second = await ask(session, [WireMessage("user", "apples"), first.message, more])
    other = await ask(session, [WireMessage("user", "pears")])
    moved = await ask(session, [WireMessage("user", "pears"), other.message, more, second.message, more])
    text = model.tokenizer.decode(moved.prompt_ids)
    assert "pears" in text
    assert "apples" not in text
    assert contains(moved.prompt_ids, other.completion.token_ids)
    assert contains(moved.prompt_ids, second.completion.token_ids)
    assert check(model, session.finish().turns) == 2


async def test_thoughts_that_the_template_leaves_out_are_gone_before_an_answer_without_any():
    model, session, messages = begin("template", calling=1.0, thinking=1.0, seed=18)
    shown = []
    for thinking in (1.0, 0.0, 0.0):
        model.thinking = thinking
        answer = await ask(session, messages)
        shown.append("<think>" in model.tokenizer.decode(answer.prompt_ids))
        messages += [answer.message, *answer_calls(answer, model.rng)]
        if len(shown) == 2:
            messages.append(WireMessage("user", "and then?"))
    assert shown == [False, True, False]
    assert check(model, session.finish().turns) == 2


async def test_an_answer_behind_a_trimmed_head_has_its_own_thoughts_alone():
    model = RandomModel(make_tokenizer("qwen3_thinking"), "hermes", calling=1.0, seed=15)
    session = open_session(model)
    messages = [WireMessage("user", "hello"), WireMessage("user", "and then?")]
    for _ in range(2):
        answer = await ask(session, messages)
        messages += [answer.message, *answer_calls(answer, model.rng)]
    trimmed = await ask(session, messages[1:])
    assert model.tokenizer.decode(trimmed.prompt_ids).count("<think>") == 3
    assert check(model, session.finish().turns) == 2


def contains(ids: Sequence[int], part: Sequence[int]) -> bool:
    return any(tuple(ids[i : i + len(part)]) == tuple(part) for i in range(len(ids)))


async def test_a_session_whose_call_has_just_ended_is_not_idle():
    """A call may run for longer than a session may be idle, and the reply is written after its end."""
    model, session, messages = begin(calling=0.0, seed=12)
    model.policy._latency = 0.3
    asked, idle = asyncio.ensure_future(ask(session, messages)), list[float]()
    while not asked.done():
        await asyncio.sleep(0)
        idle.append(session.idle_s)
    assert max(idle) < 0.2
