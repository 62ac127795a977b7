"""A turn stops after a program, which is really run; what it showed is not trained; the last reply is rewarded."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import pytest

from agentic.retool.formats import find_program
from agentic.retool.rollout import SPEC
from core.config import RecipeError
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import RolloutError
from core.rollout.rows import rows_from_groups
from core.sandbox import Sandbox, SandboxUnavailable
from core.text.tokenizer import encode_text
from core.types import Sampling, Task
from tests.kit import split_row

PROGRAM = "So: <code> 6 * 7</code>"
ANSWER = "It is \\boxed{ 42}."


def shown(output: str) -> str:
    return f"\n<interpreter>\n{output}\n</interpreter>\n"


async def test_a_program_is_run_and_its_output_is_in_the_next_prompt(play: Any, tokenizer: Any) -> None:
    trajectory, policy = await play([f"{PROGRAM} never written", ANSWER])
    assert (trajectory.reward, trajectory.status, trajectory.log["end"]) == (1.0, "completed", "answered")
    first, second = trajectory.turns
    assert tokenizer.decode(first.completion.token_ids) == PROGRAM
    assert tokenizer.decode(first.prompt_ids).endswith("What is 6 blick 7?<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer.decode(second.prompt_ids[len(first.prompt_ids) :]) == PROGRAM + shown("42")
    assert trajectory.log["programs"] == [{"program": "6 * 7", "status": "ok", "output": "42"}]
    metrics = trajectory.metrics
    assert (metrics["turns"], metrics["calls_interpreter"], metrics["failed_calls"]) == (2, 1, 0)
    assert len({call.session for call in policy.calls}) == 1
    assert len({call.sampling.seed for call in policy.calls}) == 2


async def test_the_row_is_the_conversation_and_the_interpreter_is_masked(play: Any, tokenizer: Any) -> None:
    trajectory, _ = await play([PROGRAM, "<code>print(1)\nprint(2)</code>", ANSWER])
    wrong, _ = await play(["\\boxed{ 41}"])
    row = rows_from_groups([[trajectory, wrong]], std_normalization=False, split_advantage=False, rows="segment")[0]
    last = trajectory.turns[-1]
    assert row.tokens == last.prompt_ids + last.completion.token_ids
    assert row.advantage == 1.0  # of +1 and -1
    assert split_row(row, tokenizer) == [
        (1, PROGRAM),
        (0, shown("42")),
        (1, "<code>print(1)\nprint(2)</code>"),
        (0, shown("1\n2")),
        (1, f"{ANSWER}<|im_end|>"),
    ]
    assert {logprob for logprob, mask in zip(row.logprobs, row.loss_mask, strict=True) if mask} == {-0.5}


async def test_a_program_that_fails_or_writes_too_much_is_told_and_the_rollout_goes_on(play: Any) -> None:
    trajectory, _ = await play(
        ["<code>1 // 0</code>", "<code>print('x' * 5000)</code>", "no opening </code>", "<code>x = 1</code>", ANSWER],
        "retool.max_turns=5",
    )
    assert trajectory.reward == 1.0
    ran = [(each["status"], each["output"]) for each in trajectory.log["programs"]]
    assert [status for status, _ in ran] == ["error", "ok", "error", "ok"]
    for words, (_, output) in zip(
        ("ZeroDivisionError", "4001 bytes left out", "no program to run", "printed nothing"), ran, strict=True
    ):
        assert words in output
    assert trajectory.metrics["failed_calls"] == 2


async def test_limits_end_a_rollout_as_truncated(play: Any) -> None:
    trajectory, policy = await play([PROGRAM, PROGRAM, ANSWER], "retool.max_turns=2")
    assert (trajectory.log["end"], trajectory.status, trajectory.reward) == ("turn_limit", "truncated", -1.0)
    assert len(policy.calls) == 2
    trajectory, _ = await play([PROGRAM, f"{ANSWER} {'and ' * 300}"], "retool.max_tokens=50")
    assert (trajectory.log["end"], trajectory.status, trajectory.reward) == ("cut_reply", "truncated", 1.0)
    trajectory, _ = await play(["<code>'x' * 900</code>", ANSWER], "retool.context_tokens=150")
    assert (trajectory.log["end"], trajectory.status, trajectory.reward) == ("context_limit", "truncated", -1.0)


async def test_no_call_outgrows_the_context_whatever_the_policy_writes(build: Any, tokenizer: Any) -> None:
    """The programs are random texts, mostly broken; the interpreter is real."""
    method, rng = build("retool.context_tokens=160", "retool.max_turns=8", "retool.sandbox.keep_bytes=60"), Random(0)

    def respond(prompt: tuple[int, ...], sampling: Sampling) -> tuple[int, ...]:
        noise = tuple(rng.choices(range(len(tokenizer)), k=rng.randint(0, 30)))
        return encode_text(tokenizer, "<code>") + noise + encode_text(tokenizer, rng.choice(("</code>", "1</code>")))

    ends = set()
    for _ in range(12):
        policy = ScriptedPolicy(respond, decode=tokenizer.decode)
        trajectory = await method.rollout(Task("t", "What?", ("1",)), Roles({"policy": policy}), Sampling())
        ends.add(trajectory.log["end"])
        for turn in trajectory.turns:
            assert len(turn.prompt_ids) + len(turn.completion.token_ids) <= 160
        assert all(
            after.prompt_ids[: len(before.prompt_ids) + len(before.completion.token_ids)]
            == before.prompt_ids + before.completion.token_ids
            for before, after in zip(trajectory.turns, trajectory.turns[1:], strict=False)
        )
    assert ends & {"context_limit", "cut_reply"}


async def test_no_sandbox_is_a_failed_rollout_and_not_a_reward(
    build: Any, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def lost(self: Sandbox, code: str, timeout_s: float | None = None) -> Any:
        raise SandboxUnavailable("landlock: user namespaces were switched off")

    method = build()
    monkeypatch.setattr(Sandbox, "run", lost)
    with pytest.raises(RolloutError, match="user namespaces were switched off") as failure:
        await play([PROGRAM, ANSWER], method=method)
    assert failure.value.kind == "sandbox"


def test_a_sandbox_that_is_not_here_ends_the_run_before_it_begins(
    tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RecipeError, match=r"retool.backend: .*bwrap is not installed"):
        SPEC.build(SPEC.load("tiny", ["retool.backend=bubblewrap"]), tokenizer)


async def test_a_question_that_fills_the_context_fails_with_its_name(build: Any) -> None:
    method = build("retool.context_tokens=40")
    with pytest.raises(RolloutError, match=r"task t: field `question` takes \d+ tokens") as failure:
        await method.rollout(Task("t", "What? " * 40, ("1",)), Roles({}), Sampling())
    assert failure.value.kind == "overlong_question"


async def test_the_same_program_runs_once_where_results_are_remembered(
    build: Any, play: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    run = Sandbox.run

    async def counted(self: Sandbox, code: str, timeout_s: float | None = None) -> Any:
        ran.append(code)
        return await run(self, code, timeout_s)

    monkeypatch.setattr(Sandbox, "run", counted)
    await asyncio.gather(*(play([PROGRAM, ANSWER], method=method) for method in [build()] * 3))
    assert len(ran) == 1
    await play([PROGRAM, PROGRAM, ANSWER], "retool.remember=0")
    assert len(ran) == 3


@pytest.mark.parametrize(
    ("reply", "program"),
    [
        ("I think it is 4.", None),
        ("<code>1 + 1", None),
        ("<code>1 + 1</code>", "1 + 1"),
        ("<code>\n```python\nprint(1)\n```\n</code>", "print(1)"),
        ("I wrote <code>1, no: <code>2</code>", "2"),
        ("<code>12 <code> 3</code>", "3"),
        ("<code>print('<code>')</code>", "print('<code>')"),
        ("nothing opened </code>", ""),
        ("<code></code>", ""),
    ],
)
def test_the_program_of_a_reply(reply: str, program: str | None) -> None:
    assert find_program(reply) == program


def test_a_recipe_that_contradicts_itself_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"retool.context_tokens is 192, and model.max_model_len=100"):
        SPEC.load("tiny", ["model.max_model_len=100"])
    with pytest.raises(RecipeError, match=r"sandbox.memory_mb"):
        SPEC.load("tiny", ["retool.sandbox.memory_mb=1"])
