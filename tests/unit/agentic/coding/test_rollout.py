"""The agent edits by tools in its workspace, ends in ways that have names, and is rewarded by its diff alone.

Then the other forms: with `fences` a reply's last bash block is run, with `rewrite` its last Python block is the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from agentic.coding.mbpp import WORLD
from agentic.coding.prompts import FENCE_INSTRUCTIONS, INSTRUCTIONS, REWRITE_INSTRUCTIONS
from agentic.coding.repairs.generate import apply_patch, draw_record, write_patch
from agentic.coding.rollout import SPEC, CodingAgent
from agentic.coding.tools import number_lines, run_tool
from agentic.coding.world import DONE, write_edit
from core.config import RecipeError
from core.policy.base import Roles
from core.policy.scripted import ScriptedPolicy
from core.rollout.method import RolloutError
from core.rollout.rows import make_rows
from core.sandbox.workspace import IsolatedWorkspace, WorkspaceLimits
from core.text.tokenizer import encode_text
from core.types import Sampling, Task, Trajectory
from tests.kit import call, script_policy
from tests.unit.gateway.templates import make_tokenizer

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


WRITE = f"I repair it.\n```bash\ncat > {PATH} <<'END'\n{RIGHT}END\necho written\n```\n"


def replace_metadata(task: Task, **metadata: Any) -> Task:
    return replace(task, metadata={**task.metadata, **metadata})


def make_form(form: str, tokenizer: Any) -> CodingAgent:
    room = "coding.context_tokens=8000", "coding.max_tokens=2000"
    return make(tokenizer, f"coding.format={form}", "coding.tools=[bash]", *room)


async def play_form(*replies: str, form: str = "fences", task: Task = TASK) -> tuple[Trajectory, list[str]]:
    """Return the rollout of these replies, and its prompts as texts."""
    method = make_form(form, make_tokenizer("qwen3"))
    trajectory = await play(method, replies, task)
    return trajectory, [show(method, trajectory, place) for place in range(len(trajectory.turns))]


async def test_a_bash_block_is_run_and_its_output_follows(isolation: None) -> None:
    trajectory, prompts = await play_form(WRITE, "Done.")
    assert (trajectory.reward, trajectory.log["verdict"], trajectory.log["end"]) == (1.0, "solved", "answered")
    assert FENCE_INSTRUCTIONS in prompts[0]
    assert "# Tools" not in prompts[0]
    assert prompts[1].endswith("<|im_start|>user\n```output\nwritten\n```<|im_end|>\n<|im_start|>assistant\n")
    assert trajectory.metrics["calls_bash"] == 1
    (row,) = make_rows(trajectory.turns, "segment")
    assert sum(row.loss_mask) == sum(len(turn.completion.token_ids) for turn in trajectory.turns)


async def test_an_output_that_the_model_makes_up_is_cut_off(isolation: None) -> None:
    trajectory, prompts = await play_form("```sh\nexit 3\n```\n```output\nall tests pass", "```python\nprint(1)\n```")
    assert "all tests pass" not in prompts[1]
    assert "```output\n\nexit code 3\n```<|im_end|>" in prompts[1]
    assert (trajectory.log["end"], trajectory.metrics["turns"]) == ("answered", 2)


async def test_a_python_block_replaces_the_file(isolation: None) -> None:
    trajectory, prompts = await play_form(f"Repaired:\n```python\n{RIGHT}```\nDone.", form="rewrite")
    assert (trajectory.reward, trajectory.log["verdict"], trajectory.log["end"]) == (1.0, "solved", "answered")
    assert f"```python\n{TASK.metadata['repository'][PATH]}```\n{REWRITE_INSTRUCTIONS}" in prompts[0]
    trajectory, _ = await play_form("It is fine as it is.", form="rewrite")
    assert (trajectory.reward, trajectory.log["diff"], trajectory.log["end"]) == (0.0, "", "answered")


async def test_the_fence_around_a_file_is_closed_without_its_last_line_break(isolation: None) -> None:
    _, prompts = await play_form("Fine.", form="rewrite", task=replace_metadata(TASK, repository={PATH: "x = 1"}))
    assert "```python\nx = 1\n```\n" in prompts[0]


@pytest.mark.parametrize("form", ["fences", "rewrite"])
async def test_a_block_in_a_thought_is_a_draft(isolation: None, form: str) -> None:
    draft = "<think>\nFirst\n```bash\nrm -r *\n```\nor\n```python\nx = 1\n```\n</think>\n\nI leave it as it is."
    trajectory, _ = await play_form(draft, form=form)
    assert (trajectory.log["diff"], trajectory.log["end"]) == ("", "answered")


async def test_the_supervised_baseline_is_taught_replies_that_solve_the_rollouts_own_prompt(isolation: None) -> None:
    recipe = SPEC.load("tiny", [*ROOMY, "coding.format=rewrite", "coding.tools=[bash]"])
    tokenizer = make_tokenizer("qwen3")
    patch = write_patch(PATH, TASK.metadata["repository"][PATH], RIGHT)
    ((prompt, completion),) = WORLD.solve(Random(0), recipe, tokenizer, [replace_metadata(TASK, patch=patch)])
    trajectory, _ = await play_form(tokenizer.decode(completion[:-1]), form="rewrite")
    assert (trajectory.reward, trajectory.turns[0].prompt_ids) == (1.0, prompt)


async def test_a_rewrite_needs_one_source_file(isolation: None) -> None:
    two = {**TASK.metadata["repository"], "other.py": ""}
    with pytest.raises(RolloutError, match="needs one source file"):
        await play_form("", form="rewrite", task=replace_metadata(TASK, repository=two))


@pytest.mark.parametrize("form", ["fences", "rewrite"])
def test_other_tools_are_refused(form: str) -> None:
    with pytest.raises(RecipeError, match=r"set coding.tools=\[bash\]"):
        SPEC.load("tiny", [f"coding.format={form}", "coding.tools=[bash, edit]"])


def test_a_model_without_calls_in_its_template_is_enough(isolation: None) -> None:
    from agentic.retool.world import WORLD

    tokenizer: Any = WORLD.train_tokenizer()
    make_form("fences", tokenizer)
    with pytest.raises(RecipeError, match=r"set coding.format to another format"):
        SPEC.build(SPEC.load("tiny"), tokenizer)
