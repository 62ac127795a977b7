"""verl's own workers and trainer in this process, with our engine or a script behind verl's client of its servers."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest

from tests import kit
from tests.contract.slime.conftest import case, model, tokenizer  # noqa: F401


@pytest.fixture(scope="session")
def verl() -> Any:
    """The rig, which imports verl; without verl the test is skipped."""
    kit.require(find_spec("verl"), kit.VERL)
    from tests.optional.verl import rig

    return rig
