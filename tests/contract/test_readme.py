"""README.md shows a method's rollout; it must be the code that runs."""

from __future__ import annotations

import inspect
import textwrap
from pathlib import Path

from agentic.memagent.rollout import MemAgent

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_readme_shows_the_rollout_of_memagent_as_it_is() -> None:
    assert f"```python\n{textwrap.dedent(inspect.getsource(MemAgent.rollout))}```" in README.read_text()
