"""A tiny model that knows a few conversations by heart, and a training whose rows are compared with its samples."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from core.engine.policy import EmbeddedPolicy
from core.runs.files import Record, read_jsonl
from core.train.trainer import Trainer
from core.types import Completion, Row, Trajectory
from core.worlds import TOOL_TEMPLATE, Example
from scripts import tokentrue
from tests.contract.backends.batch import assert_ours
from tests.contract.backends.case import Case
from tests.contract.backends.table import BACKENDS
from tests.kit import save_model, train_tokenizer

STEPS = 400


def make_tokenizer(texts: Sequence[str]) -> Any:
    return train_tokenizer("\n".join(texts) * 9, 512, template=TOOL_TEMPLATE)


def teach(folder: Path, tokenizer: Any, examples: Sequence[Example]) -> Path:
    """Save a model of two layers that gives the completions of these prompts, mostly."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "max_position_embeddings": 4096}
    save_model(folder, 0, vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, **sizes)
    tokenizer.save_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(STEPS):
        losses = []
        for prompt, completion in examples:
            ids = torch.tensor([[*prompt, *completion]])
            logits = model(ids).logits[0, len(prompt) - 1 : -1]
            losses.append(torch.nn.functional.cross_entropy(logits, ids[0, len(prompt) :]))
        optimizer.zero_grad()
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        if loss < 0.01:
            break
    model.save_pretrained(folder)
    return folder


def write_recipe(path: Path, model: Path, method: str, **sections: Any) -> Path:
    """Write a recipe file; its tasks are in the file of the same name that ends in .jsonl."""
    recipe = {
        "method": method,
        "follows": "nothing",
        "algorithm": {"name": "grpo", "rows": "segment", "kl_loss_coef": 0, "loss_agg": "token"},
        "model": {"path": str(model), "max_model_len": 4096, "device": "cpu"},
        "data": {"train": str(path.with_suffix(".jsonl")), "shuffle": False},
        "rollout": {"tasks_per_step": 3, "group_size": 2, "deadline_s": 400},
        "optimizer": {"lr": 1e-3},
        "run": {"steps": 2, "eval_every": 0},
        **sections,
    }
    path.write_text(json.dumps(recipe))
    return path


def train_exactly(method: str, recipe: Path, out: Path, patch: pytest.MonkeyPatch) -> list[Record]:
    """Train by the recipe alone. Each answer that the engine gave is one stretch of one row, with its log-probs.

    Return the records of the steps.
    """
    sampled, trained = watch_training(patch)
    assert tokentrue.main(["train", method, "--preset", str(recipe), "--out", str(out)]) == 0
    stretches = sorted(stretch for row in trained for stretch in read_stretches(row))
    answers = [(prompt, done.token_ids, done.logprobs) for prompt, done in sampled]
    assert stretches == sorted(answers) != []
    steps: list[Mapping[str, Any]] = [
        line for line in read_jsonl(out / "seed-0/metrics.jsonl") if line["stage"] == "train"
    ]
    assert [step["failures"] for step in steps] == [{}, {}]
    return steps


def run_batch(backend: str, case: Case, tokenizer: Any, request: pytest.FixtureRequest) -> list[Sequence[Trajectory]]:
    """Run the rollouts of two tasks on a backend. Assert that it trains them as ours, and return them by group."""
    batch = BACKENDS[backend](request, case, case.recipe(), case.tasks(2))
    groups = assert_ours(batch, case, case.recipe(), tokenizer)
    assert not batch.failures
    return groups


def watch_training(patch: pytest.MonkeyPatch) -> tuple[list[tuple[tuple[int, ...], Completion]], list[Row]]:
    """Return what the engine will have answered, with its prompts, and the rows that will have been trained."""
    sampled: list[tuple[tuple[int, ...], Completion]] = []
    trained: list[Row] = []
    generate, iterate = EmbeddedPolicy.generate, Trainer.iterate_grpo_step

    async def log(self: EmbeddedPolicy, prompt_ids: Sequence[int], *rest: Any, **options: Any) -> Completion:
        completion = await generate(self, prompt_ids, *rest, **options)
        sampled.append((tuple(prompt_ids), completion))
        return completion

    def watch(self: Trainer, rows: Sequence[Row], *rest: Any) -> Any:
        trained.extend(rows)
        return iterate(self, rows, *rest)

    patch.setattr(EmbeddedPolicy, "generate", log)
    patch.setattr(Trainer, "iterate_grpo_step", watch)
    return sampled, trained


def read_stretches(row: Row) -> list[tuple[tuple[int, ...], tuple[int, ...], tuple[float, ...]]]:
    """Return each trained stretch of a row: the tokens before it, its own, and their log-probs."""
    start, found, place = len(row.tokens) - len(row.loss_mask), [], 0
    while place < len(row.loss_mask):
        end = place
        while end < len(row.loss_mask) and row.loss_mask[end]:
            end += 1
        if end > place:
            before, own = row.tokens[: start + place], row.tokens[start + place : start + end]
            found.append((tuple(before), tuple(own), tuple(row.logprobs[place:end])))
        place = end + 1
    return found
