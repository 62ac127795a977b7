"""The hashes of tests/golden/prompts follow from checkouts of the authors' repositories.

UPSTREAM_DIR=FOLDER pytest tests/optional/prompts    # FOLDER/OWNER/NAME is a clone, or FOLDER/OWNER+NAME/repo
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.golden.prompts.make_golden import GOLDEN, describe, read_upstream
from tests.golden.prompts.upstream import SOURCES, Source

FOLDER = os.environ.get("UPSTREAM_DIR")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="UPSTREAM_DIR names no folder with the authors' repositories")


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name)
def test_a_prompt_renders_from_its_source(source: Source) -> None:
    text = source.render(read_upstream(Path(str(FOLDER)), source), source.line)
    assert describe(source, text) == json.loads(GOLDEN.read_text(encoding="utf-8"))[source.name]
