"""Compare a GRPO step of our trainer, the same with transformers' layers, and TRL's.

Loss and gradient norm of the first step on the same rollouts must agree, or no time is told.
`train` covers rewards, advantages, loss, backward and optimizer on given rollouts; `whole` adds generation.
The loss is DAPO's token mean, with advantages without the standard deviation and no KL.

TRL's GRPOTrainer runs without the parts that our step lacks. It has no gradient checkpointing, no reference model, one
iteration, no logging, saving or progress bar, and float32 on the CPU. AdamW, learning rate, clipping, loss and
advantages are those of `run_embedded`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.engines import EmbeddedSide
from benchmarks.speed.measure import Stopwatch, Timing, ratio
from benchmarks.speed.workload import GenerationRequest, GenerationSample, grade, make_step_requests, spell
from core.algorithms.advantages import group_advantages
from core.config import OptimizerSection
from core.engine import CausalLM, weights
from core.report.table import markdown
from core.train import Trainer
from core.types import Row


@dataclass
class TRLRun:
    """Records the steps of one `train` call."""

    watch: Stopwatch = field(default_factory=Stopwatch)
    losses: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)


def run_trl(
    folder: Path,
    requests: Sequence[GenerationRequest],
    group_size: int,
    samples: Sequence[GenerationSample] | None,
    *,
    steps: int,
    lr: float,
    output: Path,
) -> TRLRun:
    """Train `steps` + 1 steps (the first warms up), each on `samples`, or on completions that TRL generates itself."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    run = TRLRun()

    class RecordingTrainer(GRPOTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            loss: torch.Tensor = super().compute_loss(*args, **kwargs)
            run.losses.append(loss.item())
            return loss

        def _clip_grad_norm(self, model: torch.nn.Module) -> torch.Tensor:
            norm: torch.Tensor = super()._clip_grad_norm(model)
            run.gradient_norms.append(float(norm))
            return norm

    class StepTimer(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            run.watch.start()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            run.watch.stop()

    def inject_rollouts(prompts: list[Any], trainer: Any) -> dict[str, Any]:
        assert samples is not None
        return {
            "prompt_ids": [list(s.prompt_ids) for s in samples],
            "completion_ids": [list(s.token_ids) for s in samples],
            "logprobs": [list(s.logprobs) for s in samples],
        }

    new_tokens = max(r.max_new_tokens for r in requests)
    args = GRPOConfig(
        output_dir=str(output), use_cpu=True, bf16=False, gradient_checkpointing=False,
        per_device_train_batch_size=len(requests), gradient_accumulation_steps=1, steps_per_generation=1,
        num_generations=group_size, num_iterations=1, max_steps=steps + 1, shuffle_dataset=False,
        max_completion_length=new_tokens, generation_kwargs={"min_new_tokens": new_tokens},
        temperature=1.0, top_p=1.0, top_k=0,
        beta=0.0, epsilon=0.2, loss_type="dapo", scale_rewards="none",
        optim="adamw_torch", learning_rate=lr, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.0,
        adam_beta1=0.9, adam_beta2=0.999, max_grad_norm=1.0,
        logging_strategy="no", save_strategy="no", report_to="none", disable_tqdm=True,
    )  # fmt: skip
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder, padding_side="left")
    prompts = [" ".join(map(spell, r.prompt_ids)) for r in requests[::group_size]]
    if tokenizer(prompts)["input_ids"] != [list(r.prompt_ids) for r in requests[::group_size]]:
        raise RuntimeError(f"{folder}: the tokenizer does not give back the prompt ids; TRL would see other prompts")
    trainer = RecordingTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        processing_class=tokenizer,
        reward_funcs=lambda completion_ids, **_: [grade(ids) for ids in completion_ids],
        args=args,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        rollout_func=None if samples is None else inject_rollouts,
        callbacks=[StepTimer()],
    )
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return run


LOSS_TOLERANCE, GRADIENT_TOLERANCE = 1e-5, 1e-4
LR = 1e-6
OURS = "ours"
LAYERS: Mapping[str, Callable[[Path], CausalLM]] = {
    OURS: weights.load,
    "transformers' layers": lambda folder: weights.load_other(folder, "float32", torch.device("cpu")),
}
KINDS = ("equal", "uneven", "distinct")


