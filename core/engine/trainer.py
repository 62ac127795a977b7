"""The trainer: GRPO and supervised steps on packed rows, AdamW with warm-up, checkpoints that resume exactly.

It trains the very weights that the inference engine samples from. Logits are computed on trained positions only; rows
without advantage are dropped before any forward unless a KL or entropy term needs them.

Tensor suffixes as in core.engine.packing.
"""

from __future__ import annotations

import copy
import math
import random
from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from core.algorithms.aggregate import row_scales
from core.algorithms.grpo import GRPOConfig, grpo_loss
from core.config import OptimizerSection
from core.engine.model import CausalLM
from core.engine.packing import Pack, pack_rows
from core.types import LossAgg, Row

OF_THE_POLICY = frozenset({"entropy_loss", "train_rollout_logprob_abs_diff", "ppo_kl", "tis", "tis_clipfrac"})
"""Statistics that a row has with or without advantage: leaving rows out must not make them smaller."""


class Trainer:
    """Owns the optimizer of one model. `temperature` is the one that rollouts are sampled at.

    The reference of the KL term is the model as it is given here, before any checkpoint is read into it. A bfloat16
    model is stepped through float32 copies of its weights: a step of 1e-6 would be lost in the rounding of bfloat16.
    """

    def __init__(
        self,
        model: CausalLM,
        optimizer: OptimizerSection,
        grpo: GRPOConfig | None = None,
        *,
        loss_agg: LossAgg = "rollout",
        temperature: float = 1.0,
        num_steps_per_rollout: int = 1,
        seed: int = 0,
    ):
        self.model, self.config, self.grpo, self.loss_agg = model, optimizer, grpo or GRPOConfig(), loss_agg
        self.temperature, self.num_steps_per_rollout, self.seed = temperature, num_steps_per_rollout, seed
        narrow = [p for p in model.parameters() if p.dtype != torch.float32]
        self._copies = [(p.detach().float().requires_grad_(), p) for p in narrow]
        self._stepped = [wide for wide, _ in self._copies] or list(model.parameters())
        groups: list[dict[str, Any]] = [
            {"params": [p for p in self._stepped if p.ndim > 1]},
            {"params": [p for p in self._stepped if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(
            groups,
            lr=optimizer.lr,
            betas=(optimizer.beta1, optimizer.beta2),
            weight_decay=optimizer.weight_decay,
        )
        self.steps = 0
        self.reference = copy.deepcopy(model).requires_grad_(False) if self.grpo.kl_loss_coef else None
        model.gradient_checkpointing = optimizer.gradient_checkpointing

    def grpo_step(self, rows: Sequence[Row]) -> dict[str, float]:
        """One rollout batch: `num_steps_per_rollout` optimizer steps over parts of it, rollouts kept whole.

        Returns the mean of each statistic over the steps taken; `rows_skipped` counts rows dropped for no advantage.
        What describes the policy (`OF_THE_POLICY`) is averaged over the rows that were not dropped.
        """
        steps = [step for part in self._split(rows) if (step := self._used(part))[0]]
        old_logprobs: list[list[list[float]] | None] = [None] * len(steps)
        if self.num_steps_per_rollout > 1:
            old_logprobs = [self._old_logprobs(used) for used, _, _ in steps]
        totals: dict[str, float] = defaultdict(float)
        for (used, scales, share), old in zip(steps, old_logprobs, strict=True):
            for pack in pack_rows(used, self.config.max_tokens_per_pack, self.model.device):
                for name, value in self._backward_grpo(pack, used, scales, old).items():
                    totals[name] += value.item() / (share if name in OF_THE_POLICY else 1.0)
            for name, number in self._apply().items():
                totals[name] += number
        skipped = len(rows) - sum(len(used) for used, _, _ in steps)
        means = {name: value / len(steps) for name, value in totals.items()}
        return means | {"rows": len(rows), "rows_skipped": skipped}

    def supervised_step(self, examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, float]:
        """One step of cross-entropy on the completions of (prompt ids, completion ids); every token counts the same."""
        rows = [
            Row((*prompt, *completion), (1,) * len(completion), (0.0,) * len(completion), 0.0, rollout_id=i)
            for i, (prompt, completion) in enumerate(examples)
        ]
        tokens = sum(row.trained_tokens for row in rows)
        total = 0.0
        for pack in pack_rows(rows, self.config.max_tokens_per_pack, self.model.device):
            with self._autocast():
                loss = -self._logprobs(self.model, pack, temperature=1.0)[0].sum() / tokens
            loss.backward()
            total += loss.item()
        return {"loss": total, **self._apply()}

    def state(self) -> dict[str, Any]:
        """All that an exact resume needs beyond the weights of now and of the start."""
        copies = [wide.detach() for wide, _ in self._copies]
        return {"optimizer": self.optimizer.state_dict(), "steps": self.steps, "float32_copies": copies}

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Take up a saved state; the model's own weights are read from the checkpoint beside it."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        for (wide, _), saved in zip(self._copies, state.get("float32_copies", ()), strict=True):
            wide.copy_(saved)

    def learning_rate(self) -> float:
        """Linear warm-up, then constant, cosine or linear decay to zero over `lr_decay_steps`."""
        config, step = self.config, self.steps
        if step < config.lr_warmup_steps:
            return config.lr * (step + 1) / config.lr_warmup_steps
        if config.lr_scheduler_type == "constant" or not config.lr_decay_steps:
            return config.lr
        progress = min(1.0, (step - config.lr_warmup_steps) / max(1, config.lr_decay_steps - config.lr_warmup_steps))
        return config.lr * (
            1 - progress if config.lr_scheduler_type == "linear" else (1 + math.cos(math.pi * progress)) / 2
        )

    def _split(self, rows: Sequence[Row]) -> list[list[Row]]:
        """The rows of each optimizer step: rollouts shuffled, then dealt one by one."""
        if self.num_steps_per_rollout == 1:
            return [list(rows)]
        by_rollout: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            by_rollout[row.rollout_id].append(row)
        rollouts = sorted(by_rollout)
        random.Random(f"{self.seed}-{self.steps}").shuffle(rollouts)
        return [
            [row for rollout in rollouts[first :: self.num_steps_per_rollout] for row in by_rollout[rollout]]
            for first in range(self.num_steps_per_rollout)
        ]

    def _used(self, rows: Sequence[Row]) -> tuple[list[Row], list[float], float]:
        """The rows of one step that have a gradient, the factor of each in the average over all rows, and the share
        of that average which is theirs."""
        always = bool(self.grpo.kl_loss_coef or self.grpo.entropy_coef)
        scaled = [(row, s) for row, s in zip(rows, row_scales(rows, self.loss_agg), strict=True) if s]
        used = [(row, s) for row, s in scaled if row.advantage or always]
        ours, all_of_it = (sum(s * row.trained_tokens for row, s in some) for some in (used, scaled))
        return [row for row, _ in used], [s for _, s in used], ours / all_of_it if used else 0.0

    @torch.no_grad()
    def _old_logprobs(self, rows: Sequence[Row]) -> list[list[float]]:
        """The trainer's own log-probs before the first step, one list over the response tokens of each row."""
        old: list[list[float]] = [[0.0] * len(row.loss_mask) for row in rows]
        for pack in pack_rows(rows, self.config.max_tokens_per_pack, self.model.device):
            with self._autocast():
                values = iter(self._logprobs(self.model, pack, self.temperature)[0].tolist())
            for index in pack.row_indices:
                old[index] = [next(values) if trained else 0.0 for trained in rows[index].loss_mask]
        return old

    def _backward_grpo(
        self, pack: Pack, rows: Sequence[Row], scales: Sequence[float], old: Sequence[Sequence[float]] | None
    ) -> dict[str, Tensor]:
        masks = [row.loss_mask for row in rows]
        rollout_logprobs = pack.gather([row.logprobs for row in rows], masks)
        with self._autocast():
            logprobs, entropy = self._logprobs(self.model, pack, self.temperature, with_entropy=True)
            reference = None
            if self.reference is not None:
                with torch.no_grad():
                    reference = self._logprobs(self.reference, pack, self.temperature)[0]
        # In the only step on a batch the policy has not moved yet: the old log-probs are those of this very forward.
        old_logprobs = logprobs.detach() if old is None else pack.gather(old, masks)
        loss, stats = grpo_loss(
            logprobs,
            old_logprobs,
            rollout_logprobs,
            reference,
            entropy,
            advantages_T=pack.spread([row.advantage for row in rows]),
            mask_T=torch.ones_like(logprobs),
            scales_T=pack.spread(scales),
            config=self.grpo,
        )
        loss.backward()
        return stats

    def _logprobs(
        self, model: CausalLM, pack: Pack, temperature: float, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probs (and entropies) of the trained tokens at `temperature`, float32 [R]."""
        hidden_RC = model(pack.ids_T, pack.positions_T, pack.attend, pack.predict_R)
        logprobs_RV = torch.log_softmax(model.logits(hidden_RC) / temperature, dim=-1)
        entropy_R = None
        if with_entropy:
            with torch.set_grad_enabled(bool(self.grpo.entropy_coef)):
                entropy_R = -(logprobs_RV.exp() * logprobs_RV).sum(dim=-1)
        return logprobs_RV.gather(1, pack.targets_R[:, None]).squeeze(1), entropy_R

    def _apply(self) -> dict[str, float]:
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        for wide, parameter in self._copies:
            wide.grad = None if parameter.grad is None else parameter.grad.float()
            parameter.grad = None
        norm = torch.nn.utils.clip_grad_norm_(self._stepped, self.config.clip_grad)
        if torch.isfinite(norm):
            self.optimizer.step()
            with torch.no_grad():
                for wide, parameter in self._copies:
                    parameter.copy_(wide)
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return {"grad_norm": norm.item(), "lr": rate, "nonfinite_steps": float(not torch.isfinite(norm))}

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.model.device.type == "cuda" and self.config.bf16_autocast:
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()
