"""Hundreds of made-up groups through verl's worker, our trainer and verl's own mini-batches: steps, weights and losses.

verl's own trainer steps into two traps, of a masked last row and of many rows, and ours does not.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, get_args

import pytest
import torch

from core.algorithms.aggregate import row_scales
from core.algorithms.grpo import grpo_loss
from core.rollout.rows import rows_from_groups
from core.types import Completion, LossAgg, Row, Trajectory, Turn
from tests.optional.verl.conftest import GROUP, RANKS

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]


def make_groups(count: int, seed: int) -> list[list[Trajectory]]:
    """Groups of rollouts with 1 to 5 turns, of which the last is often not trained; some failed, some truncated."""
    chance = Random(seed)

    def make_turn(trained: bool) -> Turn:
        size = chance.randint(1, 6)
        logprobs = tuple(-chance.random() - 0.1 for _ in range(size))
        ids = tuple(chance.randrange(1, 50) for _ in range(size))
        prompt = tuple(chance.randrange(1, 50) for _ in range(chance.randint(1, 9)))
        return Turn("policy", prompt, Completion(ids, logprobs, "stop"), trained)

    def make_one() -> Trajectory:
        kind = chance.random()
        if kind < 0.1:
            return Trajectory("t", (), "failed", None, "deadline", log={"error": "late"})
        turns = [make_turn(chance.random() < 0.8) for _ in range(chance.randint(1, 4))] + [
            make_turn(chance.random() < 0.5)
        ]
        status: Any = "truncated" if kind < 0.2 else "completed"
        return Trajectory("t", tuple(turns), status, float(chance.choice((0, 0, 1, 0.25))))

    return [[make_one() for _ in range(GROUP)] for _ in range(count)]


def rollout_of(key: str) -> str:
    return key.rpartition("_")[0]


def our_rows(groups: Any, algorithm: Any) -> dict[str, list[Row]]:
    """Our rows by the name of their rollout, `task{g}_{session}`; their `rollout_id` counts rollouts."""
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in rows_from_groups(groups, **algorithm.row_options()):
        rows[f"task{row.rollout_id // GROUP}_{row.rollout_id % GROUP}"].append(row)
    return rows


def nest_values(values: list[dict[str, torch.Tensor]], name: str) -> torch.Tensor:
    return torch.nested.as_nested_tensor([one[name] for one in values], layout=torch.jagged)


@pytest.mark.parametrize(
    ("loss_agg", "steps", "algorithm_of"),
    [
        *((loss_agg, steps, {}) for loss_agg in get_args(LossAgg) for steps in (1, 3)),
        ("rollout", 1, {"loss_mode": "gspo"}),
        ("token", 3, {"loss_mode": "cispo", "clip_ratio_low": 1.0}),
        ("token", 1, {"loss_mode": "dppo_tv", "clip_ratio_c": 10.0, "tis": None}),
        ("token", 3, {"loss_mode": "dppo_kl", "tis": None}),
        ("token", 1, {"adv_estimator": "rloo"}),
        ("token", 3, {"adv_estimator": "reinforce_plus_plus"}),
        ("rollout", 1, {"adv_estimator": "reinforce_plus_plus_baseline"}),
    ],
)
def test_the_loss_and_its_gradient_are_ours(
    verl: Any, compose: Any, tokenizer: Any, loss_agg: str, steps: int, algorithm_of: dict[str, Any]
) -> None:
    """200 groups in all: the steps, and in each step the loss over micro-batches of both ranks."""
    from verl.utils.tensordict_utils import assign_non_tensor
    from verl.workers.utils.padding import response_from_nested

    from core.backends.verl.loss import rollout_loss

    torch.manual_seed(0)
    groups = make_groups(20, seed=steps)
    settings = {"kl_loss_coef": 0.1, "entropy_coef": 0.01, "tis": [0.5, 2.0], "split_advantage": steps == 3}
    settings |= algorithm_of
    trainer, queue = compose(
        groups, tokenizer=tokenizer, loss_agg=loss_agg, num_steps_per_rollout=steps, max_response_length=7, **settings
    )
    algorithm = trainer._recipe.algorithm
    batch = trainer._balance_batch(queue.batch(), {})
    batch = trainer._compute_advantage(batch, {})
    ours = our_rows(groups, algorithm)
    cut = verl.mini_batches(trainer, batch)
    assert len(cut) == steps
    sizes = [len({rollout_of(key) for key in keys}) for keys in cut]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == 20 * GROUP
    seen = set()
    for keys in cut:
        names = {rollout_of(key) for key in keys}
        assert not names & seen  # no rollout is in two steps
        seen |= names
        # verl: micro-batches of 3 rows, over nested tensors, each with the log-probs of whole sequences.
        logits: dict[str, dict[str, torch.Tensor]] = {}
        for key in keys:
            size = len(queue.rows[key]["input_ids"])
            logits[key] = {
                name: (-torch.rand(size)).requires_grad_(name == "log_probs") for name in ("log_probs", "entropy")
            }
            logits[key] |= {name: -torch.rand(size) for name in ("old", "ref")}
        total, stats = torch.zeros(()), defaultdict(float)
        for start in range(0, len(keys), 3):
            micro = keys[start : start + 3]
            fields = ("prompts", "responses", "response_mask", "rollout_log_probs", "advantages", "loss_scales")
            data = queue.get(micro, "train", fields)
            nest = partial(nest_values, [logits[key] for key in micro])
            data["old_log_probs"] = response_from_nested(nest("old"), data["response_mask"])
            data["ref_log_prob"] = response_from_nested(nest("ref"), data["response_mask"])
            assign_non_tensor(data, dp_size=RANKS)
            output = {"log_probs": torch.cat([logits[key]["log_probs"] for key in micro]), "entropy": nest("entropy")}
            loss, metrics = partial(rollout_loss, coefficients=algorithm)(model_output=output, data=data)
            total = total + loss / RANKS  # the ranks' gradients are averaged
            for name, metric in metrics.items():
                stats[name] += metric.aggregate() / RANKS
        found = torch.autograd.grad(total, [logits[key]["log_probs"] for key in keys])

        # Ours: all rows of the step at once.
        pairs = [(key, ours[rollout_of(key)][int(key.rpartition("_")[2])]) for key in keys if rollout_of(key) in ours]
        rows = [row for _, row in pairs]
        values: dict[str, list[torch.Tensor]] = defaultdict(list)
        scales = row_scales(rows, algorithm.loss_agg, 7)
        for (key, row), scale in zip(pairs, scales, strict=True):
            size = len(row.loss_mask)
            for name, tensor in logits[key].items():
                values[name].append(tensor[len(tensor) - size - 1 : -1])  # position t predicts token t + 1
            values["rollout"].append(torch.tensor(row.logprobs))
            values["mask"].append(torch.tensor(row.loss_mask))
            values["advantages"].append(torch.full((size,), row.advantage))
            values["scales"].append(torch.full((size,), scale))
            values["sequence"].append(torch.full((size,), len(values["sequence"])))
        flat = {name: torch.cat(tensors) for name, tensors in values.items()}
        loss, expected = grpo_loss(
            flat["log_probs"], flat["old"], flat["rollout"], flat["ref"], flat["entropy"], flat["advantages"],
            flat["mask"], flat["scales"], algorithm, flat["sequence"],
        )  # fmt: skip
        gradient = torch.autograd.grad(loss, [logits[key]["log_probs"] for key in keys], allow_unused=True)
        assert total.item() == pytest.approx(loss.item(), abs=1e-6)
        for name, value in expected.items():
            assert stats[name] == pytest.approx(value.item(), abs=1e-5), name
        for theirs, one in zip(found, gradient, strict=True):
            torch.testing.assert_close(theirs, torch.zeros_like(theirs) if one is None else one, atol=1e-7, rtol=1e-5)


def rewards_of(groups: Any, key: str) -> Iterator[float]:
    return (t.reward for t in groups[int(key.split("_")[0].removeprefix("task"))])


def test_a_rollout_whose_last_row_is_masked_keeps_its_advantage(compose: Any, tokenizer: Any) -> None:
    """verl's own trainer reads the advantage of a rollout in its last row, and reads 0 where that is wholly masked."""
    groups = [[replace(t, reward=float(i % 2)) for i, t in enumerate(g)] for g in make_groups(12, seed=3)]
    groups = [[t for t in group if t.status != "failed"] for group in groups]
    trainer, queue = compose(groups, tokenizer=tokenizer, loss_agg="rollout")
    keys = [key for key in queue.rows if key.endswith("_1") and queue.rows[key]["response_mask"].any()]
    key = next(key for key in keys if len(set(rewards_of(groups, key))) > 1)
    last = max((k for k in queue.rows if rollout_of(k) == rollout_of(key)), key=lambda k: int(k.rpartition("_")[2]))
    queue.rows[last]["response_mask"] = torch.zeros_like(queue.rows[last]["response_mask"])
    trainer._compute_advantage(trainer._balance_batch(queue.batch(), {}), {})
    assert queue.rows[key]["advantages"].any()


def test_more_rows_are_not_more_steps(verl: Any, compose: Any, tokenizer: Any) -> None:
    """verl's own trainer takes a step for every ppo_mini_batch_size x n rows: 12 for the longer rollouts."""
    for turns in (1, 6):
        long = Turn("policy", (1, 2), Completion((3, 4), (-1.0, -1.0), "stop"), True)
        groups = [[Trajectory("t", (long,) * turns, reward=float(i % 2)) for i in range(GROUP)] for _ in range(4)]
        trainer, queue = compose(
            groups, "actor_rollout_ref.actor.ppo_mini_batch_size=2", tokenizer=tokenizer, num_steps_per_rollout=2
        )
        assert len(verl.mini_batches(trainer, trainer._balance_batch(queue.batch(), {}))) == 2
