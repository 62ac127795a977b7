"""Divide the time of a call among the parts of our engine and trainer, with torch.profiler.

Functions inside the two libraries are wrapped in named ranges while the profiler runs. Every operator belongs to the
innermost range around it; in the backward pass, to the range that its forward operator was in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from pkgutil import resolve_name
from typing import Any
from unittest.mock import patch

from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.speed.measure import Stopwatch, repeat

PRODUCTS, ATTENTION, COPIES, NORMS = "products with weights", "attention", "copies and gathers of attention", "norms"
ROTATION, ACTIVATIONS, SAMPLING, LOSS = "rotation", "activations", "sampling", "log-probs and loss"
OPTIMIZER, REST, PYTHON = "optimizer", "rest of torch's operators", "Python"
GROUPS = (PRODUCTS, ATTENTION, COPIES, NORMS, ROTATION, ACTIVATIONS, SAMPLING, LOSS, OPTIMIZER, REST, PYTHON)
WHOLE, BACKWARD, KERNEL = "whole", "backward", "kernel: "
RANGES = {
    "core.engine.model.Linear.forward": PRODUCTS,
    "core.engine.kernel.multiply": KERNEL + PRODUCTS,
    "core.engine.attention.attend_pages": KERNEL + ATTENTION,
    "core.engine.attention.StepAttention.__call__": COPIES,
    "core.train.packing.PackedAttention.__call__": COPIES,
    "core.engine.model.RMSNorm.forward": NORMS,
    "core.engine.model._rotate": ROTATION,
    "core.engine.model.MLP.forward": ACTIVATIONS,
    "core.engine.model.CausalLM.forward": REST,
    "core.engine.engine.sample": SAMPLING,
    "core.train.trainer.Trainer._backward_grpo": LOSS,
    "core.train.trainer.Trainer._backward": BACKWARD,
    "core.train.trainer.Trainer._step_optimizer": OPTIMIZER,
}
"""Maps the functions that are wrapped to the name of the range.

What a range does outside of operators is Python, except in our own kernels, which are no operators.
"""
GROUP_OF = {WHOLE: REST, BACKWARD: REST, "aten::scaled_dot_product_attention": ATTENTION}
NODE = "autograd::engine::evaluate_function"

Seconds = dict[str, list[float]]
"""Holds two numbers for each group: the seconds of the forward and of the backward pass."""


def profile_calls(call: Callable[[], Any], repeats: int, before: Callable[[], Any] = lambda: None) -> dict[str, Any]:
    """Time `repeats` calls without the profiler, after a warm-up, and as many with it; `before` is not timed.

    Returns JSON. Its `seconds` are those of all calls. The profiler counts wall time, also while another process has
    the core.
    """
    plain = repeat(call, repeats, before)[1]
    watch = Stopwatch(warmup=0)
    with _mark_ranges(), profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(repeats):
            before()
            watch.start()
            with record_function(WHOLE):
                call()
            watch.stop()
    seconds: Seconds = {group: [0.0, 0.0] for group in GROUPS}
    group_of_node: dict[int, str] = {}
    for event in profiler.events():
        if event.name == WHOLE:
            _add_up(event, REST, False, seconds, group_of_node)
    return {"plain": plain.as_json(), "profiled": watch.timing().as_json(), "seconds": seconds}


@contextmanager
def _mark_ranges() -> Iterator[None]:
    with ExitStack() as stack:
        for name, label in RANGES.items():
            stack.enter_context(patch(name, _mark(resolve_name(name), label)))
        yield


def _mark(function: Callable[..., Any], label: str) -> Callable[..., Any]:
    @wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function(label):
            return function(*args, **kwargs)

    return marked


def _add_up(event: Any, group: str, backward: bool, seconds: Seconds, group_of_node: dict[int, str]) -> None:
    """Add the time of an event and of those inside it to `seconds`; `group` is that of the event around it."""
    name = event.name.removeprefix(KERNEL)
    group = name if name in GROUPS else GROUP_OF.get(name, group)
    backward = backward or name == BACKWARD
    # An operator that autograd records has the number of its node. Others have that of the next node, whose operator
    # comes later and overwrites their entry.
    if name.startswith(NODE):
        group = group_of_node.get(event.sequence_nr, REST)
    elif event.sequence_nr >= 0:
        group_of_node[event.sequence_nr] = group
    in_python = event.is_user_annotation and name == event.name
    seconds[PYTHON if in_python else group][backward] += event.self_cpu_time_total / 1e6
    for child in event.cpu_children:
        _add_up(child, group, backward, seconds, group_of_node)
