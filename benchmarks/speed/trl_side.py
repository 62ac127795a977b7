"""Run TRL's GRPOTrainer without the parts that our step lacks.

It has no gradient checkpointing, no reference model, one iteration, no logging, saving or progress bar, and float32 on
the CPU. AdamW, learning rate, clipping, loss and advantages are those of `grpo_step.run_embedded`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.measure import Stopwatch
from benchmarks.speed.workload import GenerationRequest, GenerationSample, grade, spell


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
