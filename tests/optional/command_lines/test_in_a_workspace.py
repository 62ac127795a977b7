"""Real programs repair one task in a workspace, each by its own tools, and our own loop too: one diff, exact rows.

    npm install --prefix DIR @anthropic-ai/claude-code@2.1.197 @openai/codex@0.169.0
    python -m venv ENV && ENV/bin/pip install mini-swe-agent==2.4.6 litellm==1.83.0
    PATH=DIR/node_modules/.bin:ENV/bin:$PATH pytest tests/optional/command_lines/test_in_a_workspace.py

The sections of the recipe are those of agentic/coding/commands, with other folders. DIR and ENV lie outside of /tmp,
which a workspace has of its own.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentic.coding.repairs.generate import draw_record
from agentic.coding.rollout import PRESETS, SPEC
from core.policy.base import Roles
from core.types import Sampling, Task, Trajectory
from tests import kit
from tests.optional.command_lines.actor import Actor, Line, call, find_program
from tests.unit.gateway.model import check

pytestmark = [pytest.mark.optional, pytest.mark.timeout(600)]

RECORD = draw_record("test", 3, "function")
STATEMENT = RECORD["metadata"]["problem_statement"]
TASK = Task("t", RECORD["prompt"], (RECORD["label"],), metadata=RECORD["metadata"])
(PATH,) = (path for path in RECORD["metadata"]["repository"] if f"+++ b/{path}\n" in RECORD["metadata"]["patch"])
WRONG, RIGHT = (
    next(line[1:] for line in RECORD["metadata"]["patch"].splitlines()[3:] if line.startswith(sign)) for sign in "-+"
)
LINE = RECORD["metadata"]["repository"][PATH].splitlines().index(WRONG) + 1
REPLACE = f"git apply - <<'END'\n{RECORD['metadata']['patch']}END"
THINK = "<think>\nI know.\n</think>\n\nNow."

# Each program's own calls for: look, replace the line, say so.
LINES: dict[str, Sequence[Line]] = {
    "ours": [call("read", path=PATH), THINK + call("edit", path=PATH, line=LINE, text=RIGHT), "Done."],
    "mini_swe_agent": [
        call("bash", command="ls") + call("bash", command=f"cat {PATH}"),
        THINK + call("bash", command=REPLACE),
        call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
    ],
    "codex": [call("exec_command", cmd=f"cat {PATH}"), THINK + call("exec_command", cmd=REPLACE), "Done."],
    "claude_code": [
        call("Read", file_path=f"/testbed/{PATH}"),
        THINK + call("Edit", file_path=f"/testbed/{PATH}", old_string=WRONG, new_string=RIGHT),
        "Done.",
    ],
}
PROGRAMS = {
    "mini_swe_agent": ("mini", "pip install mini-swe-agent==2.4.6 litellm==1.83.0"),
    "claude_code": ("claude", "npm install --prefix DIR @anthropic-ai/claude-code"),
    "codex": ("codex", "npm install --prefix DIR @openai/codex"),
}


def read_command(name: str) -> str:
    """Return the section of a program as shipped, with the folder where it is installed here."""
    program, install = PROGRAMS[name]
    found = Path(find_program(program, install))
    folder = next(
        parent for parent in found.parents if (parent / "pyvenv.cfg").exists() or parent.name == "node_modules"
    )
    folder = folder.parent if folder.name == "node_modules" else folder
    kit.require(not folder.is_relative_to("/tmp"), "needs programs outside of /tmp: install them elsewhere")
    text = (PRESETS.parent / "commands" / f"{name}.yaml").read_text()
    return json.dumps(yaml.safe_load(text.replace(f"/opt/{program}", str(folder))))


async def repair(name: str, *overrides: str) -> tuple[Actor, Trajectory]:
    actor = Actor({STATEMENT.splitlines()[0]: LINES[name]})
    command = "null" if name == "ours" else read_command(name)
    sizes = [
        "coding.max_turns=20",
        "coding.max_tokens=4000",
        "coding.context_tokens=1000000",
        "coding.time_limit_s=500",
    ]
    tools = ["coding.tools=[bash, read, edit]", "coding.show_source=false", "model.max_model_len=null"]
    method = SPEC.build(SPEC.load("tiny", [*sizes, *tools, f"coding.command={command}", *overrides]), actor.tokenizer)
    return actor, await method.rollout(TASK, Roles({"policy": actor.policy}), Sampling(seed=1))


def summarize(actor: Actor, trajectory: Trajectory) -> dict[str, Any]:
    """Return what must be equal for all agents; assert that each sampled token is in a row, in its own context."""
    return {
        "played": actor.has_played,
        "end": trajectory.log["end"],
        "verdict": trajectory.log["verdict"],
        "diff": trajectory.log["diff"],
        "turns": len(trajectory.turns),
        "trained": sum(turn.trained for turn in trajectory.turns),
        "rows": check(actor, trajectory.turns),
    }


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_repairs_as_our_loop_does(isolation: None, name: str) -> None:
    ours = summarize(*await repair("ours"))
    assert (ours["verdict"], ours["rows"], ours["trained"]) == ("solved", 1, 3)
    actor, trajectory = await repair(name)
    assert summarize(actor, trajectory) == ours, trajectory.log


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_ends_at_the_limit_of_turns(isolation: None, name: str) -> None:
    """Soon, and what was changed until then is graded."""
    actor, trajectory = await repair(name, "coding.max_turns=2", "coding.time_limit_s=240")
    assert (trajectory.log["end"], trajectory.log["verdict"]) == ("turn_limit", "solved"), trajectory.log
    assert len(trajectory.turns) == 2
    assert check(actor, trajectory.turns) == 1
