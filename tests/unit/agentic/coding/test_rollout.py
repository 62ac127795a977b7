"""The agent edits by tools in its workspace, ends in ways that have names, and is rewarded by its diff alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentic.coding.prompts import INSTRUCTIONS
from agentic.coding.repairs.generate import apply_patch, draw_record
from agentic.coding.rollout import SPEC, CodingAgent
from agentic.coding.tools import number_lines, run_tool
from agentic.coding.world import DONE, write_edit
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.rows import make_rows
from core.sandbox.workspace import IsolatedWorkspace, WorkspaceLimits
from core.text.tokenizer import encode_text
from core.types import Sampling, Task, Trajectory
from tests.kit import call, script_policy

RECORD = draw_record("test", 3, "function")
PATH, TEXT = next(iter(RECORD["metadata"]["repository"].items()))
RIGHT = apply_patch(TEXT, RECORD["metadata"]["patch"])
TASK = Task("t", RECORD["prompt"], (RECORD["label"],), metadata=RECORD["metadata"])
REPAIR = write_edit(PATH, TEXT, RIGHT)
ROOMY = ["coding.max_turns=20", "coding.tools=[bash, read, edit, delegate]", "coding.context_tokens=4000"]
ROOMY += ["model.max_model_len=null"]


def make(tokenizer: Any, *overrides: str) -> CodingAgent:
    recipe = SPEC.load("tiny", [*ROOMY, "coding.max_tokens=400", *overrides])
    method = SPEC.build(recipe, tokenizer)
    assert isinstance(method, CodingAgent)
    return method


async def play(method: CodingAgent, answers: Sequence[str], task: Task = TASK) -> Trajectory:
    policy = script_policy(method.tokenizer, answers, last=False)
    return await method.rollout(task, Roles({"policy": policy}), Sampling(seed=1))


def show(method: CodingAgent, trajectory: Trajectory, turn: int = -1) -> str:
    return str(method.tokenizer.decode(trajectory.turns[turn].prompt_ids))


async def test_an_edit_repairs_and_the_conversation_is_one_row(isolation: None, tokenizer: Any) -> None:
    method = SPEC.build(SPEC.load("tiny"), tokenizer)
    trajectory = await play(method, [REPAIR, DONE])
    assert (trajectory.reward, trajectory.status, trajectory.log["verdict"]) == (1.0, "completed", "solved")
    assert [turn.role for turn in trajectory.turns] == ["act", "act"]
    assert len(make_rows(trajectory.turns, "segment")) == 1
    shown = show(method, trajectory, 0)
    assert f"A test of {PATH} fails.\n{INSTRUCTIONS}{PATH}\n{number_lines(TEXT)}" in shown
    assert "tests/" not in shown, "the source is shown without its tests"
    assert trajectory.metrics["calls_edit"] == 1
    assert (await play(method, [DONE])).log["verdict"] == "tests_failed"


async def test_tools_show_what_they_did(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer)
    trajectory = await play(
        method,
        [
            call("read", path=PATH, first=1, last=1),
            call("bash", command="echo hi; echo no >&2; exit 4"),
            call("edit", path=PATH, line=999, text="x"),
            call("read", path="missing.py"),
            call("edit", path=PATH, line=1, last=2, text="a\nb") + call("edit", path=PATH, line=2, text=""),
            call("bash", command=f"head -1 {PATH}; git status --short"),
            DONE,
        ],
    )
    method_text = show(method, trajectory)
    for said in (
        number_lines(TEXT, 1, 1),
        "hi\nno\n\nexit code 4",
        "has the lines 1 to",
        "error: get:",
        f"a\n M {PATH}",
    ):
        assert said in method_text
    assert trajectory.metrics["calls_edit"] == 3


async def test_commands_and_outputs_are_bounded(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer, "coding.command_timeout_s=0.3", "coding.output_chars=60")
    commands = ("seq 999; sleep 9", "yes", "echo error: 1; exit 1")
    trajectory = await play(method, [*(call("bash", command=command) for command in commands), DONE])
    assert trajectory.metrics["failed_calls"] == 2, "the third ended by itself"
    shown = show(method, trajectory)
    assert "characters left out" in shown
    assert "took more than 0.3 seconds" in shown
    assert "wrote too much" in shown


async def test_a_line_ends_where_python_and_sed_end_it(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer)
    write = call("bash", command=r"printf 'a\fb\342\200\250c\r\nd\n' > new.py")
    answers = [write, call("edit", path="new.py", line=2, text="e"), call("read", path="new.py"), DONE]
    assert "1 a\x0cb\u2028c\n2 e\n" in show(method, await play(method, answers))


async def test_a_command_is_read_as_bash_reads_it(isolation: None, tokenizer: Any) -> None:
    commands = (
        r"""echo "print('a\nb')" > new.py; grep -c . new.py""",
        "[[ x == x ]] && echo {1..3}",
        "cat <<< it; exit 3",
    )
    shown = show(make(tokenizer), await play(make(tokenizer), [*(call("bash", command=c) for c in commands), DONE]))
    for said in ("\n1\n", "\n1 2 3\n", "\nit\n\nexit code 3"):
        assert said in shown


async def test_a_command_has_the_length_that_linux_gives_an_argument_whatever_is_quoted(isolation: None) -> None:
    async with IsolatedWorkspace(WorkspaceLimits(), "/testbed") as workspace:
        await workspace.start({"a.py": b""})
        for count, said in ((30_000, "120002 a.py\n"), (40_000, "Argument list too long")):
            command = "cat > a.py << 'END'\n" + "'a' " * count + "\n\nEND\nwc -c a.py"
            text, _ = await run_tool(workspace, "bash", {"command": command}, 30, 1000)
            assert said in text


async def test_an_edit_gives_no_file_two_encodings(isolation: None) -> None:
    async with IsolatedWorkspace(WorkspaceLimits(), "/testbed") as workspace:
        await workspace.start({"a.py": "# coding: gbk\ns = '中文'\n".encode("gbk")})
        for new, said in (("s = '好'", "error: a.py is not UTF-8 text"), ("s = 'good'", "edited")):
            edit = {"path": "a.py", "line": 1, "text": f"# coding: gbk\n{new}"}
            assert said in (await run_tool(workspace, "edit", edit, 30, 1000))[0]
        assert await workspace.get("a.py") == "# coding: gbk\ns = 'good'\ns = '中文'\n".encode("gbk")


async def test_every_end_has_a_name_and_what_was_changed_is_graded(isolation: None, tokenizer: Any) -> None:
    look = call("bash", command="true")
    turns = await play(make(tokenizer, "coding.max_turns=2"), [REPAIR, look])
    assert (turns.log["end"], turns.status, turns.reward) == ("turn_limit", "truncated", 1.0)
    context = await play(make(tokenizer, "coding.context_tokens=700"), [REPAIR, call("bash", command="seq 300"), look])
    assert (context.log["end"], context.reward) == ("context_limit", 1.0)
    cut = await play(make(tokenizer, "coding.max_tokens=40"), ["word " * 90])
    assert (cut.log["end"], cut.log["verdict"]) == ("cut_answer", "tests_failed")
    lost = await play(make(tokenizer), [call("bash", command="rm -rf .git"), DONE])
    assert (lost.log["end"], lost.log["verdict"], lost.reward) == ("answered", "no_diff", 0.0)
    method = make(tokenizer, "coding.time_limit_s=0.2")
    slow = ScriptedPolicy(lambda prompt, sampling: encode_text(method.tokenizer, DONE), latency=2.0)
    late = await method.rollout(TASK, Roles({"policy": slow}), Sampling(seed=1))
    assert (late.log["end"], late.turns) == ("time_limit", ())


async def test_a_sub_agent_has_no_edit_and_is_a_segment(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer)
    answers = [call("delegate", question="Where is it?"), REPAIR, "It is in the loop.", DONE]
    trajectory = await play(method, answers)
    assert [turn.role for turn in trajectory.turns] == ["act", "subagent", "subagent", "act"]
    assert len(make_rows(trajectory.turns, "segment")) == 2
    assert trajectory.metrics["malformed_unknown_tool"] == 1
    assert "It is in the loop." in show(method, trajectory)
    assert trajectory.log["verdict"] == "tests_failed"


async def test_a_full_context_is_summed_up(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer, "coding.context_tokens=900", "coding.max_summary_tokens=64")
    answers = [call("bash", command="seq 150"), "I have counted.", REPAIR, DONE]
    trajectory = await play(method, answers)
    assert [turn.role for turn in trajectory.turns] == ["act", "summary", "act", "act"]
    assert len(make_rows(trajectory.turns, "segment")) == 2
    assert "I have counted." in show(method, trajectory)
    assert trajectory.reward == 1.0


async def test_a_summary_ends_at_the_time_limit(isolation: None, tokenizer: Any) -> None:
    """It would end 0.2 seconds later, and be trained."""
    overrides = ("coding.context_tokens=900", "coding.max_summary_tokens=64", "coding.time_limit_s=1")
    method = make(tokenizer, *overrides)
    answer = encode_text(tokenizer, call("bash", command="seq 150"))
    slow = ScriptedPolicy(lambda prompt, sampling: (*answer, tokenizer.eos_token_id), latency=0.6)
    trajectory = await method.rollout(TASK, Roles({"policy": slow}), Sampling(seed=1))
    assert trajectory.log["end"] == "time_limit"
    assert [turn.role for turn in trajectory.turns] == ["act"]
