"""verl's older worker and trainer, which take one row for a rollout; the V1 worker is driven by
tests/contract/backends/test_batches.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.config import RecipeError
from core.rollout.rows import rows_from_groups
from tests.contract.backends import scored_memagent
from tests.contract.backends.batch import Tape, as_float32, play_again, record
from tests.contract.backends.case import Case
from tests.contract.backends.table import make_policy

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]


OLDER = (
    "trainer.use_v1=False",
    "algorithm.adv_estimator=tokentrue_grpo",
    "actor_rollout_ref.actor.clip_ratio_high=0.2",
)


@pytest.mark.parametrize("case", ["search_r1", "retool", "codescout"], indirect=True)
def test_the_older_worker(
    verl: Any, case: Case, model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts of one row each, some of which fail; their advantages by our estimator are those over rollouts."""
    from verl.trainer.ppo.ray_trainer import compute_advantage

    values = case.recipe(tasks_per_step=len(case.faulty))
    plain = {"loss_agg": "token", "split_advantage": False, "tis": None, "rows": "segment", "std_normalization": True}
    values["algorithm"] |= {
        **plain,
        "loss_mode": "vanilla",
        "overlong_filter": False,
        "clip_ratio_high": 0.2,
        "clip_ratio_low": 0.2,
        "clip_ratio_c": 3.0,
        "kl_loss_coef": 0.0,
        "entropy_coef": 0,
    }
    lengths = "data.max_response_length=1500", "data.max_prompt_length=4"
    config = verl.compose(tmp_path, model, values, *OLDER, *lengths, tasks=case.faulty)
    tape = Tape()
    verl.use_method(monkeypatch, record(case.spec, tape, lambda roles: verl.PLACE.get()))
    done = verl.run_older(config, verl.Client(make_policy(case, model, tokenizer)), tokenizer)

    recipe = case.spec.recipe.model_validate(values)
    names = [(task, [f"task{g}_{i}" for i in range(4)]) for g, task in enumerate(case.faulty)]
    groups = play_again(tape, names, case, recipe, tokenizer)
    trajectories = [t for group in groups for t in group]
    notes = list(done.non_tensor_batch["agentic"])
    assert [note["failure"] for note in notes] == [t.failure for t in trajectories]
    failed = [t.status == "failed" for t in trajectories]
    assert any(failed)
    done.batch["token_level_rewards"] = done.batch["rm_scores"]
    done = compute_advantage(done, "tokentrue_grpo", config=config.algorithm)
    ours = iter(rows_from_groups(groups, **recipe.algorithm.row_options()))
    for place, bad in enumerate(failed):
        mask = done.batch["response_mask"][place].bool()
        assert mask.any() == (not bad)
        if not bad:
            row = next(ours)
            tokens = done.batch["input_ids"][place][done.batch["attention_mask"][place].bool()]
            assert tuple(tokens.tolist()) == row.tokens
            sampled = [p for p, m in zip(row.logprobs, row.loss_mask, strict=True) if m]
            assert tuple(done.batch["rollout_log_probs"][place][mask].tolist()) == as_float32(sampled)
            assert set(done.batch["advantages"][place][mask].tolist()) == {as_float32([row.advantage])[0]}
    assert next(ours, None) is None


def test_the_older_worker_refuses_a_rollout_of_several_rows(
    verl: Any, model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = scored_memagent.CASE
    values = case.recipe(tasks_per_step=2)
    values["algorithm"] |= {"loss_agg": "token", "split_advantage": False, "tis": None, "clip_ratio_c": 3.0}
    values["algorithm"] |= {
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.2,
        "kl_loss_coef": 0.0,
        "std_normalization": True,
    }
    config = verl.compose(tmp_path, model, values, *OLDER, tasks=case.tasks(2))
    verl.use_method(monkeypatch, case.spec)
    with pytest.raises(RecipeError, match=r"a rollout of memagent became \d rows, and verl's older trainer takes one"):
        verl.run_older(config, verl.Client(make_policy(case, model, tokenizer)), tokenizer)
