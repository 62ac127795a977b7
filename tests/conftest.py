"""Fixtures that every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sglang-url", help="a real SGLang server, for tests/contract/test_policy.py (see there)")
    parser.addoption("--fuzz", type=int, default=2000, help="cases of each fuzz test, such as 100000")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of small real records beside the checkout; it is not part of the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"real records not found at {folder}")
    return folder


@pytest.fixture(scope="session")
def fuzz_cases(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--fuzz"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Matrices this small only lose by threads, and on a busy machine the threads wait for one another."""
    torch.set_num_threads(1)
