"""The tables of credit rules: what a cell's score is."""

from __future__ import annotations

from pathlib import Path

from benchmarks.credit.__main__ import Plan, _score
from core.runs.record import RolloutLog, record_rollout
from core.runs.run_folder import RunFolder
from core.types import Completion, Task, Trajectory, Turn


def test_the_score_of_a_method_without_an_official_metric_is_its_reward(tmp_path: Path) -> None:
    """Most methods have none. A rollout that failed scores 0, and only those of the step count."""
    plan = Plan(rates=[1e-3], tuning_seed=9, seeds=[0], rules={}, worlds={})
    folder = RunFolder.create(tmp_path, {}, may_differ=[])
    turns = (Turn("act", (1,), Completion((2,), (-1.0,), "stop"), True),)
    right = Trajectory("t", turns, reward=1.0)
    rollouts = [right, right, Trajectory("t", (), "failed", failure="deadline"), Trajectory("t", turns, reward=0.0)]
    rollouts.append(Trajectory("t", turns, reward=1.0, metrics={"official": 0.5}))
    log = RolloutLog(folder.rollouts_path(0), lambda ids: [b"x"] * len(ids))
    for step, measured in ((0, rollouts[3:4] * 5), (16, rollouts)):
        log.append([record_rollout("eval", step, i, Task("t", "?", ("x",)), t) for i, t in enumerate(measured)])
    scores = _score(plan, tmp_path)
    assert scores[16].mean == (1 + 1 + 0 + 0 + 0.5) / 5
    assert scores[0].mean == 0
