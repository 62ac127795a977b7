"""verl's V1 worker runs each method's rollouts, and our trainer weighs their rows: all as our own backend does."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from core.algorithms.aggregate import row_scales
from core.config import RecipeError
from core.engine import EmbeddedPolicy, Engine, weights
from core.rollout.rows import rows_from_groups
from core.types import Row
from tests.contract.slime import scored_memagent
from tests.contract.slime.case import Case
from tests.contract.slime.replay import as_float32
from tests.contract.slime.serving import ScriptedEngine

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]


def make_policy(case: Case, model: Path, tokenizer: Any) -> Any:
    """The case's script, or our engine with MemAgent's tiny weights."""
    if case.reply:
        return ScriptedEngine(tokenizer, case.reply)
    return EmbeddedPolicy(Engine(weights.load(model, device="cpu")))


def verl_rows(queue: Any, batch: Any) -> dict[str, Row]:
    """The rows of a batch as verl trains them, by key. Padding and rows without a weight are left out."""
    rows = {}
    for key, tag in zip(batch.keys, batch.tags, strict=True):
        row = queue.rows[key]
        mask, scales, advantages = row["response_mask"], row["loss_scales"], row["advantages"]
        if tag.get("is_padding") or not scales.any():
            continue
        assert set(scales[mask == 1].tolist()) == {float(scales.max())}
        assert set(advantages[mask == 1].tolist()) == {float(advantages[mask == 1][0])}
        assert not scales[mask == 0].any()
        assert not advantages[mask == 0].any()
        rows[key] = Row(
            tuple(row["prompts"].tolist() + row["responses"].tolist()),
            tuple(mask.tolist()),
            tuple(row["rollout_log_probs"].tolist()),
            float(advantages[mask == 1][0]),
            0,
        )
    return rows


@pytest.mark.parametrize("steps", [1, 2])
def test_a_batch(
    verl: Any, case: Case, steps: int, model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts of different lengths, groups that fail wholly and in part; prompts longer than prompt_length."""
    recipe_values = case.recipe(tasks_per_step=len(case.faulty))
    recipe_values["algorithm"]["num_steps_per_rollout"] = steps
    recipe_values["optimizer"]["lr_decay_steps"] = None
    verl.write_data(tmp_path, case.faulty, case.spec.name)
    config = verl.compose(tmp_path, model, recipe_values, "actor_rollout_ref.rollout.prompt_length=4")
    monkeypatch.setattr("core.backends.verl.rollouts.method_spec", {case.spec.name: case.spec}.__getitem__)
    monkeypatch.setattr("core.backends.verl.trainer.method_spec", {case.spec.name: case.spec}.__getitem__)
    queue = verl.Queue()
    queue.patch(monkeypatch)
    tape, given = verl.record(monkeypatch)
    verl.run_v1(config, verl.Client(make_policy(case, model, tokenizer)), tokenizer)

    recipe = case.spec.recipe.model_validate(recipe_values)
    assert len(given) == len(case.faulty) * recipe.rollout.group_size
    groups, tasks = verl.play_again(case, recipe, tape, given, config.data.train_files, tokenizer)
    trained = {uid: list(group.values()) for uid, group in groups.items()}
    if case.spec.regrade is not None:
        trained = {uid: list(case.spec.regrade(recipe, tasks[uid], group)) for uid, group in trained.items()}
    sessions = [(uid, session) for uid, group in groups.items() for session in group]
    ours = rows_from_groups(list(trained.values()), **recipe.algorithm.row_options())

    trainer = verl.make_trainer(config, tokenizer)
    metrics: dict[str, Any] = {}
    batch = trainer._compute_advantage(trainer._balance_batch(queue.batch(), metrics), metrics)

    # Rows, masks, log-probs and advantages, rollout by rollout.
    theirs = verl_rows(queue, batch)
    expected: dict[tuple[str, str], list[Row]] = {}
    for row in ours:
        expected.setdefault(sessions[row.rollout_id], []).append(row)
    found: dict[tuple[str, str], list[Row]] = {}
    for key, row in sorted(
        theirs.items(), key=lambda item: (item[0].rsplit("_", 1)[0], int(item[0].rsplit("_", 1)[1]))
    ):
        found.setdefault(tuple(key.rsplit("_", 2)[:2]), []).append(row)  # type: ignore[arg-type]
    assert found.keys() == expected.keys()
    moved = 0
    for session, rows in expected.items():
        assert len(found[session]) == len(rows)
        for theirs_one, ours_one in zip(found[session], rows, strict=True):
            extra = len(theirs_one.loss_mask) - len(ours_one.loss_mask)  # what of the prompt begins the response
            moved += extra > 0
            assert theirs_one.tokens == ours_one.tokens
            assert len(theirs_one.tokens) - len(theirs_one.loss_mask) <= 4
            assert theirs_one.loss_mask == (0,) * extra + ours_one.loss_mask
            assert theirs_one.logprobs == (0.0,) * extra + as_float32(ours_one.logprobs)
            assert theirs_one.advantage == as_float32([ours_one.advantage])[0]
    assert moved

    # Rewards, failures and metrics, and each rollout once.
    for uid, group in groups.items():
        for session, trajectory in group.items():
            row = queue.rows[f"{uid}_{session}_0"]
            notes = verl.notes_of(row)
            assert (notes["status"], notes["failure"]) == (trajectory.status, trajectory.failure)
            assert notes["metrics"] == dict(trajectory.metrics)
            assert float(row["rm_scores"].sum()) == as_float32([trajectory.reward or 0.0])[0]
            assert queue.tags[f"{uid}_{session}_0"]["max_global_steps"] == verl.STEP
    counts = Counter(t.failure for group in groups.values() for t in group.values() if t.status == "failed")
    assert counts
    assert {name.removeprefix("rollout/failures/"): n for name, n in metrics.items() if "failures/" in name} == counts

    # Weights: each optimizer step has whole rollouts, and the scales of our own trainer.
    size = len(batch.keys) // steps // 2
    for step in range(steps):
        places = [rank * len(batch.keys) // 2 + step * size + place for rank in range(2) for place in range(size)]
        keys = [batch.keys[place] for place in places if batch.keys[place] in theirs]
        numbers = {session: number for number, session in enumerate(expected)}
        rows = [
            Row(*(getattr(theirs[key], name) for name in ("tokens", "loss_mask", "logprobs")), 0.0, numbers[session])
            for key in keys
            for session in [tuple(key.rsplit("_", 2)[:2])]
        ]
        scales = row_scales(rows, recipe.algorithm.loss_agg, recipe.algorithm.max_response_length or 1)
        assert as_float32(scales) == tuple(float(queue.rows[key]["loss_scales"].max()) for key in keys)
        for session in {key.rsplit("_", 1)[0] for key in keys}:
            assert {key for key in theirs if key.rsplit("_", 1)[0] == session} <= set(keys)


OLDER = (
    "trainer.use_v1=False",
    "algorithm.adv_estimator=tokentrue_grpo",
    "actor_rollout_ref.actor.clip_ratio_high=0.2",
)


@pytest.mark.parametrize("case", ["search_r1", "retool"], indirect=True)
def test_the_older_worker(
    verl: Any, case: Case, model: Path, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rollouts of one row each, some of which fail; their advantages by our estimator are those over rollouts."""
    from verl.trainer.ppo.ray_trainer import compute_advantage

    values = case.recipe(tasks_per_step=len(case.faulty))
    plain = {"loss_agg": "token", "split_advantage": False, "tis": None, "rows": "segment", "std_normalization": True}
    values["algorithm"] |= {
        **plain,
        "clip_ratio_high": 0.2,
        "clip_ratio_low": 0.2,
        "clip_ratio_c": 3.0,
        "kl_loss_coef": 0.0,
        "entropy_coef": 0,
    }
    verl.write_data(tmp_path, case.faulty, case.spec.name)
    config = verl.compose(tmp_path, model, values, *OLDER, "data.max_response_length=1500", "data.max_prompt_length=4")
    for module in ("rollouts", "settings"):
        monkeypatch.setattr(f"core.backends.verl.{module}.method_spec", {case.spec.name: case.spec}.__getitem__)
    tape, given = verl.record(monkeypatch)
    done = verl.run_older(config, verl.Client(make_policy(case, model, tokenizer)), tokenizer)

    recipe = case.spec.recipe.model_validate(values)
    groups, _ = verl.play_again(case, recipe, tape, given, config.data.train_files, tokenizer)
    trajectories = [t for group in groups.values() for t in group.values()]
    notes = list(done.non_tensor_batch["agentic"])
    assert [note["failure"] for note in notes] == [t.failure for t in trajectories]
    failed = [t.status == "failed" for t in trajectories]
    assert any(failed)
    done.batch["token_level_rewards"] = done.batch["rm_scores"]
    done = compute_advantage(done, "tokentrue_grpo", config=config.algorithm)
    ours = iter(rows_from_groups([list(group.values()) for group in groups.values()], **recipe.algorithm.row_options()))
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
    verl.write_data(tmp_path, case.tasks(2), case.spec.name)
    config = verl.compose(tmp_path, model, values, *OLDER)
    monkeypatch.setattr("core.backends.verl.rollouts.method_spec", {case.spec.name: case.spec}.__getitem__)
    with pytest.raises(RecipeError, match=r"a rollout of memagent became \d rows, and verl's older trainer takes one"):
        verl.run_older(config, verl.Client(make_policy(case, model, tokenizer)), tokenizer)
