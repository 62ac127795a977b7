"""What the long tests share: their minutes, and a line in the terminal for what was tried, lost and leaked."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import kit
from tests.e2e.conftest import launcher, preset

__all__ = ["launcher", "preset"]


@pytest.fixture
def long_s(request: pytest.FixtureRequest) -> float:
    """The seconds that a long test may take; without `--long MINUTES` it is skipped."""
    minutes = float(request.config.getoption("--long"))
    kit.require(minutes, kit.LONG)
    return 60 * minutes


@pytest.fixture
def tell(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Write a line into the terminal, also of a test that passes."""
    reporter = request.config.pluginmanager.get_plugin("terminalreporter")
    return lambda line: reporter.write_line(f"\nfaults: {line}")
