"""A program is the agent: it edits in its workspace and asks through the gateway, and its ends have names."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentic.coding.repairs.generate import draw_record
from agentic.coding.rollout import SPEC, CodingAgent
from core.config import RecipeError
from core.policy.base import PolicyError, Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import RolloutError
from core.types import Sampling, Task, Trajectory
from tests.optional.command_lines.actor import Actor, Line, call
from tests.unit.gateway.model import check

SCRIPT = Path(__file__).with_name("script_agent.py").read_text()
RECORD = draw_record("test", 3, "function")
TASK = Task("t", RECORD["prompt"], (RECORD["label"],), metadata=RECORD["metadata"])
REPAIR = call("bash", command=f"git apply - <<'END'\n{RECORD['metadata']['patch']}END")
DONE = "It is repaired."


def make(tokenizer: Any, *overrides: str, arguments: Sequence[str] = ("python3", "-c", SCRIPT, "{statement}")) -> Any:
    command = json.dumps({"arguments": list(arguments)})
    settings = ["coding.tools=[bash]", "coding.show_source=false", "coding.max_turns=20", "coding.max_tokens=4000"]
    room = ["coding.context_tokens=100000", "model.max_model_len=null", f"coding.command={command}"]
    return SPEC.build(SPEC.load("tiny", [*settings, *room, *overrides]), tokenizer)


async def play(lines: Sequence[Line], *overrides: str, **options: Any) -> tuple[Actor, Trajectory]:
    actor = Actor({RECORD["metadata"]["problem_statement"]: lines})
    method = make(actor.tokenizer, *overrides, **options)
    return actor, await method.rollout(TASK, Roles({"policy": actor.policy}), Sampling(seed=1))


async def test_a_program_repairs_as_our_own_loop_does_and_its_tokens_are_exact(isolation: None) -> None:
    look = "<think>\nLook.\n</think>\n\nI look." + call("bash", command="ls") + call("bash", command="cat *.py")
    actor, trajectory = await play([look, REPAIR, DONE])
    assert actor.has_played
    assert (trajectory.reward, trajectory.status, trajectory.log["verdict"]) == (1.0, "completed", "solved")
    assert trajectory.log["output"] == f"{DONE}\n"
    assert (len(trajectory.turns), check(actor, trajectory.turns)) == (3, 1)
    assert all(turn.trained for turn in trajectory.turns)
    ours, own = await play([look, REPAIR, DONE], "coding.command=null")
    assert trajectory.log["diff"] == own.log["diff"] != ""
    assert check(ours, own.turns) == 1


async def test_every_end_of_a_program_has_a_name_and_what_was_changed_is_graded(isolation: None) -> None:
    actor, turns = await play([REPAIR, REPAIR], "coding.max_turns=1")
    assert (turns.log["end"], turns.status, turns.reward, len(turns.turns)) == ("turn_limit", "truncated", 1.0, 1)
    assert turns.metrics["refused_turn_limit"] == 1
    assert check(actor, turns.turns) == 1
    stubborn = ("sh", "-c", 'python3 -c "$0" "$1"; sleep 999', SCRIPT, "{statement}")
    _, stopped = await play([REPAIR], "coding.max_turns=1", arguments=stubborn)  # else the test times out
    assert (stopped.log["end"], stopped.reward, len(stopped.turns)) == ("turn_limit", 1.0, 1)
    _, late = await play([REPAIR, call("bash", command="sleep 99")], "coding.time_limit_s=4")
    assert (late.log["end"], late.status, late.reward, len(late.turns)) == ("time_limit", "truncated", 1.0, 2)
    _, crashed = await play([REPAIR, call("bash", command="crash")])
    assert (crashed.log["end"], crashed.status, crashed.reward) == ("agent_failed", "truncated", 1.0)
    assert crashed.log["errors"] == "the agent has crashed\n"
    calm = ("sh", "-c", 'python3 -c "$0" "$1"; true', SCRIPT, "{statement}")  # ends with 0
    for more in ({}, {"arguments": calm}):
        _, full = await play([call("bash", command="seq 9999")], "coding.context_tokens=9000", **more)
        assert (full.log["end"], full.reward, full.log["verdict"]) == ("context_limit", 0.0, "tests_failed")
    _, lost = await play([call("bash", command="rm -rf .git"), DONE])
    assert (lost.log["end"], lost.log["verdict"], lost.reward) == ("answered", "no_diff", 0.0)
    wordy = ["sh", "-c", 'python3 -c "$0" "$1"; yes', SCRIPT, "{statement}"]
    _, flooded = await play([REPAIR, DONE], "coding.command.output_bytes=1000", arguments=wordy)
    assert (flooded.log["end"], flooded.reward) == ("output_limit", 1.0)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("no-such-program",), "no-such-program ended with exit code 127 after 0 turns"),
        (("sh", "-c", "echo oh no >&2; exit 3"), "exit code 3 after 0 turns .no request failed.: oh no"),
        (("true",), "exit code 0 after 0 turns"),
    ],
)
async def test_a_program_that_asks_nothing_says_nothing_about_the_policy(
    isolation: None, arguments: Sequence[str], said: str
) -> None:
    with pytest.raises(RolloutError, match=said) as failure:
        await play([DONE], arguments=arguments)
    assert failure.value.kind == "agent_failed"


async def test_a_problem_of_any_length_reaches_a_program_by_file(isolation: None) -> None:
    statement = RECORD["metadata"]["problem_statement"] + " long" * 30_000
    task = replace(TASK, metadata={**RECORD["metadata"], "problem_statement": statement})
    read = f"import sys; sys.argv[1] = open(sys.argv[1]).read()\n{SCRIPT}"
    actor = Actor({RECORD["metadata"]["problem_statement"]: [REPAIR, DONE]})
    roles, room = Roles({"policy": actor.policy}), "coding.context_tokens=400000"
    method = make(actor.tokenizer, room, arguments=("python3", "-c", read, "{question_file}"))
    trajectory = await method.rollout(task, roles, Sampling(seed=1))
    assert (trajectory.reward, trajectory.log["verdict"]) == (1.0, "solved")
    assert "question" not in trajectory.log["diff"]
    with pytest.raises(RolloutError, match=r"write \{question_file\} in place of \{statement\}"):
        await make(actor.tokenizer, room).rollout(task, roles, Sampling(seed=1))


async def test_a_policy_that_gives_no_answer_fails_the_rollout(isolation: None) -> None:
    def fail(prompt: str) -> str:
        raise PolicyError("unavailable", "no engine")

    calm = ("sh", "-c", 'python3 -c "$0" "$1" || true', SCRIPT, "{statement}")  # ends with 0 all the same
    for arguments in (("python3", "-c", SCRIPT, "{statement}"), calm):
        with pytest.raises(RolloutError, match="last request got no answer: no engine") as failure:
            await play([REPAIR, fail], arguments=arguments)
        assert failure.value.kind == "unavailable"


async def test_a_program_that_ends_since_another_role_is_full_says_nothing_about_the_policy(isolation: None) -> None:
    both = ("sh", "-c", 'python3 -c "$0" "$1"; MODEL=small exec python3 -c "$0" "$1"', SCRIPT, "{statement}")
    actor = Actor({RECORD["metadata"]["problem_statement"]: [DONE]})
    judge = ScriptedPolicy(lambda *_: PolicyError("too_long", "9 tokens of at most 8"))
    method = make(actor.tokenizer, "coding.command.model_roles={small: frozen:judge}", arguments=both)
    with pytest.raises(RolloutError, match=r"after 1 turns .other_role_full.: status 400"):
        await method.rollout(TASK, Roles({"policy": actor.policy, "judge": judge}), Sampling(seed=1))


async def test_a_program_that_finishes_its_session_keeps_its_turns_and_gets_no_more(isolation: None) -> None:
    finish = "import os, urllib.request as u; u.urlopen(os.environ['ANTHROPIC_BASE_URL'] + '/finish', b'')"
    _, trajectory = await play([REPAIR + call("bash", command=f'python3 -c "{finish}"'), DONE])
    assert (trajectory.log["end"], len(trajectory.turns), trajectory.reward) == ("agent_failed", 1, 1.0)
    assert "is closed" in trajectory.log["errors"]


async def test_a_program_reaches_its_session_and_nothing_else(isolation: None) -> None:
    """Neither another session's port, nor the host's own one of the same number."""
    probe = """
