"""Fixtures that every test may use, and the end of a run, which names the prerequisites that it lacked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from core.sandbox import Sandbox, SandboxUnavailable
from core.text.tokenizer import load_tokenizer
from tests import kit

pytest_plugins = ["pytester"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--sglang-url", help="a real SGLang server, for tests/contract/test_policy.py (see there)")
    parser.addoption("--vllm-url", help="a real vLLM server, for the same")
    parser.addoption("--long", type=float, default=0.0, help="runs long tests too, each for so many minutes")
    parser.addoption("--fuzz", type=int, default=1000, help="cases of each fuzz test, such as 100000")


def pytest_configure(config: pytest.Config) -> None:
    """Have Hypothesis draw the same cases each time, however slow, so that a commit passes or fails.

    Long runs draw new ones.
    """
    settings.register_profile("tests", derandomize=not config.getoption("--long"), deadline=None)
    settings.load_profile("tests")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """List what skipped tests need, one line for each prerequisite."""
    needs = kit.list_needs(report.longrepr[2] for report in terminalreporter.stats.get("skipped", ()))
    if needs:
        terminalreporter.section("prerequisites that are missing here")
        terminalreporter.write("".join(f"{line}\n" for line in needs))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of small real records beside the checkout; it is not part of the repository."""
    folder = Path(__file__).resolve().parents[2] / "shared" / "data"
    kit.require(folder.is_dir(), kit.RECORDS.format(folder=folder))
    return folder


@pytest.fixture(scope="session")
def isolation() -> None:
    """Skip the test where the sandbox has no isolation."""
    try:
        Sandbox()
    except SandboxUnavailable as problem:
        pytest.skip(f"needs isolation for the sandbox: {' '.join(str(problem).split())}")


@pytest.fixture(scope="session")
def long(request: pytest.FixtureRequest) -> None:
    """Skip the test unless the command line asks for long ones."""
    kit.require(request.config.getoption("--long"), kit.LONG)


@pytest.fixture(scope="session")
def memagent_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MemAgent's tiny start model. It is built once: tests read it and write elsewhere."""
    from agentic.memagent.world import WORLD

    return WORLD.build_model(tmp_path_factory.mktemp("tiny") / "model", seed=0)


@pytest.fixture(scope="session")
def model(memagent_model: Path) -> Path:
    """The model folder of a test that needs any; a folder of tests may have another."""
    return memagent_model


@pytest.fixture(scope="session")
def tokenizer(memagent_model: Path) -> Any:
    """A tokenizer with a chat template, and with prompt tags that are special tokens."""
    return load_tokenizer(memagent_model)


@pytest.fixture(scope="session")
def fuzz_cases(request: pytest.FixtureRequest) -> int:
    return int(request.config.getoption("--fuzz"))


@pytest.fixture(scope="session", autouse=True)
def mounts_apart() -> None:
    """Hide what other processes mount meanwhile. Only root can; nobody else's tests could leave a mount."""
    kit.keep_mounts_apart()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Matrices this small only lose by threads, and on a busy machine the threads wait for one another."""
    torch.set_num_threads(1)
