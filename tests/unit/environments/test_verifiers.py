"""A recipe that names verifiers is refused where its package is missing. tests/optional/environments has the rest."""

from __future__ import annotations

import sys

import pytest

from core.config import RecipeError
from core.environments.verifiers import VerifiersEntry


def test_a_missing_package_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "verifiers", None)
    monkeypatch.delitem(sys.modules, "verifiers.v1", raising=False)
    entry = VerifiersEntry(kind="verifiers", taskset={"id": "textarena"})
    with pytest.raises(RecipeError, match=r"agent\.agents\.x\.environment: .*pip install 'tokentrue\[verifiers\]'"):
        entry.open("agent.agents.x.environment", 4)
