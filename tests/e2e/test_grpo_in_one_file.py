"""examples/grpo_in_one_file.py, with fewer steps and smaller groups."""

from __future__ import annotations

import pytest

from examples.grpo_in_one_file import main


@pytest.mark.e2e
def test_the_example_runs_and_repeats(capsys: pytest.CaptureFixture[str]) -> None:
    outputs = []
    for _ in range(2):
        before, after = main(seed=0, cold_steps=8, steps=3, groups=2, size=4)
        assert 0 <= before <= 1
        assert 0 <= after <= 1
        outputs.append(capsys.readouterr().out)
    assert "step   2  reward" in outputs[0]
    assert outputs[0] == outputs[1]
