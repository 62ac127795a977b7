"""Real command lines mend a scratch repository through the gateway; every token that was sampled is trained as it was.

    npm install --prefix DIR @anthropic-ai/claude-code @openai/codex
    python -m venv ENV && ENV/bin/pip install mini-swe-agent==2.4.6 litellm==1.83.0
    PATH=DIR/node_modules/.bin:ENV/bin:$PATH pytest tests/optional/command_lines

Nothing leaves this machine: the programs have no key but the session's name, and no server but the gateway. Their tools
run what the actor plays, without a sandbox of their own.
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from core.inspect.drift import DriftChecker
from core.inspect.view import find_segments, write_record_view
from core.runs.record import read_rollouts
from tests.optional.command_lines.actor import RIGHT, WRONG, Actor, call, find_program, set_stage
from tests.unit.gateway.model import check

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]

NPM = "npm install --prefix DIR"
MEND = f"sed -i 's/{WRONG}/{RIGHT}/' shop.py"


async def test_claude_code_with_sub_agents_and_a_compaction(tmp_path: Path) -> None:
    claude = find_program("claude", f"{NPM} @anthropic-ai/claude-code")
    file = str(tmp_path / "repository" / "shop.py")
    look = call("Bash", command="ls", description="list")
    actor = Actor(
        {
            "MAIN": [
                "Two helpers first."
                + call("Agent", description="list", prompt="HELP: list", subagent_type="general-purpose")
                + call("Agent", description="find", prompt="FIND: the shop", subagent_type="Explore"),
                "<think>\nRead it.\n</think>\n\n" + call("Read", file_path=file),
                call("Edit", file_path=file, old_string=WRONG, new_string=RIGHT),
                "It adds the tax.",
                "<analysis>-</analysis>\n<summary>MAIN is mended.</summary>",
                call("Bash", command="cat shop.py", description="look"),
                "Yes.",
            ],
            "HELP": ["I look." + look, "There is shop.py."],
            "FIND": ["I look, too." + look, "It is shop.py."],
        }
    )
    options = ("--permission-mode", "acceptEdits", "--allowedTools", "Agent,Bash,Edit,Read")
    async with set_stage(tmp_path, actor, {"claude-haiku-*": "frozen:policy"}) as stage:
        for arguments in (("MAIN: mend shop.py",), ("--continue", "/compact"), ("--continue", "Is it mended?")):
            await stage.run(
                claude, "--print", *arguments, *options,
                ANTHROPIC_BASE_URL=stage.url, ANTHROPIC_API_KEY="-", DISABLE_TELEMETRY="1", DISABLE_AUTOUPDATER="1",
                DISABLE_ERROR_REPORTING="1",
            )  # fmt: skip
        finished = await stage.finish()
    assert actor.has_played
    # The helper Explore asks for a small model, which is not trained here. A compaction has other tools than what it
    # sums up, so there are four conversations: the task, the other helper, the compaction, and what follows it.
    rows = check(actor, finished.turns)
    untrained = [actor.tokenizer.decode(turn.completion.token_ids) for turn in finished.turns if not turn.trained]
    assert sorted(text.split("<")[0].strip() for text in untrained) == ["I look, too.", "It is shop.py."]
    assert (len(finished.turns), rows) == (11, 4)
    # It asks for a title in a JSON schema, fills `replace_all` in, and writes an answer itself after a compaction.
    assert finished.counters == {"refused_bad_request": 1, "verbatim": 6, "reserialised": 1, "foreign": 1}
    # Its record has each conversation as a segment, in order, with what the wire did.
    (recorded,) = read_rollouts(stage.record)
    assert sum(len(segment["turns"]) for segment in find_segments(recorded)) == 11
    assert len(recorded.rows) == 4
    assert Counter(event["event"] for event in recorded.log["wire"]) == finished.counters
    view = tmp_path / "view.html"
    assert write_record_view(stage.record, view) == 1
    assert list(DriftChecker(actor.tokenizer).check(recorded, "session")) == []


async def test_codex_with_a_sub_agent_and_a_compaction(tmp_path: Path) -> None:
    codex = find_program("codex", f"{NPM} @openai/codex")

    def wait_for_helper(prompt: str) -> str:
        found = re.findall(r"agent_id\W+([0-9a-f-]{36})", prompt)
        return call("multi_agent_v1.wait_agent", targets=found[-1:], timeout_ms=60_000)

    actor = Actor(
        {
            "MAIN": [
                "A helper first." + call("multi_agent_v1.spawn_agent", message="HELP: list"),
                wait_for_helper,
                "<think>\nMend it.\n</think>\n\nNow." + call("exec_command", cmd=MEND),
                "It adds the tax.",
                "MAIN is mended.",
                "Yes.",
            ],
            "HELP": ["I look." + call("exec_command", cmd="ls"), "There is shop.py."],
        }
    )
    async with set_stage(tmp_path, actor) as stage:
        (tmp_path / ".codex").mkdir()
        (tmp_path / ".codex" / "config.toml").write_text(
            'model = "policy"\nmodel_provider = "gateway"\nweb_search = "disabled"\n'
            f'[model_providers.gateway]\nname = "gateway"\nbase_url = "{stage.url}/v1"\nwire_api = "responses"\n'
        )
        options = ("exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
        await stage.run(codex, *options, "MAIN: mend shop.py")
        compact = ("-c", "model_auto_compact_token_limit=1000")
        await stage.run(codex, *options, *compact, "resume", "--last", "Is it mended?")
        finished = await stage.finish()
    assert actor.has_played
    rows = check(actor, finished.turns)
    assert (len(finished.turns), rows) == (8, 4)
    assert set(finished.counters) == {"verbatim"}


async def test_mini_swe_agent_with_two_calls_at_once_and_an_answer_that_it_refuses(tmp_path: Path) -> None:
    mini = find_program("mini", "pip install mini-swe-agent==2.4.6 litellm==1.83.0")
    actor = Actor(
        {
            "MAIN": [
                "I look." + call("bash", command="ls") + call("bash", command="cat shop.py"),
                "<think>\nMend it.\n</think>\n\n" + call("bash", command=MEND),
                "It adds the tax.",
                call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
            ]
        }
    )
    async with set_stage(tmp_path, actor) as stage:
        await stage.run(
            mini, "--yolo", "--exit-immediately", "--model", "openai/policy", "--task", "MAIN: mend shop.py",
            "--output", str(tmp_path / "trajectory.json"), "-c", "mini.yaml", "-c", "model.cost_tracking=ignore_errors",
            OPENAI_BASE_URL=f"{stage.url}/v1", OPENAI_API_KEY="-", MSWEA_CONFIGURED="true",
        )  # fmt: skip
        finished = await stage.finish()
    assert actor.has_played
    rows = check(actor, finished.turns)
    assert (len(finished.turns), rows) == (4, 2)  # it forgets the answer without a call
    assert finished.counters == {"verbatim": 2}
