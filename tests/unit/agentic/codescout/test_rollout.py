"""The policy's commands run in the sandbox, its one answer is rewarded, and searches end in ways that have names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from agentic.codescout.prompts import TOO_MANY
from agentic.codescout.rollout import SPEC, CodeScout
from agentic.codescout.world import write_call, write_search
from core.policy.base import Roles
from core.rollout.method import RolloutError
from core.rollout.rows import make_rows
from core.sandbox.workspace import shorten
from core.types import Sampling, Task, Trajectory
from tests.kit import script_policy

FILES = {"shop/stock.py": "class Stock:\n    def count(self):\n        return 0\n", "readme.md": "a shop\n"}
PLACE = {"file": "shop/stock.py", "class_name": "Stock", "function_name": "count"}
CHANGES = {"edited_modules": ["shop/stock.py:Stock"], "edited_entities": ["shop/stock.py:Stock.count"]}
METADATA = {"repository": FILES, "file_changes": [{"file": "shop/stock.py", "changes": CHANGES}]}
TASK = Task("t", "The stock is never counted.", ("-",), metadata=METADATA)
RIGHT = write_call("localization_finish", locations=[PLACE])
ROOMY = ["codescout.max_tokens=400", "codescout.context_tokens=6000", "model.max_model_len=null"]


def make(tokenizer: Any, *overrides: str) -> CodeScout:
    method = SPEC.build(SPEC.load("tiny", [*ROOMY, *overrides]), tokenizer)
    assert isinstance(method, CodeScout)
    return method


async def play(method: CodeScout, answers: Sequence[str], task: Task = TASK) -> Trajectory:
    policy = script_policy(method.tokenizer, answers, last=False)
    return await method.rollout(task, Roles({"policy": policy}), Sampling(seed=1))


def show(method: CodeScout, trajectory: Trajectory) -> str:
    return str(method.tokenizer.decode(trajectory.turns[-1].prompt_ids))


async def test_a_search_runs_and_the_right_answer_earns_all_three_levels(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer)
    trajectory = await play(
        method, [write_search("grep -rn count . | sort; echo $((2<<1))${PWD/t/T}"), f"It must be the stock.\n{RIGHT}\n"]
    )
    assert (trajectory.reward, trajectory.status, trajectory.log["end"]) == (3.0, "completed", "answered")
    assert trajectory.metrics["official"] == 1.0
    assert (trajectory.metrics["calls_bash"], trajectory.metrics["turns"]) == (1, 2)
    assert "./shop/stock.py:2:    def count(self):\n4/Testbed" in show(method, trajectory)  # bash alone does this
    assert len(make_rows(trajectory.turns, "segment")) == 1
    assert trajectory.log["answer"] == json.dumps([PLACE])


async def test_a_number_of_turns_is_rewarded_whatever_the_answer(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer, "codescout.turns_weight=1", "codescout.rewarded_turns=2")
    assert (await play(method, [write_search("ls"), RIGHT])).reward == 4.0
    assert (await play(method, [RIGHT])).reward == 3.0
    assert (await play(method, [write_search("ls"), "none"])).reward == 1.0


@pytest.mark.parametrize(
    ("answers", "end", "status"),
    [
        ([RIGHT + write_search("ls")], "bad_answer", "completed"),
        ([RIGHT + RIGHT], "bad_answer", "completed"),
        ([f"{RIGHT}\nThat is all."], "bad_answer", "completed"),
        ([write_call("localization_finish", locations=["shop/stock.py"])], "bad_answer", "completed"),
        ([write_call("localization_finish", places=[PLACE])], "bad_answer", "completed"),
        (["It is in shop/stock.py."], "no_call", "completed"),
        ([write_search("ls")] * 3, "turn_limit", "truncated"),
        ([write_search("ls " + "x" * 3000)], "cut_turn", "truncated"),
        ([write_search("cat shop/stock.py")] * 2, "context_limit", "truncated"),
    ],
)
async def test_what_is_no_single_last_answer_earns_nothing(
    isolation: None, tokenizer: Any, answers: list[str], end: str, status: str
) -> None:
    room = ["codescout.context_tokens=460"] if end == "context_limit" else []
    trajectory = await play(make(tokenizer, *room), answers)
    assert (trajectory.log["end"], trajectory.status, trajectory.reward) == (end, status, 0.0)


async def test_an_issue_that_leaves_no_room_is_no_wrong_answer(isolation: None, tokenizer: Any) -> None:
    with pytest.raises(RolloutError, match=r"no room in codescout\.context_tokens"):
        await play(make(tokenizer, "codescout.context_tokens=120"), [RIGHT])


async def test_calls_run_together_and_errors_are_told(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer, "codescout.max_calls=3", "codescout.max_turns=4")
    found, lost, fourth = map(write_search, ("cat readme.md; exit 3", "ls nowhere", "touch four"))
    several = f"{found}{write_call('bash', cmd='ls')}{lost}{fourth}"
    trajectory = await play(method, [several, "<tool_call>\nls\n</tool_call>", write_search("ls"), RIGHT])
    shown = show(method, trajectory)
    assert "tool\na shop\n" in shown
    assert "missing_argument" in str(trajectory.metrics) or "unknown_argument" in str(trajectory.metrics)
    assert "nowhere" in shown
    assert TOO_MANY in shown
    assert "tool\nreadme.md\nshop\n" in shown, "the fourth call was not run"
    assert trajectory.metrics["malformed_not_json"] == 1
    assert (trajectory.reward, trajectory.metrics["calls_bash"]) == (3.0, 3)


async def test_a_command_that_does_not_end_is_stopped_and_told(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer, "codescout.command_timeout_s=0.3")
    trajectory = await play(method, [write_search("sleep 60"), RIGHT])
    assert "met a limit (timeout)" in show(method, trajectory)
    assert (trajectory.metrics["failed_calls"], trajectory.reward) == (1, 3.0)


async def test_a_checkout_is_shown_where_it_lies_and_cannot_be_changed(
    isolation: None, tokenizer: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = f"a {tmp_path_factory.mktemp('checkout').name}"
    folder = Path("runs/data").resolve() / name  # /tmp is the workspace's own
    (folder / "shop").mkdir(parents=True)
    try:
        (folder / "shop/stock.py").write_text(FILES["shop/stock.py"])
        metadata = {"folder": str(folder), "file_changes": METADATA["file_changes"]}
        method = make(tokenizer)
        answers = [write_search("pwd; ls; echo no > shop/stock.py"), RIGHT]
        trajectory = await play(method, answers, Task("t", "?", ("-",), metadata=metadata))
        assert f"tool\n{folder}\nshop\n" in show(method, trajectory)
        assert "Read-only" in show(method, trajectory)
        assert trajectory.reward == 3.0
        assert (folder / "shop/stock.py").read_text() == FILES["shop/stock.py"]
    finally:
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"file_changes": METADATA["file_changes"]}, "metadata.repository"),
        ({**METADATA, "folder": "/nowhere"}, "metadata.repository"),
        ({"folder": "/nowhere", "file_changes": METADATA["file_changes"]}, "metadata.folder"),
        ({**METADATA, "repository": {"../a.py": ""}}, "metadata.repository"),
        ({"repository": FILES}, "metadata.file_changes"),
    ],
)
async def test_a_broken_record_is_refused_by_name(tokenizer: Any, metadata: dict[str, Any], field: str) -> None:
    task = Task("t", "?", ("-",), metadata=metadata)
    assert SPEC.check_task is not None
    fault = SPEC.check_task(SPEC.load("tiny"), task)
    assert fault is not None
    assert fault[0] == field
    with pytest.raises(RolloutError, match=field):
        await play(make(tokenizer), [RIGHT], task)
    assert SPEC.check_task(SPEC.load("tiny"), TASK) is None


async def test_the_full_prompt_states_the_rules_and_the_limits(isolation: None, tokenizer: Any) -> None:
    method = make(tokenizer, "codescout.prompt=full")
    shown = show(method, await play(method, [RIGHT]))
    assert "You have 3 turns" in shown
    assert "The repository is in /testbed." in shown
    assert f"<issue>\n{TASK.question}\n</issue>" in shown


def test_a_long_output_keeps_head_and_tail() -> None:
    assert shorten("abc", 3) == "abc"
    assert shorten("a" * 50 + "b" * 50, 10) == "aaaaa\n... 90 characters left out ...\nbbbbb"
