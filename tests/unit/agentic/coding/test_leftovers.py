"""Rollouts leave no process, mount or file behind: repaired, cancelled, ruined, with processes in the background."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from core.sandbox.workspace.isolated import choose_backend
from tests.kit import adopt_orphans, list_descendants
from tests.unit.agentic.coding.leftovers import KINDS, find_new, kill_midway, read_host, run_rollouts


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rollouts make temporary files where no other process does."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


async def check(tokenizer: Any, count: int) -> None:
    """Run so many rollouts, 50 at a time, and compare the host before and after."""
    await run_rollouts(tokenizer, choose_backend(), 1)  # loads what is loaded late
    with adopt_orphans():
        processes = list_descendants(os.getpid())
        before = read_host(processes)
        ends = await run_rollouts(tokenizer, choose_backend(), count)
        assert find_new(before, read_host(processes)) == {}
    for name, counts in ends.items():
        assert counts.total() in (count // len(KINDS), count // len(KINDS) + 1)
        assert counts.keys() <= set(KINDS[name].ends), (name, counts)


async def test_rollouts_leave_nothing_behind(isolation: None, tokenizer: Any) -> None:
    await check(tokenizer, len(KINDS))


@pytest.mark.timeout(1200)
async def test_500_rollouts_leave_nothing_behind(isolation: None, long: None, tokenizer: Any) -> None:
    await check(tokenizer, 500)


@pytest.mark.timeout(600)
def test_a_process_that_is_killed_in_the_midst_of_rollouts_leaves_nothing_behind(isolation: None, long: None) -> None:
    with adopt_orphans():
        running, left = kill_midway(choose_backend(), 500)
    assert running >= 50
    assert left == {}
