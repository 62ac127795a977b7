"""The whole table with real servers of ours, killed again and again: the same rows as a run that was left alone.

pytest tests/optional/test_table_kills.py --long 10    # ten minutes on two quiet cores
"""

from __future__ import annotations

import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import REPOSITORY, environment
from tests.e2e.test_table import FAKE_TAU2, list_arguments, make_stand_in, write_data

KILLS = 10
LAUNCH = """
import sys
from pathlib import Path
from agentic.toolorchestra.tau2 import client
from benchmarks.table.command import main
client.WORKER = Path(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""


def start(arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as output:
        words = [sys.executable, "-c", LAUNCH, str(FAKE_TAU2), *arguments]
        return subprocess.Popen(words, stdout=output, stderr=output, cwd=REPOSITORY, env=environment())


@pytest.mark.usefixtures("long")
@pytest.mark.timeout(7200)
def test_a_table_that_is_killed_again_and_again_is_the_same(tmp_path: Path) -> None:
    make_stand_in(tmp_path / "model")
    write_data(tmp_path / "data", ten_task_lengths=7)
    log = tmp_path / "log.txt"
    began = time.monotonic()
    whole = list_arguments(tmp_path, tmp_path / "whole")
    assert start(whole, log).wait() == 0, log.read_text()
    seconds, rng = time.monotonic() - began, random.Random(0)
    killed = list_arguments(tmp_path, tmp_path / "killed")
    for _ in range(KILLS):
        process = start(killed, log)
        time.sleep(rng.uniform(0.1, 0.9) * 1.2 * seconds / KILLS)
        assert process.poll() is None, f"it ended before it was killed:\n{log.read_text()}"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert start(killed, log).wait() == 0, log.read_text()
    tables = [(tmp_path / name / "stand-in" / "table.md").read_text() for name in ("whole", "killed")]
    assert tables[0] == tables[1]
    assert len(re.findall(r"^\| .* \| – \| – \| – \|", tables[0], re.MULTILINE)) == 12, "the rows that nothing measures"
