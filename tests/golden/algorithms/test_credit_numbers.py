"""Our losses and advantages against the code of verl and of the methods' authors, to 1e-6: values and gradients.

credit.json was written by make_credit.py, which runs that code. Where ours differs by design, the cases keep out:

- A rollout that is alone in its group has no baseline: ours gets 0 (verl's RLOO and GiGPO's code give it its reward).
- MT-GRPO's code divides by std + 1e-4, ours by std + 1e-6. It gives a rollout without a tool call the normalised sum of
  both rewards, and every turn before the tool's answer the same one; ours compares turns of the same number.
- DPPO's ratio is to the inference engine, as in its authors' code; verl has it to the old policy, which is given it.
"""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
import torch
from torch import Tensor

from core.algorithms.advantages import group_advantages
from core.algorithms.aggregate import row_scales
from core.algorithms.grpo import GRPOConfig, grpo_loss
from core.rollout.rows import rows_from_groups
from core.types import Completion, Row, Trajectory, Turn

CREDIT: dict[str, Any] = json.loads(Path(__file__).with_name("credit.json").read_text())
FAILED = Trajectory("t", (), status="failed", failure="deadline", reward=7.0)


def assert_equal(ours: Any, theirs: Any) -> None:
    torch.testing.assert_close(torch.as_tensor(ours), torch.as_tensor(theirs), rtol=1e-6, atol=1e-6, check_dtype=False)


@pytest.mark.parametrize(
    "case",
    CREDIT["losses"],
    ids=lambda case: f"{case['source']}-{case['mode']}-{case['config']['clip_ratio_low']}-{case['loss_agg']}",
)
def test_losses(case: dict[str, Any]) -> None:
    records = CREDIT["rows"]
    rows = [
        Row((0,) * (len(record["mask"]) + 1), tuple(record["mask"]), tuple(record["rollout"]), 0.0, rollout_id=number)
        for number, record in enumerate(records)
    ]
    lengths = torch.tensor([len(row.loss_mask) for row in rows])

    def joined(name: str) -> Tensor:
        return torch.tensor([x for record in records for x in record[name]])

    logprobs = joined("logprobs").requires_grad_()
    loss, stats = grpo_loss(
        logprobs, joined("old"), joined("rollout"), None, None, joined("advantages"), joined("mask"),
        torch.tensor(row_scales(rows, case["loss_agg"])).repeat_interleave(lengths),
        GRPOConfig(loss_mode=case["mode"], **case["config"]),
        torch.arange(len(rows)).repeat_interleave(lengths),
    )  # fmt: skip
    loss.backward()
    assert_equal(loss.detach(), case["loss"])
    assert_equal(logprobs.grad, [x for row in case["grad"] for x in row])
    if "clipped" in case:
        assert_equal(stats["pg_clipfrac"], case["clipped"])


def make_rollout(bits: str, reward: float, turn_rewards: tuple[float, ...] = ()) -> Trajectory:
    """Make a conversation in which the bits 1 are sampled, each run of them by one turn."""
    turns: list[Turn] = []
    ids: tuple[int, ...] = (9,)
    for sampled, run in groupby(bits):
        new = tuple(int(bit) for bit in run)
        if sampled == "1":
            earned = turn_rewards[len(turns)] if len(turns) < len(turn_rewards) else None
            completion = Completion(new, (-1.0,) * len(new), "stop")
            turns.append(Turn("policy", ids, completion, True, reward=earned))
        ids = (*ids, *new)
    return Trajectory("t", tuple(turns), reward=reward)


def token_advantages(groups: list[list[Trajectory]], rows: Any = "segment", **options: Any) -> list[tuple[float, ...]]:
    """Return the advantages of the response of each row; a failed rollout stands in the middle of each group."""
    groups = [[group[0], FAILED, *group[1:]] for group in groups]
    made = rows_from_groups(groups, rows=rows, split_advantage=False, **{"std_normalization": True, **options})
    return [tuple(a if mask else 0.0 for a, mask in zip(row.advantages, row.loss_mask, strict=True)) for row in made]


@pytest.mark.parametrize("estimator", ["rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
def test_estimators(estimator: Any) -> None:
    numbers = CREDIT["estimators"]
    groups = [[make_rollout(bits, reward) for reward, bits in group] for group in numbers["groups"]]
    ours = token_advantages(groups, adv_estimator=estimator)
    assert [len(row) for row in ours] == [len(row) for row in numbers[estimator]]
    for mine, theirs in zip(ours, numbers[estimator], strict=True):
        assert_equal(mine, theirs)


def test_a_rollout_alone_in_its_group_has_no_baseline() -> None:
    for estimator in ("grpo", "rloo", "turn_grpo", "gigpo", "reinforce_plus_plus_baseline"):
        assert group_advantages([0.7], std_normalization=True, adv_estimator=estimator) == [0.0]
    assert group_advantages([0.7], std_normalization=True, adv_estimator="reinforce_plus_plus") == [0.7]


@pytest.mark.parametrize("case", CREDIT["gigpo"]["cases"], ids=lambda case: f"{case['turn_coef']}-{case['gamma']}")
def test_gigpo(case: dict[str, Any]) -> None:
    groups = [
        [
            Trajectory(
                "t",
                tuple(
                    Turn("policy", (place,), Completion((1,) * n, (0.0,) * n, "stop"), True, reward=earned, state=state)
                    for place, (state, earned, n) in enumerate(rollout["steps"])
                ),
                reward=rollout["reward"],
            )
            for rollout in group
        ]
        for group in CREDIT["gigpo"]["groups"]
    ]
    options = {name: case[name] for name in ("std_normalization", "turn_coef", "gamma")}
    ours = token_advantages(groups, rows="turn", adv_estimator="gigpo", **options)
    for mine, theirs in zip(ours, case["advantages"], strict=True):
        assert_equal(mine, theirs)


@pytest.mark.parametrize("case", CREDIT["mt_grpo"]["cases"], ids=lambda case: str(case["turn_coef"]))
def test_mt_grpo(case: dict[str, Any]) -> None:
    groups = CREDIT["mt_grpo"]["groups"]
    made = [[make_rollout(bits, outcome, (turn,)) for outcome, turn, bits in group] for group in groups]
    ours = token_advantages(made, adv_estimator="turn_grpo", turn_coef=case["turn_coef"])
    for mine, theirs, bits in zip(ours, case["advantages"], (bits for g in groups for _, _, bits in g), strict=True):
        assert_equal(mine, [x if bit == "1" else 0.0 for x, bit in zip(theirs, bits, strict=True)])
    for place, theirs in enumerate(case["normalised"]):
        rewards = [[rollout[place] for rollout in group] for group in groups]
        other = [(stdev(values) + 1e-6) / (stdev(values) + 1e-4) for values in rewards for _ in values]
        own = [a or 0.0 for values in rewards for a in group_advantages(values, std_normalization=True)]
        assert_equal([a * x for a, x in zip(own, other, strict=True)], theirs)
