"""The backends of a workspace that work here. A test that asks for `make` runs on each."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from core.sandbox.workspace import (
    DockerWorkspace,
    IsolatedWorkspace,
    RepositoryWorkspace,
    WorkspaceLimits,
    WorkspaceUnavailable,
)
from tests import kit

IMAGE = "python:3.11"


@pytest.fixture(params=["landlock", "bubblewrap", "docker"])
def make(request: pytest.FixtureRequest) -> Callable[..., RepositoryWorkspace]:
    """Return what makes a workspace of one backend; skips where that backend does not work."""
    backend = request.param

    def make_workspace(
        limits: WorkspaceLimits | None = None, workdir: str = "/testbed", **access: Any
    ) -> RepositoryWorkspace:
        if backend == "docker":
            kit.require(not access, "needs a backend of namespaces: a container shows no paths and serves no port")
            return DockerWorkspace(IMAGE, limits, workdir)
        return IsolatedWorkspace(limits, workdir, backend, **access)

    if backend == "docker":
        runtime = shutil.which("docker")
        if not runtime or subprocess.run([runtime, "image", "inspect", IMAGE], capture_output=True).returncode:
            pytest.skip(f"needs a running Docker with the image {IMAGE}: docker pull {IMAGE}")
    elif backend == "bubblewrap" and (not shutil.which("bwrap") or os.geteuid() == 0):
        pytest.skip("needs bubblewrap and another user than root: apt-get install bubblewrap")
    else:
        try:
            asyncio.run(try_out(make_workspace()))
        except WorkspaceUnavailable as problem:
            pytest.skip(f"needs isolation for workspaces: {' '.join(str(problem).split())}")
    return make_workspace


async def try_out(workspace: RepositoryWorkspace) -> None:
    async with workspace:
        await workspace.open()
