"""Every way out that `probes.py` knows, on every backend, as root and as a plain user: none is open."""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import Any

import pytest

from core.sandbox import Sandbox, SandboxUnavailable
from tests import kit
from tests.unit.sandbox.honeypot import start
from tests.unit.sandbox.probes import (
    ALLOWED_IN_A_WORKSPACE,
    PROBES,
    WORKSPACE_PROBES,
    WORKSPACE_SAMPLE,
    Probe,
)

# A test that asks first pays for all probes of its user and backend.
pytestmark = pytest.mark.timeout(300)
USERS = ("me", "nobody")
BACKENDS = ("landlock", "bubblewrap")


@cache
def outcomes(user: str, backend: str, task: str) -> dict[str, Any]:
    kit.require(user == "me" or os.getuid() == 0, kit.ROOT)
    kit.require(backend != "bubblewrap" or shutil.which("bwrap"), kit.BUBBLEWRAP)
    if backend != "unsafe_local":
        try:
            Sandbox(backend=backend)  # type: ignore[arg-type]
        except SandboxUnavailable as problem:
            pytest.skip(f"needs isolation for the sandbox: {problem}")
    results: dict[str, Any] = start(user, backend, task)
    return results


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.name)
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_way_out(probe: Probe, user: str, backend: str) -> None:
    result = outcomes(user, backend, "probes")[probe.name]
    assert "ESCAPED" not in result["stdout"]
    assert result["status"] in probe.statuses, result


@pytest.mark.parametrize("probe", WORKSPACE_PROBES, ids=lambda probe: probe.name)
@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_way_out_of_a_workspace(request: pytest.FixtureRequest, probe: Probe, user: str, backend: str) -> None:
    """The same programs, as commands of a workspace. A default run takes a sample, `--long 5` all."""
    if probe.name not in WORKSPACE_SAMPLE:
        request.getfixturevalue("long")
    result = workspace_outcomes(request, user, backend)[probe.name]
    assert "ESCAPED" not in result["stdout"]
    # The exit code of a command does not say what a sandbox's report says.
    expected = {"error" if status in ("blocked", "memory") else status for status in probe.statuses}
    assert result["status"] in expected, result


@pytest.mark.parametrize("name", WORKSPACE_SAMPLE)
@pytest.mark.parametrize("backend", BACKENDS)
def test_no_way_out_of_a_task_folders_tests(request: pytest.FixtureRequest, name: str, backend: str) -> None:
    """A sample of the same programs, as test.sh of a Harbor task runs them: it is somebody else's code, too."""
    if backend != "landlock":
        request.getfixturevalue("long")
    results = outcomes("nobody" if backend == "bubblewrap" else "me", backend, "verifier")
    assert "ESCAPED" not in results[name]["stdout"]
    [probe] = [probe for probe in PROBES if probe.name == name]
    assert results[name]["status"] in {"error" if s in ("blocked", "memory") else s for s in probe.statuses}
    assert results["traces"]["after"] == results["traces"]["before"]


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_probes_of_a_workspace_leave_no_trace(request: pytest.FixtureRequest, user: str, backend: str) -> None:
    traces = workspace_outcomes(request, user, backend)["traces"]
    assert traces["after"] == traces["before"]
    assert traces["grown_mb"] < 32


def workspace_outcomes(request: pytest.FixtureRequest, user: str, backend: str) -> dict[str, Any]:
    long = request.config.getoption("--long")
    if user != "me" or backend != "landlock":  # the default run takes one user and one backend
        request.getfixturevalue("long")
    if backend == "bubblewrap" and user == "me" and os.getuid() == 0:
        pytest.skip("bubblewrap cannot count the processes of root, and a workspace refuses it")
    return outcomes(user, backend, "workspace" if long else "workspace-sample")


def test_each_probe_that_a_workspace_allows_is_a_probe() -> None:
    assert {probe.name for probe in PROBES} >= {*ALLOWED_IN_A_WORKSPACE, *WORKSPACE_SAMPLE}
    assert not ALLOWED_IN_A_WORKSPACE.keys() & set(WORKSPACE_SAMPLE)


@pytest.mark.parametrize("user", USERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_probes_leave_no_trace(user: str, backend: str) -> None:
    """Neither on what was within reach (files, servers, a process) nor on the process that runs the sandbox."""
    traces = outcomes(user, backend, "probes")["traces"]
    assert traces["after"] == traces["before"]
    assert traces["grown_mb"] < 32


@pytest.mark.parametrize("backend", BACKENDS)
def test_programs_that_hold_all_they_can_are_not_felt_outside(backend: str) -> None:
    """Pipes are counted by user, locks by file. As a plain user: root has no share that could run out."""
    seen = outcomes("nobody", backend, "hoard")
    assert seen["statuses"] == ["ok"]
    assert seen["worst"] == seen["before"]


@pytest.mark.parametrize("probe", [probe for probe in PROBES if probe.control], ids=lambda probe: probe.name)
@pytest.mark.parametrize("user", USERS)
def test_probe_gets_out_without_a_sandbox(probe: Probe, user: str) -> None:
    """Otherwise its failure inside one would prove nothing."""
    result = outcomes(user, "unsafe_local", "controls")[probe.name]
    assert "ESCAPED" in result["stdout"], result["stderr"]


@pytest.mark.e2e
@pytest.mark.parametrize("backend", BACKENDS)
def test_many_runs_at_once_leak_nothing(backend: str) -> None:
    """96 runs, 16 at once. By hand: `python -m tests.unit.sandbox.honeypot me landlock 1000`."""
    done = outcomes("me", backend, "96")
    assert done["wrong"] == []
    assert done["after"] == done["before"]
    assert done["grown_mb"] < 32
