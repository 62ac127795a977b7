"""Every way out that `probes.py` knows, on every backend, as root and as a plain user: none is open."""

from __future__ import annotations

import os
import shutil
from functools import cache
from typing import Any

import pytest

from core.tools.sandbox import Sandbox, SandboxUnavailable
from tests import kit
from tests.unit.tools.sandbox.honeypot import start
from tests.unit.tools.sandbox.probes import PROBES, Probe

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
    """200 runs, 16 at once. By hand: `python -m tests.unit.tools.sandbox.honeypot me landlock 1000`."""
    done = outcomes("me", backend, "200")
    assert done["wrong"] == []
    assert done["after"] == done["before"]
    assert done["grown_mb"] < 32
