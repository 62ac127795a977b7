"""verl's own workers and trainer in this process, with our engine or a script behind verl's client of its servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from core.backends.verl import settings
from tests.contract.backends import scored_memagent
from tests.contract.backends.conftest import case, model, tokenizer, verl  # noqa: F401

RANKS = 2
"""Data-parallel ranks of the actor."""
GROUP = 4
"""Rollouts of a group."""


@pytest.fixture
def compose(verl: Any, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: F811
    """(groups, *overrides of verl, **of the recipe's algorithm) -> our trainer, the queue and the balanced batch."""

    def make(groups: Any, *overrides: str, tokenizer: Any, **algorithm: Any) -> Any:  # noqa: F811
        recipe = scored_memagent.make_recipe(tasks_per_step=len(groups), group_size=GROUP)
        recipe["algorithm"] |= algorithm
        recipe["optimizer"]["lr_decay_steps"] = None
        config = verl.compose(tmp_path, model, recipe, "actor_rollout_ref.rollout.prompt_length=4", *overrides)
        queue = verl.Queue()
        queue.patch(monkeypatch)
        verl.put_groups(config, queue, groups, recipe["algorithm"]["rows"])
        settings._load.cache_clear()
        return verl.make_trainer(config, tokenizer, RANKS), queue

    return make
