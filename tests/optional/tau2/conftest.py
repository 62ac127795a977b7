"""tau2-bench as it is installed elsewhere: TAU2_PYTHON is its interpreter, TAU2_DATA_DIR its `data` folder (see
benchmarks/tau2/README.md). Without them these tests skip."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from agentic.toolorchestra.tau2.client import Workers


@pytest.fixture(scope="session")
def tau2_place() -> tuple[str, str]:
    """Interpreter, data folder."""
    python, data = os.environ.get("TAU2_PYTHON"), os.environ.get("TAU2_DATA_DIR")
    if not python or not data:
        pytest.skip("needs tau2-bench: set TAU2_PYTHON and TAU2_DATA_DIR (benchmarks/tau2/README.md)")
    return python, data


@pytest.fixture(scope="session")
def tau2(tau2_place: tuple[str, str]) -> Iterator[Workers]:
    workers = Workers(*tau2_place, count=1)
    yield workers
    workers.close()
