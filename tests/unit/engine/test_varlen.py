"""The layout for PyTorch's varlen kernel, which runs on GPUs only, with a plain implementation in its place."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from core.engine import attention, varlen
from core.engine.engine import Engine
from core.train import packing
from core.types import Sampling
from tests.unit.conftest import drain, gradients
from tests.unit.train.test_packing import make_rows


def attend(
    q_THD: Tensor, k_YKD: Tensor, v_YKD: Tensor, query_bounds: Tensor, key_bounds: Tensor, *longest: int, **options: Any
) -> Tensor:
    """Compute what `varlen_attn` does, as its documentation says, with all scores at once."""
    assert options == {"window_size": (-1, 0), "enable_gqa": True}
    query_lengths, key_lengths = query_bounds.diff(), key_bounds.diff()
    assert longest == (query_lengths.max(), key_lengths.max())
    sequence_T, sequence_Y = (torch.arange(len(n)).repeat_interleave(n) for n in (query_lengths, key_lengths))
    # Places are counted from the ends of the sequences, where the last query meets the last key.
    from_end_T = query_bounds[1:][sequence_T] - torch.arange(len(q_THD))
    from_end_Y = key_bounds[1:][sequence_Y] - torch.arange(len(k_YKD))
    seen_TY = (sequence_T[:, None] == sequence_Y) & (from_end_T[:, None] <= from_end_Y)
    q, k, v = (x.transpose(0, 1) for x in (q_THD, k_YKD, v_YKD))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen_TY, enable_gqa=True).transpose(0, 1)


@pytest.fixture
def calls(monkeypatch) -> list[int]:
    """Let every prompt and every pack use the kernel; collect the numbers of sequences of its calls."""
    counts: list[int] = []

    def count_and_attend(*tensors: Any, **options: Any) -> Tensor:
        counts.append(len(tensors[3]) - 1)
        return attend(*tensors, **options)

    monkeypatch.setattr(varlen, "varlen_attn", count_and_attend)
    monkeypatch.setattr(attention, "has_varlen", lambda *_: True)
    monkeypatch.setattr(packing, "has_varlen", lambda *_: True)
    return counts


@pytest.mark.parametrize("gathered", [1, 40_000, attention.GATHERED_BYTES])
def test_prompts_with_cached_prefixes_and_in_parts(own_model, reference, calls, monkeypatch, gathered):
    monkeypatch.setattr(attention, "GATHERED_BYTES", gathered)
    engine = Engine.from_pretrained(own_model, device="cpu", max_model_len=128, kv_tokens=2048)
    engine.scheduler.max_prefill_tokens = 100
    shared, requests = tuple(range(40)), []
    for number in range(12):
        prompt = (*shared[: 10 * (number % 5)], *range(50 - number, 60 + 2 * number))
        requests.append(engine.submit(prompt, Sampling(max_new_tokens=6, seed=number)))
        if number in (4, 8):
            engine.step()
    drain(engine)
    assert engine.stats().cached_tokens > 0
    assert (max(calls) > 1) == (gathered > 1)
    for request in requests:
        expected = reference(own_model, request.prompt_ids, request.completion.token_ids, 1.0)
        torch.testing.assert_close(torch.tensor(request.completion.logprobs), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_trees_have_the_gradients_of_separate_rows(qwen2, calls, monkeypatch, checkpointing):
    rows = make_rows(3)
    packed = gradients(qwen2, rows, max_tokens=4096, checkpointing=checkpointing)
    assert len(set(calls)) == 1  # one pack: all its roots and branches in one call
    assert calls[0] > 4
    monkeypatch.undo()
    for name, gradient in gradients(qwen2, rows, max_tokens=1).items():
        torch.testing.assert_close(packed[name], gradient, atol=2e-6, rtol=1e-4, msg=name)


def probe() -> bool:
    return varlen._probe.__wrapped__(torch.device("cpu"), torch.bfloat16, 4, 2, 16)


def align_at_the_start(q_THD: Tensor, k_YKD: Tensor, v_YKD: Tensor, *bounds: Any, **options: Any) -> Tensor:
    """Let the first query see the first key alone, as PyTorch's `is_causal` does."""
    outputs = []
    for q, k, v in zip(*(x.split(n) for x, n in zip((q_THD, k_YKD, v_YKD), LENGTHS, strict=True)), strict=True):
        heads = (x.transpose(0, 1) for x in (q, k, v))
        outputs.append(F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True).transpose(0, 1))
    return torch.cat(outputs)


LENGTHS = [[pair[0] for pair in varlen.PROBED], *[[pair[1] for pair in varlen.PROBED]] * 2]


def forget_gradients(*tensors: Any, **options: Any) -> Tensor:
    return attend(tensors[0], tensors[1].detach() + 0 * tensors[1], *tensors[2:], **options)


def is_missing(*tensors: Any, **options: Any) -> Tensor:
    raise RuntimeError("no kernel image is available")


def test_the_probe_takes_the_kernel_that_computes_it_also_in_a_checkpoint(monkeypatch):
    """The checkpoint computes its function again, and refuses to go on if that saves more or less than before."""
    monkeypatch.setattr(varlen, "varlen_attn", attend)
    varlen._probe.cache_clear()

    def square(x: Tensor) -> Tensor:
        assert varlen._probe(torch.device("cpu"), torch.bfloat16, 4, 2, 16)
        return x * x

    x = torch.ones(3, requires_grad=True)
    torch.utils.checkpoint.checkpoint(square, x, use_reentrant=False).sum().backward()
    varlen._probe.cache_clear()
    assert x.grad.tolist() == [2, 2, 2]


def test_autocast_decides_what_attention_computes_in():
    x = torch.ones(1)
    assert varlen.find_dtype(x) == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert varlen.find_dtype(x) == torch.bfloat16


@pytest.mark.parametrize("kernel", [align_at_the_start, forget_gradients, is_missing])
def test_the_probe_refuses_another_mask_wrong_gradients_and_no_kernel(monkeypatch, kernel):
    monkeypatch.setattr(varlen, "varlen_attn", kernel)
    with pytest.warns(UserWarning, match="sequences are padded"):
        assert not probe()