import os, sys, urllib.request as u
for url in sys.argv[1:]:
    try:
        print(u.urlopen(url, timeout=5).status)
    except Exception as error:
        print(type(getattr(error, "reason", error)).__name__, getattr(error, "code", ""))
"""
    url = "$(dirname $(dirname $ANTHROPIC_BASE_URL))"
    command = f"python3 -c '{probe}' {url}/health {url}/v1/models http://127.0.0.1:22 http://1.1.1.1 http://[::1]:80"
    actor, trajectory = await play([call("bash", command=command), DONE])
    shown = actor.tokenizer.decode(trajectory.turns[1].prompt_ids)
    assert "200\n200\nPermissionError \nPermissionError \nPermissionError \n" in shown


async def test_arguments_and_variables_are_filled_in_and_a_statement_is_no_shell(isolation: None) -> None:
    statement = 'It\'s $HOME; {key} `id` "x"\n--'
    task = Task("t", "-", ("",), metadata={**TASK.metadata, "problem_statement": statement})
    show = "import sys, os; print([*sys.argv[1:], os.environ['A']])"
    words = ("python3", "-c", f"{SCRIPT}\n{show}", "{statement}", "-u={openai_url}", "{anthropic_url}", "{x}")
    actor = Actor({"HOME": [DONE]})
    method = make(actor.tokenizer, "coding.command.environment.A=key={key}", arguments=words)
    trajectory = await method.rollout(task, Roles({"policy": actor.policy}), Sampling())
    said = ast.literal_eval(trajectory.log["output"].splitlines()[-1])
    assert (said[0], said[3]) == (statement, "{x}")
    port = said[2].split("/")[2]
    key = said[4].removeprefix("key=")
    assert said[1:3] == [f"-u=http://{port}/s/{key}/v1", f"http://{port}/s/{key}"]


def test_a_command_that_cannot_run_is_refused(tokenizer: Any) -> None:
    with pytest.raises(RecipeError, match=r"coding\.command needs coding\.backend auto"):
        make(tokenizer, "coding.backend=docker")
    wrong = {"/no/such": "that is there", "node_modules": "absolute", "/": "cover", "/tmp": "cover"}
    for path, problem in wrong.items():
        with pytest.raises(RecipeError, match=f"coding.command.paths: .*{problem}"):
            make(tokenizer, f"coding.command.paths=[{path}]")
    method = make(tokenizer, "coding.command.model_roles={small*: frozen:judge, haiku*: frozen:policy}")
    assert isinstance(method, CodingAgent)
    assert method.needs == ("judge",)
