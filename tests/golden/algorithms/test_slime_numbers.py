"""Our formulas against slime's own code, to 1e-6 in float32: values, gradients to log-probs, gradients to logits.

slime.json was written by make_golden.py, which runs slime.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from core.algorithms.advantages import group_advantages
from core.algorithms.aggregate import row_scales
from core.algorithms.grpo import GRPOConfig, grpo_loss
from core.algorithms.losses import clipped_policy_loss, kl_penalty, tis_weights
from core.types import Row
from tests import kit

HERE = Path(__file__).parent
SLIME: dict[str, Any] = json.loads((HERE / "slime.json").read_text())


def assert_equal(ours: Tensor | None, slime: Any) -> None:
    torch.testing.assert_close(ours, torch.as_tensor(slime), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", SLIME["advantages"])
def test_advantages(case: dict[str, Any]) -> None:
    ours = [a for group in case["groups"] for a in group_advantages(group, std_normalization=case["std_normalization"])]
    assert ours == pytest.approx(case["advantages"], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "low_var_kl"])
def test_kl(kind: Any) -> None:
    x = torch.tensor(SLIME["kl"]["x"], requires_grad=True)
    kl = kl_penalty(x, torch.zeros_like(x), kind)
    kl.sum().backward()
    assert_equal(kl.detach(), SLIME["kl"][kind]["value"])
    assert_equal(x.grad, SLIME["kl"][kind]["grad"])


@pytest.mark.parametrize(
    "case", SLIME["policy_loss"]["cases"], ids=lambda case: f"{case['config']}-{case['advantage']}"
)
def test_clipped_policy_loss(case: dict[str, Any]) -> None:
    x = torch.tensor(SLIME["policy_loss"]["log_ratio"], requires_grad=True)
    loss, clipped = clipped_policy_loss(x, torch.full_like(x, case["advantage"]), **case["config"])
    loss.sum().backward()
    assert_equal(loss.detach(), case["value"])
    assert_equal(x.grad, case["grad"])
    assert_equal(clipped, case["clipped"])


@pytest.mark.parametrize("case", SLIME["tis"]["cases"], ids=lambda case: f"{case['mode']}-{case['low']}-{case['high']}")
def test_tis_weights(case: dict[str, Any]) -> None:
    x = torch.tensor(SLIME["tis"]["log_ratio"])
    weights = tis_weights(x, torch.zeros_like(x), low=case["low"], high=case["high"], mode=case["mode"])
    assert_equal(weights, case["weights"])


@pytest.mark.parametrize("case", SLIME["grpo"]["cases"], ids=lambda case: case["name"])
def test_grpo_loss(case: dict[str, Any]) -> None:
    """A whole batch at once; slime's numbers of some cases are those of several micro-batches added up."""
    records, expected = SLIME["grpo"]["rows"], case["expected"]
    rows = [
        Row(
            tokens=tuple(record["tokens"]),
            loss_mask=tuple(record["loss_mask"]),
            logprobs=tuple(record["rollout"]),
            advantage=record["advantage"],
            rollout_id=record["rollout_id"],
        )
        for record in records
    ]
    lengths = torch.tensor([len(row.loss_mask) for row in rows])

    def per_token(values: list[float]) -> Tensor:
        return torch.tensor(values).repeat_interleave(lengths)

    def joined(name: str) -> Tensor:
        return torch.tensor([x for record in records for x in record[name]])

    logits = joined("logits").requires_grad_()
    all_logprobs = (logits / case.get("temperature", 1.0)).log_softmax(-1)
    targets = torch.tensor([token for row in rows for token in row.tokens[-len(row.loss_mask) :]])
    logprobs = all_logprobs.gather(-1, targets[:, None]).squeeze(-1)
    logprobs.retain_grad()

    loss, stats = grpo_loss(
        logprobs,
        joined("old"),
        joined("rollout"),
        joined("reference"),
        -(all_logprobs.exp() * all_logprobs).sum(-1),
        per_token([row.advantage for row in rows]),
        joined("loss_mask"),
        per_token(row_scales(rows, case["unit"])),
        GRPOConfig(**case["config"]),
    )
    loss.backward()

    assert_equal(loss.detach(), expected["loss"])
    assert stats.keys() - {"loss"} == expected["stats"].keys()
    for name, value in expected["stats"].items():
        assert_equal(stats[name], value)
    assert_equal(logprobs.grad, [x for row in expected["grad_logprobs"] for x in row])
    assert_equal(logits.grad, [x for row in expected["grad_logits"] for x in row])


@pytest.mark.optional
@pytest.mark.skipif(not os.environ.get("SLIME_ROOT"), reason=kit.SLIME)
def test_numbers_are_those_of_slime_at_slime_root() -> None:
    command = [sys.executable, "-m", "tests.golden.algorithms.make_golden", "--check"]
    result = subprocess.run(command, cwd=HERE.parents[2], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
