"""Trains on packed rows: GRPO and supervised steps, AdamW with warm-up, checkpoints that resume exactly.

It trains the very weights that the inference engine samples from. Logits are computed only where a log-prob is needed;
rows without advantage are skipped before any forward unless a KL, entropy, value or observation term needs them.
Tensor suffixes: core/__init__.py.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from core.algorithms.aggregate import row_scales
from core.algorithms.grpo import GRPOConfig, grpo_loss
from core.algorithms.losses import balance_loss
from core.config import OptimizerSection
from core.engine import CausalLM, ModelConfig, lora, weights
from core.engine.heap import map_large_tensors, return_freed_memory
from core.engine.states import CHUNK
from core.options import RecipeError
from core.train.optimizer import make_optimizer, needs_float32_copy
from core.train.packing import Pack, pack_rows
from core.types import LossAgg, Row

POLICY_STATISTICS = frozenset({"entropy_loss", "train_rollout_logprob_abs_diff", "ppo_kl", "tis", "tis_clipfrac"})
"""Lists the statistics that a row has with or without advantage: skipping rows must not make them smaller."""
LOSSES = ("loss", "pg_loss", "observation_loss", "router_aux_loss")
LOGITS_PER_CHUNK = 1 << 24
"""Sets how many logits are computed at a time: 64 MB in float32."""
LARGE_MODEL_PARAMETERS = 50_000_000
"""Separates models for which it pays to give freed memory back after every pack: a tenth of a second."""

WatchRow = Callable[[Row, Sequence[float], float], None]
"""Takes a row, the log-prob of each token of its response (0 where it is not trained), and its scale in the loss."""


class TrainingError(RuntimeError):
    """Reports that training cannot go on; the message says why."""


class _StepRows(NamedTuple):
    """Holds the rows of one optimizer step that have a gradient, and what they weigh in the average over all its rows.

    `masks` mark the response tokens whose log-probs the step needs: the trained ones, and with an `observation_coef`
    the `observed` tokens between them. `scales` is the factor of each row in that average; `share` is the part of the
    average that falls to these rows. `total` is what all tokens weigh together: 1, but not with `loss_agg` constant,
    which is no average.
    """

    rows: list[Row]
    masks: list[tuple[int, ...]]
    observed: int
    scales: list[float]
    share: float
    total: float


class Trainer:
    """Owns the optimizer of one model. Rollouts must be sampled at `temperature`.

    The reference of the KL term is the model as it is given here, before any checkpoint is read into it. If the model
    has adapters, they alone are trained. A bfloat16 model is optimized through float32 copies of what is trained:
    bfloat16 would round a step of 1e-6 away. `optimizer.name: adamw8bit` copies norms and biases alone and rounds the
    other weights at random (core/train/optimizer.py). With `optimizer.cpu_offload` all that is trained has float32
    copies, which lie in the machine's memory with their gradients and moments, and the step is computed there.
    """

    def __init__(
        self,
        model: CausalLM,
        optimizer: OptimizerSection,
        grpo: GRPOConfig | None = None,
        *,
        loss_agg: LossAgg = "rollout",
        loss_length: int = 1,
        temperature: float = 1.0,
        num_steps_per_rollout: int = 1,
        seed: int = 0,
        start: Path | None = None,
        compiled: bool = False,
    ):
        """`start` is the folder that the model was read from, whose weights may be more precise than the model's.

        `loss_length` is what `loss_agg` constant divides by.

        With `compiled`, forward and backward pass of the layers are compiled, attention excepted.
        """
        self.model = model
        self.config = optimizer
        self.grpo = grpo or GRPOConfig()
        self.loss_agg: LossAgg = loss_agg
        self.loss_length = loss_length
        self.temperature = temperature
        self.num_steps_per_rollout = num_steps_per_rollout
        self.seed = seed
        # Pairs of a float32 copy and its parameter; none for a float32 model that is optimized where it is. A
        # float32 copy that began at a value of bfloat16 must move 1e-4 before a weight of 0.06 changes, which would
        # hide the first steps of RL.
        freeze_weights(model, optimizer.frozen)
        trained = lora.find_trained_parameters(model)
        copied = {name: p for name, p in trained.items() if needs_float32_copy(optimizer, p.numel(), p.dtype)}
        self._adapted = bool(lora.find_adapters(model))
        precise = weights.read(model, start) if start is not None and copied and not self._adapted else {}
        place = torch.device("cpu") if optimizer.cpu_offload else model.device
        copies = {
            name: precise.pop(name, p).detach().to(place, torch.float32, copy=True).requires_grad_()
            for name, p in copied.items()
        }
        self._copies = [(copies[name], p) for name, p in copied.items()]
        self._by_name = {name: copies.get(name, p) for name, p in trained.items()}
        self._optimized = list(self._by_name.values())
        if self.grpo.router_aux_loss_coef:
            if not model.experts_per_token:
                raise RecipeError(
                    "algorithm.router_aux_loss_coef is set, and transformers has no such loss for the model: it is no "
                    "mixture of experts, or balances them otherwise. Set it to 0"
                )
            model.keeps_router_logits = True
        self.value_head = None
        if self.grpo.vf_coef:
            if optimizer.cpu_offload:
                raise RecipeError("algorithm.vf_coef is not for optimizer.cpu_offload; set optimizer.cpu_offload=false")
            self.value_head = torch.nn.Linear(model.config.hidden_size, 1, device=model.device)
            for parameter in self.value_head.parameters():
                torch.nn.init.zeros_(parameter)  # it expects nothing at first
        head = () if self.value_head is None else self.value_head.parameters()
        self._learned = [*self._optimized, *head]
        self.optimizer = make_optimizer(optimizer, self._learned, seed)
        self.steps = 0
        needs_copy = (self.grpo.kl_loss_coef or self.grpo.kl_coef) and not self._adapted
        model.drop_prepacked()  # oneDNN's cannot be copied
        self.reference = deepcopy(model).requires_grad_(False) if needs_copy else None
        model.gradient_checkpointing = optimizer.gradient_checkpointing
        if compiled and model.config.other:
            raise RecipeError("model.compile is for Qwen2, Qwen2.5, Qwen3 and Llama; set it to false")
        model.compiled = compiled
        # What a large model frees stays in glibc's lists otherwise, where the next pack's tensors do not fit.
        large = sum(parameter.numel() for parameter in model.parameters()) > LARGE_MODEL_PARAMETERS
        self._returns_memory = large and model.device.type == "cpu"
        if model.device.type == "cpu" and optimizer.gradient_checkpointing:
            map_large_tensors()

    def grpo_step(self, rows: Sequence[Row]) -> dict[str, float]:
        """Train on one rollout batch: `num_steps_per_rollout` optimizer steps over parts of it, rollouts kept whole.

        Returns the mean of each statistic over the steps taken; `rows_skipped` counts rows skipped for no advantage.
        The `POLICY_STATISTICS` are averaged over the rows that were not skipped. Without any row, or any advantage that
        matters, it takes no step and changes nothing.
        """
        return finish(self.iterate_grpo_step(rows))

    def iterate_grpo_step(
        self, rows: Sequence[Row], watch: WatchRow | None = None
    ) -> Generator[None, None, dict[str, float]]:
        """Do the work of `grpo_step`, and yield between two packs as long as no weight has changed.

        Meanwhile the model may sample. The generator returns the statistics. `watch` is told of each row that was not
        skipped: its log-probs under the weights before the first step, and its scale in the loss.
        """
        # As long as the model is the reference, the gradient of a KL term is 0: it needs no forward.
        teaches = any(map(_teaches, rows)) or self.steps or self.grpo.kl_loss_type == "k1"
        config = self.grpo
        keep_all = bool(config.entropy_coef or config.observation_coef or config.vf_coef)
        keep_all = keep_all or bool(config.kl_loss_coef and teaches)
        steps = [step for part in self._split(rows) if (step := self._select_rows(part, keep_all)).rows]
        old_logprobs: list[list[list[float]] | None] = [None] * len(steps)
        if self.num_steps_per_rollout > 1:
            old_logprobs = [self.compute_logprobs(step.rows, step.masks) for step in steps]
        totals: dict[str, float] = defaultdict(float)
        # The clipped ratio decides nothing where the advantage is 0; the bounds of the other losses hold there, too.
        averaged = POLICY_STATISTICS | ({"pg_clipfrac"} if config.loss_mode not in ("vanilla", "gspo") else set())
        for number, (step, old) in enumerate(zip(steps, old_logprobs, strict=True)):
            packs = self._pack(step.rows, step.masks)
            packed = sum(len(pack.ids_T) for pack in packs)
            for pack in packs:
                share = len(pack.ids_T) / packed
                for name, value in self._backward_grpo(pack, step, old, watch, share).items():
                    weight = 1.0 if name in LOSSES else step.total  # what is no loss is a mean over tokens
                    totals[name] += value.item() / (step.share if name in averaged else 1.0) / weight
                if number == 0:
                    yield
            for name, statistic in self._step_optimizer().items():
                totals[name] += statistic
        skipped = len(rows) - sum(len(step.rows) for step in steps)
        means = {name: total / len(steps) for name, total in totals.items()}
        return means | {"rows": len(rows), "rows_skipped": skipped}

    def measure_kl(self, rows: Sequence[Row]) -> dict[int, float]:
        """Return the KL of each rollout to the reference, summed over its trained tokens, in nats, by rollout id.

        It is that of the policy that sampled: its own log-probs less those of the reference (k1).
        """
        totals: dict[int, float] = defaultdict(float)
        with self._open_reference() as reference:
            ref_logprobs = self.compute_logprobs(rows, model=reference)
        for row, of_row in zip(rows, ref_logprobs, strict=True):
            pairs = zip(row.logprobs, of_row, row.loss_mask, strict=True)
            totals[row.rollout_id] += sum(now - ref for now, ref, trained in pairs if trained)
        return totals

    @torch.no_grad()
    def compute_logprobs(
        self, rows: Sequence[Row], masks: Sequence[Sequence[int]] | None = None, model: CausalLM | None = None
    ) -> list[list[float]]:
        """Compute the log-prob of each response token that a mask marks, 0 for the others, one list for each row.

        The masks are the rows' own where none are given, and the model is the one in training.
        """
        masks = [row.loss_mask for row in rows] if masks is None else masks
        found: list[list[float]] = [[0.0] * len(mask) for mask in masks]
        for pack in self._pack(rows, masks):
            with self._autocast():
                hidden_RC = run_layers(model or self.model, pack)
                logprobs_R = self._compute_logprobs(model or self.model, pack, hidden_RC, self.temperature)[0]
            for index, values in pack.scatter(logprobs_R, masks).items():
                found[index] = values
        return found

    def supervised_step(self, examples: Sequence[tuple[Sequence[int], Sequence[int]]]) -> dict[str, float]:
        """Take one step of cross-entropy on (prompt ids, completion ids); every completion token counts the same.

        Without any such token, it takes no step and changes nothing.
        """
        rows = [
            Row((*prompt, *completion), (1,) * len(completion), (0.0,) * len(completion), 0.0, rollout_id=i)
            for i, (prompt, completion) in enumerate(examples)
        ]
        total, tokens = 0.0, sum(row.trained_tokens for row in rows)
        if not tokens:
            return {"loss": total}
        for pack in pack_rows(rows, self.config.max_tokens_per_pack, self.model.device):
            with self._autocast():
                loss = -self._compute_logprobs(self.model, pack, run_layers(self.model, pack), 1.0)[0].sum() / tokens
            self._backward(loss)
            total += loss.item()
        return {"loss": total, **self._step_optimizer()}

    def precise_weights(self) -> dict[str, Tensor]:
        """Return the weights by parameter name: in float32, but for those of bfloat16 that have no float32 copy."""
        if self._adapted:
            return lora.merge_weights(self.model, torch.float32)
        return {name: self._by_name.get(name, p).detach() for name, p in self.model.named_parameters()}

    def state(self) -> dict[str, Any]:
        """Return all that an exact resume needs beyond the current weights and the start model."""
        copies = [copy.detach() for copy, _ in self._copies]
        head = {} if self.value_head is None else {"value_head": self.value_head.state_dict()}
        return {"optimizer": self.optimizer.state_dict(), "steps": self.steps, "float32_copies": copies, **head}

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Restore a saved state; the model's own weights come from the checkpoint that holds it."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]
        for (copy, _), saved in zip(self._copies, state.get("float32_copies", ()), strict=True):
            copy.copy_(saved)
        if self.value_head is not None:
            self.value_head.load_state_dict(state["value_head"])

    def learning_rate(self) -> float:
        """Return the rate of the next step: linear warm-up, then constant, or cosine or linear decay to zero."""
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
        """Split a batch into the rows of each optimizer step: rollouts are shuffled, then dealt one by one."""
        if self.num_steps_per_rollout == 1:
            return [list(rows)]
        by_rollout: dict[int, list[Row]] = defaultdict(list)
        for row in rows:
            by_rollout[row.rollout_id].append(row)
        rollouts = sorted(by_rollout)
        random.Random(f"{self.seed}-{self.steps}").shuffle(rollouts)
        # Step `first` gets every num_steps_per_rollout-th rollout, so the steps differ by one rollout at most.
        return [
            [row for rollout in rollouts[first :: self.num_steps_per_rollout] for row in by_rollout[rollout]]
            for first in range(self.num_steps_per_rollout)
        ]

    def _select_rows(self, rows: Sequence[Row], keep_all: bool) -> _StepRows:
        """Select the rows with an advantage, or all; the scales are those of the average over all rows of the step."""
        scales = row_scales(rows, self.loss_agg, self.loss_length)
        scaled = [(row, s) for row, s in zip(rows, scales, strict=True) if s]
        selected = [(row, s) for row, s in scaled if keep_all or _teaches(row)]
        part, whole = (sum(s * row.trained_tokens for row, s in pairs) for pairs in (selected, scaled))
        share, total = part / whole if selected else 0.0, whole if self.loss_agg == "constant" else 1.0
        kept = [row for row, _ in selected]
        masks = [(1,) * len(row.loss_mask) if self.grpo.observation_coef else row.loss_mask for row in kept]
        observed = sum(map(sum, masks)) - sum(row.trained_tokens for row in kept)
        return _StepRows(kept, masks, observed, [s for _, s in selected], share, total)

    def _pack(self, rows: Sequence[Row], masks: Sequence[Sequence[int]]) -> list[Pack]:
        predicted = [replace(row, loss_mask=tuple(mask)) for row, mask in zip(rows, masks, strict=True)]
        return pack_rows(predicted, self.config.max_tokens_per_pack, self.model.device)

    def _backward_grpo(
        self,
        pack: Pack,
        step: _StepRows,
        old: Sequence[Sequence[float]] | None,
        watch: WatchRow | None,
        share: float,
    ) -> dict[str, Tensor]:
        """Add the gradient of one pack and return its statistics; `old` are the old log-probs of the step's rows.

        `share` is that of the step's packed tokens.
        """
        masks = step.masks
        trained_R = pack.gather([row.loss_mask for row in step.rows], masks).bool()
        rollout_logprobs_R = pack.gather([row.logprobs for row in step.rows], masks)
        with self._autocast():
            hidden_RC = run_layers(self.model, pack)
            router_logits = self.model.router_logits
            logprobs_R, entropy_R = self._compute_logprobs(self.model, pack, hidden_RC, self.temperature, True)
            ref_logprobs_R = None
            if self.grpo.kl_loss_coef:
                with torch.no_grad(), self._open_reference() as reference:
                    ref_hidden_RC = run_layers(reference, pack)
                    ref_logprobs_R = self._compute_logprobs(reference, pack, ref_hidden_RC, self.temperature)[0]
        # In the only step on a batch the policy has not moved yet: the old log-probs are those of this very forward.
        old_logprobs_R = logprobs_R.detach() if old is None else pack.gather(old, masks)
        if watch is not None:
            for index, values in pack.scatter(old_logprobs_R, masks).items():
                watch(step.rows[index], values, step.scales[index])
        advantages_R = pack.gather([row.advantages for row in step.rows], masks)
        scales_R, value_loss = pack.spread(step.scales), None
        if self.value_head is not None:
            # What the rows hold are returns; the advantage is what the head did not expect.
            errors_R = advantages_R - self.value_head(hidden_RC.float()).squeeze(1)
            value_loss = (scales_R * errors_R.square() / 2)[trained_R].sum()
            advantages_R = errors_R.detach()
        # The pack has dropped the tokens without a log-prob already, so the loss's T is R here.
        loss, stats = grpo_loss(
            logprobs_R,
            old_logprobs_R,
            rollout_logprobs_R,
            ref_logprobs_R,
            entropy_R,
            advantages_T=advantages_R,
            mask_T=trained_R,
            scales_T=scales_R,
            config=self.grpo,
            sequence_T=pack.row_R,
        )
        if self.grpo.observation_coef:
            observed = -logprobs_R[~trained_R].sum() / max(1, step.observed)
            loss = loss + self.grpo.observation_coef * observed
            stats |= {"observation_loss": observed.detach(), "loss": loss.detach()}
        if self.grpo.router_aux_loss_coef:
            if not router_logits:
                raise ValueError("router_aux_loss_coef is set, and no layer of the model has experts; set it to 0")
            balance = share * balance_loss(router_logits, self.model.experts_per_token)
            loss = loss + self.grpo.router_aux_loss_coef * balance
            stats |= {"router_aux_loss": balance.detach(), "loss": loss.detach()}
        if value_loss is not None:
            loss = loss + self.grpo.vf_coef * value_loss
            stats |= {"value_loss": value_loss.detach(), "loss": loss.detach()}
        self._backward(loss)
        return stats

    def _compute_logprobs(
        self, model: CausalLM, pack: Pack, hidden_RC: Tensor, temperature: float, with_entropy: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the log-probs (and entropies) of the trained tokens at `temperature`, float32 [R].

        Logits are computed for `LOGITS_PER_CHUNK` at a time. Where there are several chunks, the backward pass computes
        each again, so that never more than one chunk's logits exist; a frozen head needs them once (`FrozenHead`).
        """

        def score(hidden_XC: Tensor, targets_X: Tensor) -> tuple[Tensor, Tensor | None]:
            """Return log-probs and entropies of the tokens X of one chunk."""
            logprobs_XV = torch.log_softmax(model.logits(hidden_XC).div_(temperature), dim=-1)
            logprobs_X = logprobs_XV.gather(1, targets_X[:, None]).squeeze(1)
            entropy_X = None
            if with_entropy:
                # After all that needs a gradient: what comes last is not computed again in the backward pass.
                with torch.set_grad_enabled(bool(self.grpo.entropy_coef) and torch.is_grad_enabled()):
                    entropy_X = -(logprobs_XV.exp() * logprobs_XV).sum(dim=-1)
            return logprobs_X, entropy_X

        size = max(1, LOGITS_PER_CHUNK // model.config.vocab_size)
        chunks = list(zip(hidden_RC.split(size), pack.targets_R.split(size), strict=True))
        if len(chunks) == 1:
            return score(*chunks[0])
        learns = model.lm_head.adapter is not None or model.lm_head.weight.requires_grad
        simple = model.plain_head and not (self.grpo.entropy_coef or learns)
        if hidden_RC.requires_grad and simple:
            scores = [FrozenHead.apply(hidden, model, targets, temperature) for hidden, targets in chunks]
        else:
            scores = [checkpoint(score, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks]
        logprobs, entropies = zip(*scores, strict=True)
        return torch.cat(logprobs), torch.cat(entropies) if with_entropy else None

    def _backward(self, loss: Tensor) -> None:
        """Add the gradient of one pack; that of a parameter with a float32 copy goes there as soon as it is known."""
        hooks = [p.register_post_accumulate_grad_hook(partial(_move_gradient, copy)) for copy, p in self._copies]
        try:
            loss.backward()
        finally:
            for hook in hooks:
                hook.remove()
        if self._returns_memory:
            return_freed_memory()

    def _step_optimizer(self) -> dict[str, float]:
        """Apply the gradients, unless their norm is not finite, and clear them."""
        rate = self.learning_rate()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        gradients = [parameter.grad for parameter in self._learned if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        if not torch.isfinite(norm):  # the squares of finite gradients may leave the range of float32
            norm = torch.stack([torch.linalg.vector_norm(g, dtype=torch.float64) for g in gradients]).norm()
        torch.nn.utils.clip_grads_with_norm_(self._learned, self.config.clip_grad, norm)
        if torch.isfinite(norm):
            self.optimizer.step()
            with torch.no_grad():
                for copy, parameter in self._copies:
                    parameter.copy_(copy)
        self.optimizer.zero_grad(set_to_none=True)
        self.steps += 1
        return {"grad_norm": norm.item(), "lr": rate, "nonfinite_steps": float(not torch.isfinite(norm))}

    def _open_reference(self) -> AbstractContextManager[CausalLM]:
        """Give the model that the KL term compares with: the copy of the start model, or the model without adapters."""
        return lora.without_adapters(self.model) if self.reference is None else nullcontext(self.reference)

    def _autocast(self) -> AbstractContextManager[Any]:
        if self.model.device.type == "cuda" and self.config.bf16_autocast:
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return nullcontext()


class FrozenHead(torch.autograd.Function):
    """Computes log-probs and entropies [X] of the tokens X, and in the same pass what the gradient needs.

    The gradient of log p(target) by the hidden state is W[target] - sum_v p(v) W[v], over the temperature.
    """

    @staticmethod
    def forward(
        ctx: Any, hidden_XC: Tensor, model: CausalLM, targets_X: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        weight_VC = model.lm_head.weight
        logprobs_XV = torch.log_softmax(model.logits(hidden_XC).div_(temperature), dim=-1)
        probs_XV = logprobs_XV.exp()
        entropy_X = -torch.linalg.vecdot(probs_XV, logprobs_XV)
        ctx.save_for_backward((weight_VC[targets_X] - probs_XV.to(weight_VC.dtype) @ weight_VC) / temperature)
        ctx.mark_non_differentiable(entropy_X)
        return logprobs_XV.gather(1, targets_X[:, None]).squeeze(1), entropy_X

    @staticmethod
    def backward(ctx: Any, gradient_X: Tensor, _: Tensor) -> tuple[Tensor, None, None, None]:
        (slope_XC,) = ctx.saved_tensors
        return (gradient_X[:, None] * slope_XC).to(slope_XC.dtype), None, None, None


def freeze_weights(model: CausalLM, parts: Sequence[str]) -> None:
    """Freeze weights whose names hold one of `parts`. Raises RecipeError if no name holds one, or no weight is left."""
    names = dict(model.named_parameters())
    for part in parts:
        found = [name for name in names if part in name]
        if not found:
            raise RecipeError(f"optimizer.frozen: no weight's name holds {part!r}; the last one is {list(names)[-1]}")
        for name in found:
            names[name].requires_grad_(False)
    if parts and not any(parameter.requires_grad for parameter in names.values()):
        raise RecipeError(
            f"optimizer.frozen: {list(parts)} leave no weight to train; name fewer. With model.lora all are frozen: "
            "leave it out there, and name fewer model.lora.targets"
        )


def run_layers(model: CausalLM, pack: Pack) -> Tensor:
    """Return the last hidden states of the tokens that predict the trained ones, [R, C]."""
    return model(pack.ids_T, pack.positions_T, pack.attend, pack.predict_R)


def _teaches(row: Row) -> bool:
    return any(row.advantages) if isinstance(row.advantage, tuple) else bool(row.advantage)


def finish(work: Generator[None, None, dict[str, float]]) -> dict[str, float]:
    """Do the rest of a step at once and return its statistics."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            return dict(done.value)


def _move_gradient(copy: Tensor, parameter: Tensor) -> None:
    """Add a parameter's gradient to that of its float32 copy: a bfloat16 sum over many packs would stop growing.

    A copy in the machine's memory gets the gradient in the number format of the parameter, which has fewer bytes.
    """
    assert parameter.grad is not None
    gradient = parameter.grad.to(copy.device)
    parameter.grad = None
    if copy.grad is None:
        copy.grad = gradient.float()
    else:
        copy.grad += gradient


def pack_bytes(
    config: ModelConfig,
    tokens: int,
    trained: int,
    keys: int,
    *,
    dtype: torch.dtype = torch.float32,
    gradient_checkpointing: bool = False,
    trains_head: bool = True,
) -> int:
    """Estimate the bytes that forward and backward pass of one pack take at the peak, beside weights and gradients.

    The pack has `tokens` tokens, of which `trained` predict a trained one; its branches and roots attend to `keys` keys
    (`Pack.attend.padded.keys`), at least one for each token. `dtype` is what the layers compute in.
    """
    size, queries, width = dtype.itemsize, config.num_heads * config.head_dim, config.hidden_size
    # Both norms of a layer keep their input and its normalized form in float32, and their output. A layer without a
    # norm of queries and keys has no more than these two.
    norms = 2 * width * (2 * 4 + size)
    if config.qk_norm:
        norms += (queries + config.num_kv_heads * config.head_dim) * 2 * 4
    # The rotated queries in buckets, what they attended to, and the same in the order of T; keys and values.
    attention = tokens * (norms + 3 * queries * size) + keys * 2 * config.num_kv_heads * config.head_dim * size
    # Gate, its SiLU, up, and their product.
    mlp = 4 * config.intermediate_size * size
    # Scores that are written out: of a pack that is one row, with what the backward pass makes of them.
    scores = config.scored * 5 * 4 * config.num_heads * tokens * tokens
    mixers = [attention + scores] * len(config.attending_layers)
    if config.states is not None:
        (_, channels), (heads, keys_size, values_size) = config.states.recent_WC, config.states.memory_HDE
        # Numbers in float32 of the convolution and of each head, counted with the hooks of autograd: vectors, what the
        # tokens of a chunk are to each other, and a memory for each chunk. Rows that are no whole chunks take more.
        numbers = 10 * keys_size + 9 * values_size + 5 * CHUNK + keys_size * values_size // CHUNK
        mixed = channels * (3 if size == 4 else 6)
        mixers += [tokens * (norms + 4 * (mixed + heads * numbers))] * len(config.states.layers)
    layer = max(mixers) + tokens * mlp
    if gradient_checkpointing:
        kept = config.num_layers * tokens * width * size + layer
    else:
        # The last layer has no MLP for tokens that predict nothing.
        kept = sum(mixers) + config.num_layers * tokens * mlp - (tokens - trained) * mlp
    # On top of that come the gradients of one layer, about as large as its activations; or, before them, those of the
    # head: of one chunk of logits in float32 (log-probs, entropies and what the backward pass makes of them), and of
    # the head's weight, twice because that of the chunk is added to that of the chunks before.
    chunk = 4 * min(trained, max(1, LOGITS_PER_CHUNK // config.vocab_size)) * config.vocab_size
    logits = max(4 * chunk, 2 * chunk + trains_head * 2 * config.vocab_size * width * size)
    return kept + max(layer, logits)
