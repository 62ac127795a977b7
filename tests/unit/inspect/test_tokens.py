"""The viewer of tokens: one small file, which shows hostile text as text and loads nothing."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from core.inspect.view import MAX_PIECE, main, show_piece, show_text, write_view
from core.runs.record import RolloutLog, record_rollout
from core.runs.run_folder import RunFolder
from core.types import EDGE, Completion, Task, Trajectory, Turn
from tests import kit
from tests.unit.report.conftest import Written, record_one, record_texts

NODE = "needs node: apt-get install nodejs"
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(1)> \u202ereversed\u2066 \x1b[31m \u200b {{x}} ${x}"
)


def unpack(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="text/plain" id="data">([A-Za-z0-9+/=]*)</script>', page)
    assert found
    data: dict[str, Any] = json.loads(gzip.decompress(base64.b64decode(found[1])))
    return data


def show(data: dict[str, Any], ids: list[int]) -> str:
    return "".join(data["pieces"][str(token)] for token in ids)


def write_page(folder: RunFolder, texts: list[str], task: Task | None = None) -> str:
    rollouts = [[Written(text, True, text, text)] for text in texts]
    record_texts(folder.rollouts_path(0), 3, rollouts, task)
    assert write_view(folder) == min(len(texts), 64)
    return (folder.path / "view.html").read_text(encoding="utf-8")


def test_hostile_text_is_packed_away_and_shown_as_text(empty: RunFolder) -> None:
    page = write_page(empty, [HOSTILE], Task(HOSTILE, HOSTILE, (HOSTILE,)))
    for part in ("alert(1)", "<img", "\u202e", "\x1b", "onerror"):
        assert part not in page, "no text of a rollout is in the source of the page"
    data = unpack(page)
    (rollout,) = data["rollouts"]
    shown = show(data, rollout["turns"][0]["sampled"])
    assert "</script><script>alert(1)</script>" in shown
    assert "‹U+202E›reversed‹U+2066›" in shown
    for text in (shown, rollout["question"], rollout["task"], rollout["answers"][0], rollout["turns"][0]["role"]):
        assert not re.search("[\x00-\x09\x0b-\x1f\u200b-\u200f\u202a-\u202e\u2066-\u2069]", text)


def test_the_page_runs_its_own_script_only_and_loads_nothing(empty: RunFolder) -> None:
    page = write_page(empty, ["a"])
    (script,) = re.findall(r"<script>(.*?)</script>", page, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in page
    assert page.count("<script") == 2
    assert not re.search(r"https?:|@import|url\(|<link|<iframe|<img", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|Function\(|setAttribute", script)


def test_a_token_of_a_megabyte_and_a_broken_character_are_shown_short(empty: RunFolder) -> None:
    assert len(show_piece(b"x" * 1_000_000)) < MAX_PIECE + 60
    assert show_piece(b"x" * 1_000_000).endswith("‹… 999,800 characters left out›")
    assert len(show_piece(b"\xe6" * 1_000_000)) < 4 * MAX_PIECE
    assert (show_piece(b"\xe6\xbc"), show_piece(b"a\nb"), show_piece("漢".encode())) == ("‹E6 BC›", "a↵\nb", "漢")
    assert show_text("a\u2028b") == "a‹U+2028›b"


def test_rollouts_are_chosen_by_task_by_step_and_by_reward(empty: RunFolder, capsys: pytest.CaptureFixture) -> None:
    for seed in (0, 1):
        for step in (1, 2):
            answers = ["harbor", "willow", "harbor", "mole"]
            rollouts = [[Written("policy", True, "?", answer)] for answer in answers]
            record_texts(empty.rollouts_path(seed), step, rollouts, Task(f"t{step}", "?", ()))

    def chosen(*options: str) -> list[tuple[int, int, float]]:
        assert main([str(empty.path), *options]) == 0
        assert "view.html" in capsys.readouterr().out
        data = unpack((empty.path / "view.html").read_text())
        return [(rollout["seed"], rollout["step"], rollout["reward"]) for rollout in data["rollouts"]]

    assert chosen() == [(seed, 2, reward) for seed in (0, 1) for reward in (1.0, 0.0, 1.0, 0.0)]
    assert {step for _, step, _ in chosen("--step", "1")} == {step for _, step, _ in chosen("--task", "t1")} == {1}
    assert chosen("--step", "1", "--worst", "3") == [(0, 1, 0.0), (0, 1, 0.0), (1, 1, 0.0)]
    assert main([str(empty.path), "--task", "absent"]) == 1
    assert "no such rollout" in capsys.readouterr().err
    assert main([str(empty.path / "no such folder")]) == 2


def test_a_page_has_rollouts_of_each_seed_and_tells_how_many_it_leaves_out(
    empty: RunFolder, capsys: pytest.CaptureFixture
) -> None:
    rollouts = [[Written("policy", True, "?", "harbor")] for _ in range(80)]
    for seed in (0, 1):
        record_texts(empty.rollouts_path(seed), 1, rollouts, Task("t", "?", ()))
    assert main([str(empty.path)]) == 0
    assert "view.html: 64 rollouts; 96 more are not on the page" in capsys.readouterr().out
    data = unpack((empty.path / "view.html").read_text())
    assert [rollout["seed"] for rollout in data["rollouts"]] == [0] * 32 + [1] * 32
    assert data["left_out"] == 96


def test_the_worst_begin_with_a_right_answer_without_a_reward(tmp_path: Path) -> None:
    cases = [("25", 1.0), ("7", -1.0), (None, None), (r"so \boxed{025.0}", 0.0), ("24", 0.0), ("25", -1.0), ("", 0.0)]
    log = RolloutLog(tmp_path / "r.jsonl.gz", lambda ids: [b""] * len(ids))
    task = Task("t", "?", ("$25",))
    trajectories = [Trajectory("t", (), reward=reward, log={"answer": answer}) for answer, reward in cases]
    log.append([record_rollout("train", 1, 0, task, trajectory) for trajectory in trajectories])
    assert main([str(tmp_path / "r.jsonl.gz"), "--worst", "4"]) == 0
    rollouts = unpack((tmp_path / "view.html").read_text())["rollouts"]
    doubt = "the answer equals an accepted answer, reward"
    shown = [(one["reward"], one["doubt"]) for one in rollouts]
    assert shown == [(-1.0, f"{doubt} -1"), (0.0, f"{doubt} 0"), (None, ""), (-1.0, "")]


def test_a_single_record_and_a_dump_of_slime_are_shown(empty: RunFolder, tmp_path: Path) -> None:
    call = {"tool": "search", "seconds": 0.25, "said": HOSTILE}
    trajectory = Trajectory("t", (), reward=1.0, log={"calls": [call, "odd"], "answer": "x"})
    assert main([str(record_one(tmp_path / "rollouts.jsonl.gz", trajectory))]) == 0
    page = (tmp_path / "view.html").read_text()
    assert main([str(tmp_path)]) == 0, "the folder of a gateway"
    assert (tmp_path / "view.html").read_text() == page.replace("rollouts.jsonl.gz", tmp_path.name)
    (rollout,) = unpack((tmp_path / "view.html").read_text())["rollouts"]
    assert [(shown["name"], shown["seconds"]) for shown in rollout["calls"]] == [("search", 0.25)]
    assert "onerror" in rollout["calls"][0]["fields"]
    assert rollout["log"] == "answer: x\n"
    sample = {"tokens": [1, 2, 3], "response_length": 2, "rollout_log_probs": [-1.0, -2.0], "status": "completed"}
    torch.save({"rollout_id": 7, "samples": [sample]}, tmp_path / "rollout_7.pt")
    assert main([str(tmp_path / "rollout_7.pt")]) == 0
    (rollout,) = unpack((tmp_path / "view.html").read_text())["rollouts"]
    assert (rollout["step"], rollout["turns"][0]["sampled"]) == (7, [2, 3])


def test_a_segment_has_the_label_that_its_agent_gave(tmp_path: Path) -> None:
    wire = [{"event": "verbatim", "turn": 1}, {"event": f"{EDGE}subagent_call", "turn": 2, "source": 1}]
    turns = tuple(Turn("policy", (prompt,), Completion((7,), (-1.0,), "stop"), True) for prompt in (1, 2))
    trajectory = Trajectory("t", turns, reward=1.0, log={"wire": wire})
    assert main([str(record_one(tmp_path / "rollouts.jsonl.gz", trajectory))]) == 0
    (rollout,) = unpack((tmp_path / "view.html").read_text())["rollouts"]
    assert [segment["labels"] for segment in rollout["segments"]] == [[], ["subagent_call 1"]]


def test_the_timeline_has_turns_and_what_they_waited_for(empty: RunFolder) -> None:
    kit.require(shutil.which("node"), NODE)
    turns = (
        Turn("act", (1, 2), Completion((3,), (-1.0,), "stop"), True, (0.5, 1.0)),
        Turn("act", (1, 2, 3, 7), Completion((4,), (-1.0,), "stop"), True, (3.0, 4.0)),
    )
    record_one(empty.rollouts_path(0), Trajectory("t", turns, reward=1.0))
    assert write_view(empty) == 1
    command = ["node", str(Path(__file__).with_name("viewer_dom.js")), str(empty.path / "view.html")]
    seen = json.loads(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    bars = "turn 1, act · 0.50–1.00 s", "between 1 and 2: tools · 1.00–3.00 s", "turn 2, act · 3.00–4.00 s"
    assert f"timeline, 4.00 s{''.join(bars)}" in seen["first"]


def test_the_script_shows_every_token_under_every_key(empty: RunFolder) -> None:
    """Node runs the page's own script on a document of a few lines (viewer_dom.js)."""
    kit.require(shutil.which("node"), NODE)
    write_page(empty, ["harbor\n", HOSTILE, "willow"])
    command = ["node", str(Path(__file__).with_name("viewer_dom.js")), str(empty.path / "view.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["count"] == "3 of 3 rollouts"
    assert "<script>alert(1)</script>" in seen["second"]
    assert "1 segmentsegment 1 · turn 1 · harbor" in seen["first"]
    assert seen["first"].count("harbor↵\n") == 2, "the prompt is open, and the completion"
    assert seen["together"] == 3
    assert seen["status"].startswith('token 1 of 7 · id 104 · "h" · log-prob -0.5000 (p 0.6065)')
    assert (seen["found"], seen["foundCount"]) == ("1 of 3 rollouts", len("willow"))
    assert len(set(seen["tints"])) == 6
