"""The end of a run names what skipped tests need."""

from __future__ import annotations

from types import SimpleNamespace

from tests import kit
from tests.conftest import pytest_terminal_summary


def test_missing_prerequisites_are_listed_once_each_with_their_fix() -> None:
    reasons = [f"Skipped: {kit.BUBBLEWRAP}"] * 2 + [kit.SLIME, "SGLang honours seeds only with a flag"]
    skipped = [SimpleNamespace(longrepr=("test.py", 1, reason)) for reason in reasons]
    lines: list[str] = []
    reporter = SimpleNamespace(stats={"skipped": skipped}, section=lines.append, write=lines.append)
    pytest_terminal_summary(reporter)
    assert lines == [
        "prerequisites that are missing here",
        "2 skipped, for want of bubblewrap: apt-get install bubblewrap\n"
        "1 skipped, for want of slime: set SLIME_ROOT to a checkout of it\n",
    ]
    pytest_terminal_summary(SimpleNamespace(stats={}))
