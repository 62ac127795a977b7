"""Our loss in the place of verl's: the GRPO loss with the weight that each row has in its optimizer step.

verl's losses average over rows, and their KL and entropy terms follow no weights. verl's engines call this function
for each micro-batch and add the gradients up.
"""

from __future__ import annotations

from typing import Any

import torch
from verl.utils.metric import AggregationType, Metric
from verl.workers.utils.padding import no_padding_2_padding

from core.algorithms.grpo import GRPOConfig, grpo_loss
from core.backends.verl.rows import SCALES


def rollout_loss(model_output: Any, data: Any, dp_group: Any = None, *, coefficients: GRPOConfig) -> tuple[Any, Any]:
    """Return the loss of a micro-batch and its statistics, which add up to those of the step over all ranks."""
    names = ["response_mask", "old_log_probs", "rollout_log_probs", "advantages", SCALES]
    names += ["ref_log_prob"] if "ref_log_prob" in data else []
    # Each is [rows, longest response], padded with zeros behind; a padded token has mask 0.
    padded = data.select(*names).to_padded_tensor()
    scales = padded[SCALES].float()
    entropy = model_output.get("entropy")
    mask_BT = padded["response_mask"].bool() & (scales > 0)
    sequence_BT = torch.arange(len(mask_BT), device=mask_BT.device)[:, None].expand_as(mask_BT)
    loss, stats = grpo_loss(
        no_padding_2_padding(model_output["log_probs"], data),
        padded["old_log_probs"],
        padded["rollout_log_probs"],
        padded["ref_log_prob"] if "ref_log_prob" in data else None,
        None if entropy is None else no_padding_2_padding(entropy, data),
        padded["advantages"],
        mask_BT,
        scales,
        coefficients,
        sequence_BT,
    )
    ranks = data["dp_size"]  # data-parallel ranks average their gradients, and our weights are of the whole step
    return loss * ranks, {name: Metric(AggregationType.SUM, value * ranks) for name, value in stats.items()}
