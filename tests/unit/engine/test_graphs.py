"""What a GPU records as a CUDA graph, run on the CPU: the same tokens, and nothing that a recording cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from core.engine import attention, graphs
from core.engine.engine import Engine
from core.engine.graphs import DecodeGraphs
from core.types import Completion, Sampling
from tests.unit.engine.conftest import drain

Written = tuple[Tensor, Tensor]

RULES = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9},
    {"temperature": 0.7, "top_p": 0.995},  # keeps more tokens than the filters look at first
    {"top_k": 5},
    {},
    {"temperature": 1.3},
    {"top_k": 80},
]


class NoWaiting(TorchDispatchMode):
    """Fails where a recording on a GPU would: values that the host waits for, shapes that depend on them, copies."""

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "repeat_interleave", "lift_fresh")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = name == "index" and any(t is not None and t.dtype == torch.bool for t in args[1])
        if masks or name.startswith(self.WAITING):
            raise AssertionError(f"{func} in a recorded step")
        return func(*args, **(kwargs or {}))


def run_again(run: Callable[[], Written], device: torch.device, pool: object) -> tuple[Callable[[], None], Written]:
    """Stand for `graphs.record`: a replay runs the same code, on the same inputs and into the same outputs."""
    with NoWaiting():
        written = run()

    def replay() -> None:
        for tensor, new in zip(written, run(), strict=True):
            tensor.copy_(new)

    return replay, written


def complete_all(engine: Engine) -> list[Completion]:
    requests = []
    for number in range(15):
        rule = RULES[number % len(RULES)]
        prompt = tuple(range(number, 5 + 4 * number))
        requests.append(engine.submit(prompt, Sampling(**rule, max_new_tokens=4 + 2 * number, seed=number)))  # type: ignore[arg-type]
        if number % 4 == 3:
            engine.step()
    drain(engine)
    return [request.completion for request in requests if request.completion is not None]


@pytest.mark.parametrize("gathered", [1, attention.GATHERED_BYTES])
def test_recorded_steps_sample_the_same_tokens(qwen2, monkeypatch, gathered):
    options = {"device": "cpu", "max_model_len": 128, "kv_tokens": 1024, "max_num_seqs": 9}
    wanted = complete_all(Engine.from_pretrained(qwen2, **options))
    monkeypatch.setattr(graphs, "record", run_again)
    monkeypatch.setattr(attention, "find_kernel", lambda: None)  # a GPU has PyTorch's kernels
    monkeypatch.setattr(attention, "GATHERED_BYTES", gathered)
    engine = Engine.from_pretrained(qwen2, **options)
    engine.graphs = DecodeGraphs(engine._decode_tokens, torch.device("cpu"), engine.vocab_size)
    got = complete_all(engine)
    assert len(engine.graphs._recordings) > 3
    assert [completion.token_ids for completion in got] == [completion.token_ids for completion in wanted]
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), atol=1e-5, rtol=0)