def compare(folder: Path, output: Path, *, repeats: int, groups: int, group_size: int) -> dict[str, Any]:
    """Time every kind of rollouts and return JSON; raise RuntimeError if two sides compute different steps."""
    result: dict[str, Any] = {}
    for kind in KINDS:
        requests = make_step_requests(kind, weights.load_config(folder).vocab_size, groups, group_size)
        samples = sample_rollouts(folder, requests)
        trl = partial(run_trl, folder, requests, group_size, steps=repeats, lr=LR, output=output)
        embedded = partial(run_embedded, requests=requests, group_size=group_size, steps=repeats)
        theirs = trl(samples)
        steps = {side: embedded(load(folder), samples=samples) for side, load in LAYERS.items()}
        first = {side: stats for side, (stats, _) in steps.items()}
        first["TRL"] = {"loss": theirs.losses[0], "grad_norm": theirs.gradient_norms[0]}
        check_equal(kind, first)
        parts = {"train": {side: timing for side, (_, timing) in steps.items()} | {"TRL": theirs.watch.timing()}}
        if kind == "equal":  # without EOS, TRL has no way to sample uneven lengths
            _, timing = embedded(weights.load(folder), samples=None)
            parts["whole"] = {OURS: timing, "TRL": trl(None).watch.timing()}
        result[kind] = {
            "rollouts": len(requests),
            "tokens": sum(len(s.prompt_ids) + len(s.token_ids) for s in samples),
            "first step": first,
            **{part: _compare_timings(timings) for part, timings in parts.items()},
        }
    return result


def sample_rollouts(folder: Path, requests: Sequence[GenerationRequest]) -> list[GenerationSample]:
    return _engine(weights.load(folder), requests).generate(requests)


def run_embedded(
    model: CausalLM,
    *,
    requests: Sequence[GenerationRequest],
    group_size: int,
    samples: Sequence[GenerationSample] | None,
    steps: int,
) -> tuple[dict[str, float], Timing]:
    """Return statistics of the first step and the time of `steps` more; without `samples` each step generates."""
    trainer = make_trainer(model)
    engine = _engine(model, requests) if samples is None else None
    watch = Stopwatch()
    first: dict[str, float] = {}
    for _ in range(steps + 1):
        watch.start()
        rollouts = samples if engine is None else engine.generate(requests)
        assert rollouts is not None
        stats = trainer.grpo_step(make_rows(rollouts, group_size))
        if engine is not None:
            engine.engine.adopt_weights(str(trainer.steps))
        watch.stop()
        first = first or stats
    return first, watch.timing()


def make_trainer(model: CausalLM) -> Trainer:
    """Make a trainer that computes what TRL computes with the settings of `run_trl`."""
    optimizer = OptimizerSection(lr=LR, beta2=0.999, weight_decay=0.0, clip_grad=1.0, max_tokens_per_pack=4096)
    return Trainer(model, optimizer, loss_agg="token")


def _engine(model: CausalLM, requests: Sequence[GenerationRequest]) -> EmbeddedSide:
    return EmbeddedSide(model, len(requests), max(len(r.prompt_ids) + r.max_new_tokens for r in requests))


def make_rows(samples: Sequence[GenerationSample], group_size: int) -> list[Row]:
    rows: list[Row] = []
    for start in range(0, len(samples), group_size):
        group = samples[start : start + group_size]
        advantages = group_advantages([grade(s.token_ids) for s in group], std_normalization=False)
        rows += [
            Row((*s.prompt_ids, *s.token_ids), (1,) * len(s.token_ids), s.logprobs, advantage or 0.0, start + i)
            for i, (s, advantage) in enumerate(zip(group, advantages, strict=True))
        ]
    return rows


def check_equal(kind: str, first: Mapping[str, Mapping[str, float]]) -> None:
    """Raise RuntimeError unless all sides computed the loss and gradient norm of ours."""
    for side, theirs in first.items():
        for name, tolerance in (("loss", LOSS_TOLERANCE), ("grad_norm", GRADIENT_TOLERANCE)):
            ours = first[OURS][name]
            if not abs(ours - theirs[name]) <= tolerance:
                numbers = f"{ours:.8f} here and {theirs[name]:.8f} with {side}"
                raise RuntimeError(f"{kind}: {name} is {numbers}; not the same step, so no time is told")


def _compare_timings(timings: Mapping[str, Timing]) -> dict[str, Any]:
    return {side: {**each.as_json(), "ratio": ratio(timings[OURS], each)} for side, each in timings.items()}


def format_table(result: dict[str, Any]) -> str:
    rows = [
        [
            kind,
            part,
            side,
            f"{row['cpu_s']:.2f}",
            f"{row['wall_s']:.2f}",
            "" if side == OURS else f"{row['ratio']['cpu_s']:.2f} / {row['ratio']['wall_s']:.2f}",
        ]
        for kind, entry in result.items()
        for part in ("train", "whole")
        for side, row in entry.get(part, {}).items()
    ]
    return markdown(["rollouts", "part", "side", "CPU s", "wall s", "ours faster by (CPU / wall)"], *rows)
