"""The table of rules: the rate that dev chooses, the scores after each third, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.credit import __main__ as credit
from benchmarks.harness import jobs
from core.config import Recipe
from core.rollout.method import method_spec
from core.runs.record import RolloutLog, record_rollout
from core.runs.run_folder import RunFolder
from core.types import Task, Trajectory
from tests.kit import make_recipe

PLAN = credit.Plan(
    rates=[0.1, 0.2],
    tuning_seed=9,
    seeds=[0, 1],
    rules={"grpo": {}, "echo": {"algorithm.observation_coef": 0.05}},
    worlds={"w": credit.TinyWorld(method="given", steps=6, test="test.jsonl", left_out={"echo": "no observations"})},
)


def write_run(out: Path, seeds: dict[int, Sequence[Sequence[float]]]) -> None:
    """Write a run whose evaluations at steps 0, 2, 4 and 6 have these scores of its tasks, for each seed."""
    folder = RunFolder.create(out, make_recipe(Recipe).dump())
    for seed, scores in seeds.items():
        metrics = folder.open_metrics(seed)
        log = RolloutLog(folder.rollouts_path(seed), lambda ids: [b"x" for _ in ids])
        for third, of_tasks in enumerate(scores):
            if third:
                metrics.append({"stage": "train", "step": 2 * third, "seconds": 3.0})
            metrics.append({"stage": "eval", "step": 2 * third, "reward": sum(of_tasks) / len(of_tasks)})
            done = [Trajectory(f"{i}", (), reward=s, metrics={"official": s}) for i, s in enumerate(of_tasks)]
            log.append([record_rollout("eval", 2 * third, i, Task(f"{i}", "?", ("x",)), t) for i, t in enumerate(done)])
    (out / ".run-done").touch()


def test_the_score_of_a_method_without_an_official_metric_is_its_reward(tmp_path: Path) -> None:
    """Most methods have none. A rollout that failed scores 0, and only those of the step count."""
    folder = RunFolder.create(tmp_path, {}, may_differ=[])
    log = RolloutLog(folder.rollouts_path(0), lambda ids: [])
    right, wrong = (Trajectory("t", (), reward=reward) for reward in (1.0, 0.0))
    failed, scored = Trajectory("t", (), "failed", failure="deadline"), replace(right, metrics={"official": 0.5})
    for step, measured in ((0, [wrong] * 5), (16, [right, right, failed, wrong, scored])):
        log.append([record_rollout("eval", step, i, Task("t", "?", ("x",)), t) for i, t in enumerate(measured)])
    scores = credit._score(PLAN.model_copy(update={"seeds": [0]}), tmp_path)
    assert scores[16].mean == (1 + 1 + 0 + 0 + 0.5) / 5
    assert scores[0].mean == 0


def test_dev_chooses_the_rate_and_the_table_has_each_third(tmp_path: Path) -> None:
    write_run(tmp_path / "w/grpo-0.1", {9: [[0.0], [1.0], [0.0], [1.0]]})
    # What is before the first step does not count.
    write_run(tmp_path / "w/grpo-0.2", {9: [[1.0], [0.0], [1.0], [0.0]]})
    assert credit.choose_rate(PLAN, tmp_path / "w", "grpo") == 0.1
    write_run(tmp_path / "w/grpo", {0: [[0, 0], [0, 1], [1, 1], [1, 1]], 1: [[0, 0], [0, 0], [0, 1], [1, 1]]})
    header, _, grpo, echo = credit.write_table(PLAN, tmp_path).strip().splitlines()[2:]
    assert header.startswith("| rule | rate | untrained | after 1 of 3 |")
    cells = [cell.split(" ")[0] for cell in grpo.strip("| ").split(" | ")]
    assert cells == "grpo 0.1 0.0 25.0 75.0 100.0 3.0".split()
    assert echo.startswith("| echo | no observations |")


def test_a_cell_that_is_done_is_not_trained_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    ended = SimpleNamespace(returncode=0)
    monkeypatch.setattr(jobs.subprocess, "run", lambda words, **_: ran.append(words) or ended)
    (tmp_path / "cell").mkdir()
    for _ in range(2):
        credit.run(PLAN.worlds["w"], tmp_path / "cell", {"run.seeds": [9], "warm_start": None})
    (words,) = ran
    assert words[1:5] == ["run", "given", "--preset", "tiny"]
    changes = {"baselines": ["rejection"], "keys": {"experiment.services": {"s.yaml": "{out}-services"}}}
    credit.evaluate_baselines(PLAN.worlds["w"].model_copy(update=changes), tmp_path / "cell")
    services = ["serve", "services", "s.yaml", "--logs", f"{tmp_path}/cell-services", "--"]
    assert ran[1][1:7] == services
    assert ran[1][8:12] == ["evaluate", "heldout", "given", "--run"]
    assert {"run.seeds=[9]", "warm_start=null", "experiment.report=[]"} <= set(words)
    ended.returncode = 1
    with pytest.raises(RuntimeError, match=r"ended with 1; see .*failed\.log"):
        credit.run(PLAN.worlds["w"], tmp_path / "failed", {})


def test_every_rule_of_the_table_is_a_recipe_of_its_world() -> None:
    plan = credit.read_plan()
    for name, world in plan.worlds.items():
        for rule, changes in plan.list_rules(name).items():
            if rule in world.left_out:
                continue
            words = [f"{key}={json.dumps(value)}" for key, value in changes.items()]
            recipe = method_spec(world.method).load(world.preset, words)
            assert world.steps % credit.THIRDS == 0
            assert recipe.run.steps >= world.steps
