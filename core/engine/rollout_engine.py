"""Where rollouts are sampled: by the engine in this process, on the trainer's own weights, or by servers beside it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from core.config import Recipe, RecipeError
from core.engine import lora, weights
from core.engine.model import CausalLM
from core.engine.policy import EmbeddedPolicy, open_engine
from core.policy.base import Policy, PolicyError
from core.policy.server_pool import ServerPool


class RolloutEngine(Protocol):
    """Samples from the weights that the trainer has handed over last."""

    @property
    def policy(self) -> Policy: ...

    @property
    def beside(self) -> bool:
        """Says whether sampling goes on by itself while the trainer computes."""
        ...

    async def adopt_weights(self, step: int) -> None:
        """Sample from the trainer's present weights from now on, as version `step`.

        Raises:
            RecipeError: none of the recipe's servers takes them.
        """
        ...

    def release_cache(self) -> None:
        """Free memory for the update; what is cached is worthless after it."""
        ...

    def flush_cache(self) -> None: ...

    def has_work(self) -> bool: ...

    def metrics(self) -> dict[str, float]:
        """Return counts since the start of the process."""
        ...

    async def close(self) -> None: ...


class EmbeddedRollouts:
    """Samples in this process, from the very tensors that are trained."""

    beside = False

    def __init__(self, recipe: Recipe, model: CausalLM, start: Path, tokenizer: Any):
        self.engine = open_engine(recipe, model, start, tokenizer)
        self.policy = EmbeddedPolicy(self.engine)
        self.release_cache = self.engine.release_cache
        self.flush_cache = self.engine.flush_cache
        self.has_work = self.engine.has_work

    async def adopt_weights(self, step: int) -> None:
        self.engine.adopt_weights(str(step))

    def metrics(self) -> dict[str, float]:
        return {"prefilled_tokens": self.engine.stats().prefilled_tokens}

    async def close(self) -> None:
        await self.policy.close()


class ServedRollouts:
    """Samples on servers, which read each version of the weights from a folder that they share with the trainer."""

    beside = True

    def __init__(self, recipe: Recipe, model: CausalLM, start: Path, folder: Path):
        self.model = model
        self.start = start
        self.folder = folder
        # A call that hangs must end before its rollout does, so that another server gets it.
        self.policy = ServerPool(
            recipe.engine.servers,
            timeout_s=min(600.0, recipe.rollout.deadline_s / 2),
            api_key_file=recipe.engine.server_key_file,
        )

    async def adopt_weights(self, step: int) -> None:
        for old in self._versions():
            if old.name != str(self.policy.version):  # a server that comes back may be reading the last one
                shutil.rmtree(old, ignore_errors=True)
        target = self.folder / str(step)
        await asyncio.to_thread(weights.save, self.model, target, self.start, lora.merge_weights(self.model))
        try:
            await self.policy.update_weights(target, step)
        except PolicyError as error:
            raise RecipeError(f"engine.servers: no server takes the weights: {error}") from error

    def _versions(self) -> Iterator[Path]:
        return self.folder.iterdir() if self.folder.is_dir() else iter(())

    def release_cache(self) -> None:
        """The servers have memory of their own."""

    def flush_cache(self) -> None:
        """Servers drop their caches when they get weights; nothing depends on what they keep between."""

    def has_work(self) -> bool:
        return False

    def metrics(self) -> dict[str, float]:
        return {"servers_left_out": self.policy.left_out}

    async def close(self) -> None:
        await self.policy.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def open_rollouts(recipe: Recipe, model: CausalLM, start: Path, tokenizer: Any, folder: Path) -> RolloutEngine:
    """Open what the recipe samples with; `folder` is for the weights that servers read."""
    if recipe.engine.servers:
        return ServedRollouts(recipe, model, start, folder)
    return EmbeddedRollouts(recipe, model, start, tokenizer)
