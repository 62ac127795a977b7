"""Compare the memory plan of core/train/memory.py with what processes really took.

Every shape runs in a fresh process: a rollout with a full KV cache, then a GRPO step on two packs of the largest size.
"""

from __future__ import annotations

import argparse
import random
import re
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import torch
from pydantic import PositiveInt

from benchmarks.speed.workload import draw_prompt, make_rows
from core.config import Recipe
from core.engine import Engine, weights
from core.options import argparse_type
from core.report.table import markdown
from core.rollout.method import method_spec
from core.train import make_trainer
from core.train.memory import PHASES, plan_host_memory, plan_memory
from core.types import Sampling

CONTEXT = 512


class Shape(NamedTuple):
    """Names what differs between the measured processes; the counts are tokens."""

    pack: int
    checkpointing: bool
    kv: int

    def recipe(self, options: argparse.Namespace) -> Recipe:
        """Return MemAgent's tiny recipe with another model, another optimizer or adapters, and this shape."""
        settings = {
            "model.path": options.model,
            "model.dtype": options.dtype,
            "model.device": options.device,
            "model.max_model_len": CONTEXT,
            "rollout.tasks_per_step": 1,
            "optimizer.name": options.optimizer,
            "optimizer.max_tokens_per_pack": self.pack,
            "optimizer.gradient_checkpointing": str(self.checkpointing).lower(),
            "optimizer.cpu_offload": str(options.cpu_offload).lower(),
            "inference.kv_tokens": self.kv,
            "inference.max_prefill_tokens": 2048,
            "run.parallel_seeds": 1,
        }
        if options.lora:
            settings["model.lora"] = f"{{rank: {options.lora}, alpha: {options.lora}}}"
        return method_spec("memagent").load("tiny", [f"{key}={value}" for key, value in settings.items()])


SHAPES = (Shape(2560, False, 8192), Shape(1536, True, 65536), Shape(4096, True, 8192))


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    rows = []
    for shape in SHAPES:
        recipe = shape.recipe(options)
        with ProcessPoolExecutor(1, get_context("spawn")) as fresh:
            measured = fresh.submit(measure, recipe).result()
        config, kind = weights.load_config(options.model), weights.find_device(options.device).type
        plan = plan_memory(recipe, config, kind)
        print(f"{shape}\n{plan.table()}\nmeasured: {measured}", flush=True)
        planned = {phase: plan.total(phase) for phase in PHASES if phase in measured}
        if offloaded := plan_host_memory(recipe, config, kind):
            planned["machine"] = offloaded.peak
        for phase, size in planned.items():
            rows.append(
                [
                    f"{shape.pack}{', checkpointing' if shape.checkpointing else ''}, KV {shape.kv}",
                    phase,
                    f"{size / 1e9:.2f}",
                    f"{measured[phase] / 1e9:.2f}",
                    f"{size / measured[phase]:.2f}",
                ]
            )
    print(markdown(["pack and cache, tokens", "phase", "plan, GB", "measured, GB", "ratio"], *rows))
    return 0


def measure(recipe: Recipe) -> dict[str, int]:
    """Return the peak of bytes in a rollout and in an update: resident ones, or those that tensors take on a GPU.

    Beside a GPU, `machine` is the peak of resident bytes.
    """
    folder = Path(recipe.model.path)
    model = weights.load(folder, recipe.model.dtype, recipe.model.device, recipe.model.lora)
    trainer = make_trainer(recipe, model, 0, folder)
    engine = Engine(
        model,
        max_model_len=recipe.model.max_model_len,
        kv_tokens=recipe.inference.kv_tokens,
        max_prefill_tokens=recipe.inference.max_prefill_tokens,
    )
    rng = random.Random(0)
    vocab = model.config.vocab_size
    trainer.grpo_step(make_rows(rng, vocab, CONTEXT, CONTEXT, CONTEXT))  # from now on the moments exist
    peaks = {}
    _forget_peak(model.device)
    # A page is resident once it is written; a rollout of real size would write all of them.
    engine.cache.kv.zero_()
    count = recipe.inference.max_prefill_tokens // CONTEXT
    engine.generate([draw_prompt(rng, vocab, CONTEXT - 4) for _ in range(count)], Sampling(max_new_tokens=4))
    peaks["rollout"] = _read_peak(model.device)
    engine.release_cache()
    _forget_peak(model.device)
    # Two packs: when the second begins, the gradients of the first are there.
    trainer.grpo_step(make_rows(rng, vocab, 2 * recipe.optimizer.max_tokens_per_pack, CONTEXT, CONTEXT))
    peaks["update"] = _read_peak(model.device)
    if model.device.type == "cuda":
        peaks["machine"] = _read_peak(torch.device("cpu"))
    return peaks


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    else:
        Path("/proc/self/clear_refs").write_text("5")


def _read_peak(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) * 1024


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue speed memory", description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="checkpoint folder")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--device", default="cpu", help="as model.device (default: cpu)")
    parser.add_argument("--optimizer", choices=("adamw", "adamw8bit"), default="adamw")
    parser.add_argument("--cpu-offload", action="store_true", help="set optimizer.cpu_offload")
    parser.add_argument("--lora", type=argparse_type(PositiveInt), metavar="RANK", help="train adapters of this rank")
    return parser
