"""A step of our trainer on verl, recorded as its hook does and read by `tokentrue inspect`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from core.backends.verl.data import to_row
from core.inspect import view
from core.inspect.drift import check_dumps
from core.rollout.rows import rows_from_groups
from core.runs.record import read_rollouts
from core.types import Task, Trajectory
from tests.optional.verl.conftest import GROUP
from tests.optional.verl.test_weights import make_groups

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]


def record(trainer: Any, queue: Any, folder: Path, step: int) -> Path:
    """Take a batch to its advantages, as verl's loop does, and log it in verl's place for that."""
    trainer.config.trainer.rollout_data_dir = str(folder / "seed-0")
    trainer.global_steps = step
    for key, fields in queue.rows.items():
        task = Task(f"id-{key.split('_')[0]}", f"Question of {key.split('_')[0]}?", ("a",))
        row = to_row(task, 0)
        fields |= {"raw_prompt": row["prompt"], "reward_model": row["reward_model"], "extra_info": row["extra_info"]}
        fields |= {"index": 0, "old_log_probs": fields["rollout_log_probs"] - 0.01}
    batch = trainer._compute_advantage(trainer._balance_batch(queue.batch(), {}), {})
    trainer._log_rollout_data(batch, {}, str(folder / "seed-0"))
    return folder / "seed-0" / "rollouts.jsonl.gz"


def trained_turns(trajectory: Trajectory) -> list[Any]:
    return [turn for turn in trajectory.turns if turn.trained and turn.completion.token_ids]


def test_a_step_is_recorded_as_the_embedded_backend_would(
    compose: Any, tokenizer: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    groups = make_groups(6, seed=5)
    trainer, queue = compose(groups, tokenizer=tokenizer, loss_agg="rollout", num_steps_per_rollout=2)
    path = record(trainer, queue, tmp_path, 4)
    rollouts = list(read_rollouts(path))
    assert len(rollouts) == 6 * GROUP
    advantages = {
        row.rollout_id: row.advantage for row in rows_from_groups(groups, **trainer._recipe.algorithm.row_options())
    }
    found = {}
    for rollout in rollouts:
        found.setdefault(rollout.task_id, []).append(rollout)
    for number, group in enumerate(groups):
        recorded = found[f"id-task{number}"]
        assert {rollout.question for rollout in recorded} == {f"Question of task{number}?"}
        assert len({rollout.group for rollout in recorded}) == 1
        ours = sorted(
            (
                trajectory.status,
                None if trajectory.status == "failed" else trajectory.reward,
                [(turn.prompt_ids, turn.completion.token_ids) for turn in trained_turns(trajectory)],
                advantages.get(number * GROUP + place),
            )
            for place, trajectory in enumerate(group)
        )
        theirs = sorted(
            (
                one.status,
                one.reward,
                [(tuple(prompt), tuple(turn.sampled)) for prompt, turn in zip(one.prompts, one.turns, strict=True)],
                one.advantage,
            )
            for one in recorded
        )
        for (*mine, expected), (*other, advantage) in zip(ours, theirs, strict=True):
            assert other == mine
            assert (advantage or 0.0) == pytest.approx(expected or 0.0, abs=1e-6)
    trained = next(one for one in rollouts if one.rows)
    assert trained.turns[0].trainer_logprobs == pytest.approx([x - 0.01 for x in trained.turns[0].logprobs], abs=1e-6)
    assert any(row.loss_scale for one in rollouts for row in one.rows)

    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": {"path": "x"}}))
    assert view.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out.endswith("view.html: 24 rollouts\n")
    assert set(check_dumps([tmp_path], tokenizer).counts) <= {"after_end"}  # the made-up ids hold end tokens


def test_a_run_that_goes_on_writes_no_step_twice(compose: Any, tokenizer: Any, tmp_path: Path) -> None:
    for start in (3, 2):  # the second process starts from the checkpoint of step 1
        trainer, queue = compose(make_groups(2, seed=1), tokenizer=tokenizer)
        for step in range(start, 4):
            path = record(trainer, queue, tmp_path, step)
    assert sorted({rollout.step for rollout in read_rollouts(path)}) == [2, 3]
    assert len(list(read_rollouts(path))) == 2 * 2 * GROUP


def test_every_so_many_steps_are_recorded(compose: Any, tokenizer: Any, tmp_path: Path) -> None:
    trainer, queue = compose(make_groups(2, seed=1), tokenizer=tokenizer)
    run = trainer._recipe.run.model_copy(update={"record_every": 3})
    trainer._recipe = trainer._recipe.model_copy(update={"run": run})
    for step in range(1, 8):
        path = record(trainer, queue, tmp_path, step)
    assert sorted({rollout.step for rollout in read_rollouts(path)}) == [1, 3, 6]
