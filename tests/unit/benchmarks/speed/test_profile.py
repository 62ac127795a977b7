"""The profile of a rollout and of a GRPO step, in its smallest shape, and how it divides their time."""

from __future__ import annotations

from pathlib import Path
from pkgutil import resolve_name
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benchmarks.speed import ranges
from benchmarks.speed.profile import main
from benchmarks.speed.ranges import ATTENTION, GROUPS, LOSS, NORMS, OPTIMIZER, PRODUCTS, PYTHON, REST, SAMPLING
from core.runs.files import read_json


@pytest.mark.e2e
def test_the_groups_add_up_to_the_whole_and_little_of_it_has_no_group(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    out = tmp_path / "profile.json"
    assert main(["--quick", "--size", "tiny", "--out", str(out)]) == 0
    result = read_json(out)
    for part, absent in (("rollout", {LOSS, OPTIMIZER}), ("grpo_step", {SAMPLING})):
        seconds = result[part]["seconds"]
        whole = sum(map(sum, seconds.values()))
        assert whole == pytest.approx(sum(result[part]["profiled"]["wall_s_all"]), rel=0.1)
        assert sum(seconds[REST]) < 0.2 * whole
        assert {group for group, (forward, _) in seconds.items() if not forward} == absent
    assert not any(backward for _, backward in result["rollout"]["seconds"].values())
    backwards = {group: backward for group, (_, backward) in result["grpo_step"]["seconds"].items()}
    assert {group for group, backward in backwards.items() if not backward} == {SAMPLING, OPTIMIZER}
    assert backwards[REST] < 0.2 * sum(backwards.values())
    assert "with the profiler" in capsys.readouterr().out


def _event(name: str, seconds: float, *inside: Any, number: int = -1) -> Any:
    is_range = name in (*GROUPS, ranges.WHOLE, ranges.BACKWARD) or name.startswith(ranges.KERNEL)
    return SimpleNamespace(
        name=name,
        self_cpu_time_total=1e6 * seconds,
        sequence_nr=number,
        is_user_annotation=is_range,
        cpu_children=inside,
    )


def test_an_operator_belongs_to_the_range_around_it_and_its_gradient_to_the_same_range() -> None:
    forward = [
        _event(PRODUCTS, 1, _event("aten::mm", 2, number=7), _event("aten::detach", 4, number=8)),
        _event(NORMS, 8, _event("aten::rms_norm", 16, number=8)),
        _event(ranges.KERNEL + ATTENTION, 32),
    ]
    gradients = [
        _event(ranges.NODE + ": RmsNormBackward0", 64, number=8),
        _event(ranges.NODE + ": MmBackward0", 128, _event("aten::mm", 256), number=7),
        _event(ranges.NODE + ": torch::autograd::AccumulateGrad", 512),
    ]
    whole = _event(ranges.WHOLE, 1024, _event(LOSS, 2048, *forward, _event(ranges.BACKWARD, 4096, *gradients)))
    seconds: ranges.Seconds = {group: [0.0, 0.0] for group in GROUPS}
    ranges._add_up(whole, REST, False, seconds, {})
    assert {group: passes for group, passes in seconds.items() if any(passes)} == {
        PRODUCTS: [2 + 4, 128 + 256],
        NORMS: [16, 64],
        ATTENTION: [32, 0],
        REST: [0, 512],
        PYTHON: [1 + 8 + 1024 + 2048, 4096],
    }


def test_functions_are_wrapped_while_the_profiler_runs_and_not_after_an_error() -> None:
    def read() -> list[Any]:
        return [resolve_name(name) for name in ranges.RANGES]

    before, during = read(), []

    def fail_in_the_third_call() -> None:
        during.append(read())
        if len(during) == 3:  # after the warm-up and the call that is timed without the profiler
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        ranges.profile_calls(fail_in_the_third_call, 1)
    assert during[:2] == [before, before]
    assert not set(during[2]) & set(before)
    assert read() == before
