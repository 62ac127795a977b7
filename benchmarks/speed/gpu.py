"""Measure the engine and the trainer on one GPU, beside what its memory and its arithmetic allow.

    tokentrue speed gpu                      # random weights of Qwen3-0.6B's shape, 16 bits
    tokentrue speed gpu --model DIR --only decode serve

decode  tokens per second of 1, 64 and 256 sequences; a step must at least read all weights, keys and values
serve   the requests of nano-vllm's own benchmark: 256 prompts of 100 to 1,024 tokens, as many new ones; the second time
train   a GRPO step on 16,384 tokens; its share of the arithmetic (MFU): 6 operations a weight and token, and attention

The limits are measured in the same run: a copy of a large tensor, and a large product of matrices.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.speed.measure import describe_environment
from benchmarks.speed.workload import draw_prompt, make_rows
from core.config import OptimizerSection
from core.engine import CausalLM, Engine, ModelConfig, footprint, weights
from core.options import make_command_parser
from core.report.table import markdown
from core.runs.files import write_json
from core.train import Trainer
from core.types import Sampling

QWEN3_06B: Mapping[str, Any] = {
    "vocab_size": 151936, "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
}  # fmt: skip
QUICK: Mapping[str, Any] = {
    "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": True,
}  # fmt: skip
"""The shape of `--quick`, which shows that the command runs."""

Result = dict[str, Any]


def make_model(shape: Mapping[str, Any], device: torch.device) -> CausalLM:
    """Make a Qwen3 of random weights on the device."""
    from transformers import Qwen3Config

    torch.manual_seed(0)
    with torch.device(device):
        return CausalLM(ModelConfig.from_hf(Qwen3Config(**shape, max_position_embeddings=32768))).to(torch.bfloat16)


def count_weights(model: CausalLM) -> int:
    """Count the weights that every token is multiplied with: all, but not an embedding that is only looked up."""
    total = sum(parameter.numel() for parameter in model.parameters())
    return total if model.config.tie_embeddings else total - model.model.embed_tokens.weight.numel()


def measure_limits(device: torch.device, size: int) -> Result:
    """Return the bytes per second of a copy, read and written, and the operations per second of a product."""
    x = torch.ones(size, size, dtype=torch.bfloat16, device=device)
    large = torch.ones(8, size, size, dtype=torch.bfloat16, device=device)
    copied = torch.empty_like(large)
    copy_s = time_call(lambda: copied.copy_(large), device)
    product_s = time_call(lambda: x @ x, device)
    return {"bytes_per_s": 2 * large.nbytes / copy_s, "flops_per_s": 2 * size**3 / product_s}


def time_call(call: Callable[[], Any], device: torch.device, repeats: int = 10) -> float:
    """Return the seconds of one call, the mean of `repeats` after two for warming up."""
    for number in range(repeats + 2):
        if number == 2:
            synchronize(device)
            began = time.perf_counter()
        call()
    synchronize(device)
    return (time.perf_counter() - began) / repeats


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_decode(model: CausalLM, limits: Result, batch: int, prompt: int, steps: int) -> Result:
    """Time `steps` decode steps of `batch` sequences with prompts of `prompt` tokens."""
    rng = random.Random(0)
    warm_up = 4
    longest = prompt + 2 * steps + warm_up
    pages = batch * math.ceil(longest / 16)
    engine = Engine(model, max_model_len=longest, kv_tokens=16 * pages, max_num_seqs=batch)
    requests = [
        engine.submit(draw_prompt(rng, model.config.vocab_size, prompt), Sampling(max_new_tokens=longest - prompt))
        for _ in range(batch)
    ]
    while not all(request.output_ids for request in requests):
        engine.step()
    for _ in range(warm_up):  # the first step of a shape records its graph
        engine.step()
    first = engine.stats().generated_tokens
    began = time.perf_counter()
    for _ in range(steps):
        engine.step()
    seconds = (time.perf_counter() - began) / steps
    if engine.stats().generated_tokens != first + batch * steps:
        raise RuntimeError("a sequence ended while decode was timed")
    context = sum(request.computed for request in requests) - batch * steps / 2  # in the middle of the timed steps
    keys = context * footprint.cache_bytes(model.config, 1, model.dtype)
    limit = (count_weights(model) * model.dtype.itemsize + keys) / limits["bytes_per_s"]
    return {"batch": batch, "tokens_per_s": batch / seconds, "ms_per_step": 1e3 * seconds, "of_limit": limit / seconds}


def measure_serving(model: CausalLM, sequences: int, longest: int) -> Result:
    """Time the requests of nano-vllm's bench.py: lengths uniform from 100 to `longest`, temperature 0.6, no end."""
    rng = random.Random(0)
    vocab = min(10_000, model.config.vocab_size)
    prompts = [draw_prompt(rng, vocab, rng.randint(100, longest)) for _ in range(sequences)]
    samplings = [Sampling(temperature=0.6, max_new_tokens=rng.randint(100, longest)) for _ in range(sequences)]
    engine = Engine(model, max_model_len=2 * longest, kv_tokens=sequences * 2 * longest, max_num_seqs=sequences)
    for _ in range(2):  # the first round records the graphs
        engine.flush_cache()
        began = time.perf_counter()
        for ids, sampling in zip(prompts, samplings, strict=True):
            engine.submit(ids, sampling)
        while engine.has_work():
            engine.step()
        seconds = time.perf_counter() - began
    tokens = sum(sampling.max_new_tokens for sampling in samplings)
    return {"sequences": sequences, "output_tokens": tokens, "seconds": seconds, "tokens_per_s": tokens / seconds}


