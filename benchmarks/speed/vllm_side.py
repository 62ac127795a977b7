"""Time vLLM on the same requests. It needs an environment of its own, so its side is a process: this file is both ends.

The whole of vLLM runs in that one process, so its process time counts all of its work. Prefixes are shared, and
forgotten between repeats. Log-probs are those of the sampled distribution. torch.compile is off, as in our engine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.measure import Timing, repeat
from benchmarks.speed.workload import GenerationRequest, GenerationSample, run_turns

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
}


def run_vllm(
    python: str,
    folder: Path,
    dtype: str,
    requests: Sequence[GenerationRequest],
    turns: int,
    vocab_size: int,
    repeats: int,
    longest: int,
) -> tuple[list[GenerationSample], Timing]:
    """Return the samples of the last repeat and the time of all, measured by the process of vLLM itself.

    Raises:
        RuntimeError: the process failed; the message holds the end of its output.
    """
    import torch

    threads = str(torch.get_num_threads())
    job = {
        "folder": str(folder.resolve()), "dtype": dtype, "turns": turns, "vocab_size": vocab_size, "repeats": repeats,
        "longest": longest, "requests": [(r.prompt_ids, r.max_new_tokens) for r in requests],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "job.json"
        file.write_text(json.dumps(job))
        command = [python, "-m", "benchmarks.speed.vllm_side", str(file)]
        environment = {**os.environ, **ENVIRONMENT, "OMP_NUM_THREADS": threads}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"vLLM ended with status {done.returncode}: {(done.stdout + done.stderr)[-2000:]}")
        result = json.loads(file.read_text())
    samples = [GenerationSample(tuple(p), tuple(t), tuple(x)) for p, t, x in result["samples"]]
    return samples, Timing(tuple(result["cpu_s"]), tuple(result["wall_s"]))


def main(file: Path) -> None:
    """Run the job in `file` with the vLLM of this interpreter, and write the result in its place."""
    from vllm import LLM, SamplingParams

    job: dict[str, Any] = json.loads(file.read_text())
    requests = [GenerationRequest(tuple(ids), new) for ids, new in job["requests"]]
    engine = LLM(
        job["folder"], dtype=job["dtype"], enforce_eager=True, max_model_len=job["longest"], max_num_seqs=len(requests),
        skip_tokenizer_init=True, logprobs_mode="processed_logprobs", enable_prefix_caching=True,
    )  # fmt: skip

    def generate(batch: Sequence[GenerationRequest]) -> list[GenerationSample]:
        prompts = [{"prompt_token_ids": list(r.prompt_ids)} for r in batch]
        sampling = [
            SamplingParams(temperature=1.0, max_tokens=r.max_new_tokens, logprobs=0, ignore_eos=True, detokenize=False)
            for r in batch
        ]
        outputs = [x.outputs[0] for x in engine.generate(prompts, sampling, use_tqdm=False)]
        return [
            GenerationSample(
                r.prompt_ids,
                tuple(x.token_ids),
                tuple(step[token].logprob for step, token in zip(x.logprobs, x.token_ids, strict=True)),
            )
            for r, x in zip(batch, outputs, strict=True)
        ]

    samples, timing = repeat(
        lambda: run_turns(generate, requests, job["turns"], job["vocab_size"]),
        job["repeats"],
        before=engine.reset_prefix_cache,
    )
    rows = [(s.prompt_ids, s.token_ids, s.logprobs) for s in samples]
    file.write_text(json.dumps({"cpu_s": timing.cpu_s, "wall_s": timing.wall_s, "samples": rows}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
