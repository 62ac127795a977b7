"""What a GPU records as a CUDA graph, run on the CPU: the same tokens, and nothing that a recording cannot hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from core.engine import attention, graphs
from core.engine.engine import Engine
from core.engine.graphs import DecodeGraphs
from core.engine.sampler import BLOCK, RANKS, SamplingBatch, draw
from core.types import Completion, Sampling
from tests.unit.conftest import drain

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
    """Fails where the host would wait for values, or a shape would depend on them; a recording on a GPU fails there.

    It sees operations of PyTorch alone, so neither `tolist` nor a copy between devices.
    """

    WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "repeat_interleave", "lift_fresh")

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        masks = name.startswith(("index", "_index")) and any(
            isinstance(indices, (list, tuple)) and any(t is not None and t.dtype == torch.bool for t in indices)
            for indices in args[1:2]
        )
        if masks or name.startswith(self.WAITING):
            raise AssertionError(f"{func} in a recorded step")
        return func(*args, **(kwargs or {}))


def run_again(run: Callable[[], Tensor], device: torch.device, pool: object) -> tuple[Callable[[], None], Tensor]:
    """Stand for `graphs.record`: a replay runs the same code, on the same inputs and into the same output."""
    with NoWaiting():
        written = run()
    return lambda: written.copy_(run()), written


def complete_all(engine: Engine, count: int) -> list[Completion]:
    requests = []
    for number in range(count):
        rule = RULES[number % len(RULES)]
        prompt = tuple(range(number, 5 + 4 * number))
        requests.append(engine.submit(prompt, Sampling(**rule, max_new_tokens=4 + 2 * number, seed=number)))  # type: ignore[arg-type]
        if number % 4 == 3:
            engine.step()
    drain(engine)
    return [request.completion for request in requests if request.completion is not None]


def check_recorded_steps(folder: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], count: int) -> None:
    """Recorded steps sample the same tokens, when `change` replaces names of the attention meanwhile."""
    options: dict[str, Any] = {"device": "cpu", "max_model_len": 128, "kv_tokens": 1024, "max_num_seqs": 9}
    wanted = complete_all(Engine.from_pretrained(folder, **options), count)
    monkeypatch.setattr(graphs, "record", run_again)
    for name, value in change.items():
        monkeypatch.setattr(attention, name, value)
    engine = Engine.from_pretrained(folder, **options)
    engine.graphs = DecodeGraphs(engine._decode_tokens, torch.device("cpu"), engine.vocab_size, 9)
    got = complete_all(engine, count)
    assert len(engine.graphs._recordings) > count // 5
    assert [completion.token_ids for completion in got] == [completion.token_ids for completion in wanted]
    for ours, theirs in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.tensor(ours.logprobs), torch.tensor(theirs.logprobs), atol=1e-5, rtol=0)


@pytest.mark.parametrize("gathered", [1, attention.GATHERED_BYTES])
def test_recorded_steps_sample_the_same_tokens(qwen2, monkeypatch, gathered):
    change = {"find_kernel": lambda: None, "GATHERED_BYTES": gathered}  # a GPU has PyTorch's kernels
    check_recorded_steps(qwen2, monkeypatch, change, 15)


@pytest.mark.parametrize("filters", [False, True])
@pytest.mark.parametrize("vocab", [50, 2 * RANKS * BLOCK + 5])
def test_drawing_from_any_vocabulary_waits_for_nothing(vocab, filters):
    rules = [Sampling(**rule) for rule in RULES if filters or not rule.keys() & {"top_p", "top_k"}]  # type: ignore[arg-type]
    logits_NV = torch.randn(len(rules), vocab)
    batch = SamplingBatch.make(rules, range(len(rules)), range(len(rules)), vocab)
    with NoWaiting():
        drawn_3N = draw(logits_NV, batch)
    assert drawn_3N.shape == (3, len(rules))


@pytest.mark.parametrize("waiting", [lambda x: x.sum().item(), lambda x: x[x > 0], lambda x: x.masked_select(x > 0)])
def test_the_mode_refuses_what_a_recording_refuses(waiting):
    with NoWaiting(), pytest.raises(AssertionError, match="in a recorded step"):
        waiting(torch.ones(2, 2))
