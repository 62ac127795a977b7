"""The profile of a rollout and of a GRPO step, in its smallest shape, and how it divides their time."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.speed.profile import main
from benchmarks.speed.ranges import LOSS, OPTIMIZER, REST, SAMPLING
from core.runs.files import read_json


@pytest.mark.e2e
def test_the_groups_add_up_to_the_whole_and_little_of_it_has_no_group(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    out = tmp_path / "profile.json"
    assert main(["--quick", "--size", "tiny", "--out", str(out)]) == 0
    result = read_json(out)
    for part, absent in (("rollout", {LOSS, OPTIMIZER}), ("grpo_step", {SAMPLING})):
        seconds = result[part]["seconds"]
        whole = sum(map(sum, seconds.values()))
        assert whole == pytest.approx(sum(result[part]["profiled"]["wall_s_all"]), rel=0.1)
        assert sum(seconds[REST]) < 0.2 * whole
        assert {group for group, (forward, _) in seconds.items() if not forward} == absent
    assert not any(backward for _, backward in result["rollout"]["seconds"].values())
    backwards = {group: backward for group, (_, backward) in result["grpo_step"]["seconds"].items()}
    assert {group for group, backward in backwards.items() if not backward} == {SAMPLING, OPTIMIZER}
    assert backwards[REST] < 0.2 * sum(backwards.values())
    assert "with the profiler" in capsys.readouterr().out
