"""This plugin lets a test of yours fail where rollouts drift: put `pytest_plugins = ["core.inspect.pytest_plugin"]`
into conftest.py, and ask for the fixture `assert_no_drift`.

    def test_my_rollouts_are_trained_as_they_were_sampled(assert_no_drift):
        assert_no_drift("runs/mine", tokenizer="Qwen/Qwen3-8B")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


@pytest.fixture
def assert_no_drift() -> Callable[..., None]:
    """Return what checks dumps as `tokentrue inspect drift` does, and fails the test where rollouts drift."""
    from core.inspect.drift import check_dumps
    from core.text.tokenizer import load_tokenizer

    def check(
        *dumps: str | Path, tokenizer: str | Path, weights: Mapping[str, str] | None = None, temperature: float = 1.0
    ) -> None:
        """Fail the test if there is drift in one of `dumps`, or no sampled token. `weights` maps versions to models.

        Raises:
            ValueError: a file is broken, or there is none; the message names it.
        """
        loaded = load_tokenizer(str(tokenizer), for_chat=False)
        report = check_dumps(map(Path, dumps), loaded, weights, temperature)
        if report.counts or not report.tokens:
            pytest.fail("\n".join([*report.lines, str(report)]), pytrace=False)

    return check
