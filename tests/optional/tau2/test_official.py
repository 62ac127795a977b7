"""tau2's own tool reads our result files and grades them as we recorded."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from benchmarks.tau2 import evaluate

pytestmark = [pytest.mark.optional, pytest.mark.timeout(900)]


def test_the_official_evaluator_reads_our_files(tau2_place: tuple[str, str], tmp_path: Path) -> None:
    python, data = tau2_place
    out, graded = tmp_path / "run", tmp_path / "graded"
    domains = ["airline", "telecom", "telecom-solo"]
    where = ["--tau2-python", python, "--tau2-data", data, "--processes", "1", "--out", str(out)]
    assert evaluate.main(["--arms", "do-nothing", "--domains", *domains, "--tasks", "8", *where]) == 0
    environment = {**os.environ, "TAU2_DATA_DIR": data, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    for domain in domains:
        path = out / "official" / f"do-nothing_{domain}.json"
        command = [python, "-m", "tau2.cli", "evaluate-trajs", str(path), "-o", str(graded)]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        (theirs,) = graded.glob(f"*{path.name}")
        rewards = [
            [s["reward_info"]["reward"] for s in json.loads(file.read_text())["simulations"]] for file in (path, theirs)
        ]
        assert rewards[0] == rewards[1]
        assert sum(rewards[0]) == {"airline": 6, "telecom": 0, "telecom-solo": 0}[domain]
        theirs.unlink()