def measure_training(model: CausalLM, limits: Result, tokens: int, length: int, repeats: int) -> Result:
    """Time a GRPO step on `tokens` tokens in one pack: rows of `length` that share nothing."""
    rng = random.Random(0)
    new = length // 4
    rows = make_rows(rng, model.config.vocab_size, tokens, length, new)
    optimizer = OptimizerSection(lr=1e-6, max_tokens_per_pack=tokens, bf16_autocast=False)
    trainer = Trainer(model, optimizer, compiled=model.compiled)
    on_gpu = model.device.type == "cuda"
    if on_gpu:  # the parts before had peaks of their own
        torch.cuda.reset_peak_memory_stats(model.device)
    seconds = time_call(lambda: trainer.grpo_step(rows), model.device, repeats)
    config = model.config
    # A query sees half of the row on average; scores and values are two products, forward once and backward twice.
    attention = 6 * config.num_layers * config.num_heads * config.head_dim * length
    # The last layer and the head run on the trained positions alone; this counts the head so, and the layer whole.
    head = config.vocab_size * config.hidden_size
    operations = tokens * (6 * (count_weights(model) - head) + attention) + 6 * head * new * len(rows)
    peak = torch.cuda.max_memory_allocated(model.device) if on_gpu else None
    return {
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_s": tokens / seconds,
        "mfu": operations / seconds / limits["flops_per_s"],
        "peak_bytes": peak,
    }


def measure(options: argparse.Namespace) -> Result:
    """Run the chosen parts; return their figures as JSON."""
    device = weights.find_device(options.device)
    if options.model:
        model = weights.load(options.model, "bfloat16", options.device)
    else:
        model = make_model(QUICK if options.quick else QWEN3_06B, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    model.compiled = options.compile
    result: Result = {"device": name, "environment": describe_environment(torch.get_num_threads())}
    result["compile"] = options.compile
    limits = result["limits"] = measure_limits(device, 128 if options.quick else 8192)
    print(f"{name}: copies {limits['bytes_per_s'] / 1e9:.0f} GB/s, products {limits['flops_per_s'] / 1e12:.3g} TFLOP/s")
    batches, prompt, steps = ((1, 3), 20, 4) if options.quick else ((1, 64, 256), 512, 64)
    runs: dict[str, Callable[[], list[Result]]] = {
        "decode": lambda: [measure_decode(model, limits, batch, prompt, steps) for batch in batches],
        "serve": lambda: [measure_serving(model, *((3, 110) if options.quick else (256, 1024)))],
        "train": lambda: [measure_training(model, limits, *((512, 64, 1) if options.quick else (16384, 2048, 5)))],
    }
    for part in options.only:
        result[part] = runs[part]()
        cells = [[f"{value:.4g}" if value is not None else "" for value in row.values()] for row in result[part]]
        print(f"{part}\n{markdown([*result[part][0]], *cells)}", flush=True)
    return result


def main(arguments: list[str] | None = None) -> int:
    options = make_parser().parse_args(arguments)
    write_json(options.out, measure(options))
    print(f"wrote {options.out}")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = make_command_parser("speed gpu", __doc__)
    parser.add_argument("--model", type=Path, metavar="DIR", help="a checkpoint instead of random weights")
    parser.add_argument("--device", default="cuda", help="as model.device (default: cuda)")
    parser.add_argument("--quick", action="store_true", help="the smallest shapes: does it run?")
    parser.add_argument("--compile", action="store_true", help="set model.compile")
    parts = ("decode", "serve", "train")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts, help="some of the parts")
    parser.add_argument("--out", type=Path, default=Path("runs/speed/gpu.json"))
    return parser
