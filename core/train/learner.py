"""A policy in training: its model, the trainer of that model, and what samples from it.

`policy` is always one. Each role whose place is `trained` is another, with weights of its own (core/config/recipe.py).
A row trains the policy that sampled it, and no other.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from core.config import Recipe
from core.engine import CausalLM, weights
from core.engine.lora import add_adapters
from core.text.tokenizer import Tokenizer
from core.train.rollout_engine import EmbeddedRollouts, ServedRollouts, open_rollouts
from core.train.trainer import Trainer, WatchRow
from core.types import POLICY, Row


@dataclass(frozen=True)
class Learner:
    model: CausalLM
    trainer: Trainer
    engine: EmbeddedRollouts | ServedRollouts


Learners = Mapping[str, Learner]
"""Maps the names of the trained policies to them, `policy` first."""


def open_learners(recipe: Recipe, start: Path, tokenizer: Tokenizer, served: Path, seed: int) -> dict[str, Learner]:
    """Open all trained policies on the model folder `start`; `served` is for the weights that servers read.

    With `model.lora` they share the weights of one model, and each has adapters of its own.
    """
    model = weights.load(start, recipe.model.dtype, recipe.model.device, recipe.model.lora)
    shared = {id(parameter): parameter for parameter in model.parameters()} if recipe.model.lora else {}
    models = {POLICY: model, **{role: deepcopy(model, dict(shared)) for role in recipe.trained_roles}}
    return {
        name: Learner(
            own,
            make_trainer(recipe, own, seed, start),
            open_rollouts(recipe, own, start, tokenizer, served, name),
        )
        for name, own in models.items()
    }


def make_trainer(recipe: Recipe, model: CausalLM, seed: int, start: Path) -> Trainer:
    """Return the trainer of a model that was read from the folder `start`; give the model the recipe's adapters."""
    add_adapters(model, recipe.model.lora, seed)
    return Trainer(
        model,
        recipe.optimizer,
        recipe.algorithm,
        loss_agg=recipe.algorithm.loss_agg,
        loss_length=recipe.algorithm.max_response_length or 1,
        temperature=recipe.rollout.temperature,
        num_steps_per_rollout=recipe.algorithm.num_steps_per_rollout,
        seed=seed,
        start=start,
        compiled=recipe.model.compile,
    )


def iterate_update(
    learners: Learners, rows: Sequence[Row], watch: WatchRow | None
) -> Generator[None, None, dict[str, float]]:
    """Step each trainer on its own rows, as `Trainer.iterate_grpo_step`; return the statistics of all.

    Those of a policy beside `policy` begin with its name. `nonfinite_steps` is the mean of all that took steps.
    """
    stats, skipped = dict[str, float](), list[float]()
    for name, learner in learners.items():
        own = [row for row in rows if row.policy == name]
        found = yield from learner.trainer.iterate_grpo_step(own, watch)
        stats |= found if name == POLICY else {f"{name}_{key}": value for key, value in found.items()}
        skipped += [found["nonfinite_steps"]] if "nonfinite_steps" in found else []
    return stats | ({"nonfinite_steps": fmean(skipped)} if skipped else {})


def measure_kl(learners: Learners, rows: Sequence[Row]) -> dict[int, float]:
    """Return the KL of each rollout to the start model, over all its policies, as `Trainer.measure_kl`."""
    totals: dict[int, float] = {}
    for name, learner in learners.items():
        for rollout_id, kl in learner.trainer.measure_kl([row for row in rows if row.policy == name]).items():
            totals[rollout_id] = totals.get(rollout_id, 0.0) + kl
    return totals
