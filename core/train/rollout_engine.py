"""Where rollouts are sampled: by the engine in this process, on the trainer's own weights, or by servers beside it."""

from __future__ import annotations

import asyncio
import math
import random
import shutil
from pathlib import Path

import torch

from core.config import Recipe, RecipeError
from core.config.load import replace_keys
from core.engine import CausalLM, EmbeddedPolicy, Engine, lora, weights
from core.hub import resolve
from core.policy.base import Policy, PolicyError
from core.policy.server_pool import Check, ServerPool
from core.text.tokenizer import Tokenizer, find_tokenizer
from core.train.packing import pack_rows
from core.types import POLICY, Row, Sampling

PROBES, PROBE_TOKENS = 8, 16
LARGEST_GAP, EXACT_GAP = 0.1, 1e-3
"""Limit how far the log-probs of a server may be from the trainer's, on the average over the probes. Rounding in
bfloat16 gives less than the first. Where both compute in float32 the second is the limit."""
GROWTH = 10.0
"""Limits how far that may be in comparison with the server's first check, which shows how it rounds."""
CHECK_S = 600.0
"""Limits the seconds of a check: the trainer waits for all servers, and one may hang."""


def open_engine(recipe: Recipe, model: CausalLM, folder: Path, tokenizer: Tokenizer | None) -> Engine:
    """Open the engine of a recipe on `model`, whose end tokens are those of `folder`.

    Raises:
        RecipeError: a size of the section `inference` does not fit the model.
    """
    section = recipe.inference
    try:
        return Engine(
            model,
            eos_token_ids=weights.eos_token_ids(folder),
            max_model_len=recipe.model.max_model_len,
            kv_tokens=section.kv_tokens,
            max_num_seqs=section.max_num_seqs,
            max_prefill_tokens=section.max_prefill_tokens,
            decode=None if tokenizer is None else tokenizer.decode,
        )
    except ValueError as error:
        raise RecipeError(f"inference.{error}") from error


def open_frozen_model(path: str, recipe: Recipe) -> EmbeddedPolicy:
    """Open a frozen model beside the trained one, with the recipe's engine settings, for a `with` block.

    Its context is the recipe's, or its own positions where they are fewer.

    Raises:
        ValueError: the model cannot be loaded, or does not fit the settings.
    """
    folder = resolve(path)
    network = weights.load(folder, recipe.model.dtype, recipe.model.device).eval()
    if recipe.model.max_model_len:
        context = min(recipe.model.max_model_len, network.config.max_positions)
        recipe = replace_keys(recipe, {"model.max_model_len": context})
    return EmbeddedPolicy(open_engine(recipe, network, folder, find_tokenizer(folder)))


class EmbeddedRollouts:
    """Samples in this process, from the very tensors that are trained."""

    samples_while_training = False
    """Says whether sampling goes on by itself while the trainer computes."""

    def __init__(self, recipe: Recipe, model: CausalLM, start: Path, tokenizer: Tokenizer, name: str):
        self.engine = open_engine(recipe, model, start, tokenizer)
        self.policy = EmbeddedPolicy(self.engine, trained_as=name)
        self.release_cache = self.engine.release_cache
        self.flush_cache = self.engine.flush_cache
        self.has_work = self.engine.has_work

    async def adopt_weights(self, step: int) -> None:
        """Sample from the trainer's present weights from now on, as version `step`."""
        self.engine.adopt_weights(str(step))

    def metrics(self) -> dict[str, float]:
        """Return counts since the start of the process."""
        return {"prefilled_tokens": self.engine.stats().prefilled_tokens}

    async def close(self) -> None:
        await self.policy.close()


class ServedRollouts:
    """Samples on servers, which read each version of the weights from a folder that they share with the trainer."""

    samples_while_training = True

    def __init__(self, recipe: Recipe, model: CausalLM, start: Path, folder: Path):
        self.model = model
        self.start = start
        self.folder = folder
        self.temperature = recipe.rollout.temperature
        self.limits: dict[str, float] = {}
        # A call that hangs must end before its rollout does, so that another server gets it.
        self.policy = ServerPool(
            recipe.inference.servers,
            timeout_s=recipe.rollout.deadline_s / 2,
            api_key_file=recipe.inference.server_key_file,
        )

    async def adopt_weights(self, step: int) -> None:
        for old in self.folder.glob("*"):
            if old.name != str(self.policy.version):  # a server that comes back may be reading the last one
                shutil.rmtree(old, ignore_errors=True)
        target = self.folder / str(step)
        await asyncio.to_thread(weights.save, self.model, target, self.start, lora.merge_weights(self.model))
        check = await asyncio.to_thread(make_check, self.model, self.temperature, self.limits)
        try:
            await self.policy.update_weights(target, step, check)
        except PolicyError as error:
            raise RecipeError(f"no rollout server takes the weights: {error}") from error

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


@torch.no_grad()
def make_check(model: CausalLM, temperature: float, limits: dict[str, float] | None = None) -> Check:
    """Return a check of whether a server samples from the present weights of `model`.

    A server may take weights without an error and use old ones in part: vLLM 0.32 on CPUs does so for a tied head. A
    server's first check writes into `limits`, by its URL, how far its log-probs may be from the trainer's afterwards.
    """
    limits = {} if limits is None else limits
    draw = random.Random(0)
    prompts = [[draw.randrange(model.config.vocab_size) for _ in range(PROBE_TOKENS)] for _ in range(PROBES)]
    expected = []
    for prompt in prompts:
        # The id after the prompt is not read: the row says that its log-prob is asked for.
        [pack] = pack_rows([Row((*prompt, 0), (1,), (0.0,), 0.0, 0)], PROBE_TOKENS, model.device)
        logits_RV = model.logits(model(pack.ids_T, pack.positions_T, pack.attend, pack.predict_R))
        expected.append(torch.log_softmax(logits_RV[-1] / temperature, dim=-1).cpu())

    async def check(policy: Policy) -> None:
        sampling = Sampling(temperature=temperature, max_new_tokens=1)
        where = getattr(policy, "url", "a server")
        try:
            async with asyncio.timeout(CHECK_S):
                sampled = await asyncio.gather(*(policy.generate(prompt, sampling) for prompt in prompts))
        except TimeoutError:
            raise PolicyError("timeout", f"{where}: no answer to short calls within {CHECK_S:g} s") from None
        gaps = [
            abs(token.logprobs[0] - float(logprobs_V[token.token_ids[0]])) if token.token_ids else math.inf
            for token, logprobs_V in zip(sampled, expected, strict=True)
        ]
        gap = sum(gaps) / len(gaps)
        if gap > limits.get(where, LARGEST_GAP):
            raise PolicyError(
                "engine",
                f"{where}: it says that it took the weights, but its log-probs are {gap:.2g} away from the trainer's; "
                "it keeps old weights in part, or its log-probs are not of the distribution that it samples",
            )
        limits.setdefault(where, min(LARGEST_GAP, max(EXACT_GAP, GROWTH * gap)))

    return check


def open_rollouts(
    recipe: Recipe, model: CausalLM, start: Path, tokenizer: Tokenizer, folder: Path, name: str = POLICY
) -> EmbeddedRollouts | ServedRollouts:
    """Open what the recipe samples with; `folder` is for the weights that servers read."""
    assert not recipe.inference.replicas, "core/train/replicas.py starts them first"
    if recipe.inference.servers:
        return ServedRollouts(recipe, model, start, folder)
    return EmbeddedRollouts(recipe, model, start, tokenizer, name)
