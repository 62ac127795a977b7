from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.optional.verl import traps

pytestmark = [pytest.mark.optional, pytest.mark.timeout(300)]
FIGURES = """\
rloo: rollout 0 has one output: advantages [1.0, -1.0]; it has three: 0.333, -1.0
first outputs: advantages [0.5, -0.5] if the last output is trained, [0.0, -0.0] if its mask is 0
optimizer steps on 16 rollouts, asked for 2: 2 at 1 output each, 12 at 6
rewards [1, 1]: advantages [0.0, 0.0]; reward [1] alone: [1.0]; [0.7] alone: [0.7]
vLLM's finish_reason -> verl's stop_reason: {'stop': 'completed', 'length': 'completed'}
max_tokens 20 behind a prompt of 7, max_model_len 10: vLLM is asked for 3, no error
"""
"""Is what docs/LOG.md tells of verl 0.9.1. Where a newer verl prints another one, a guard of ours may be needless."""


def test_the_figures_of_the_traps_are_those_of_this_verl(verl: Any, tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "VERL_USE_EXTERNAL_MODULES"}
    command = [sys.executable, "-W", "ignore", str(traps.__file__)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == FIGURES
