"""Our scorers equal the official ones of RULER and MemAgent on 60,000 random inputs.

UPSTREAM_DIR=FOLDER pytest tests/optional/ruler    # FOLDER/OWNER/NAME is a clone, or FOLDER/OWNER+NAME/repo
"""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
from pathlib import Path

import pytest

from core.rewards import boxed, qa
from tests.golden.prompts.upstream import MEMAGENT, RULER
from tests.golden.ruler.make_golden import _digest, score_all
from tests.golden.ruler.predictions import cases

FOLDER = os.environ.get("UPSTREAM_DIR")
pytestmark = pytest.mark.skipif(FOLDER is None, reason="UPSTREAM_DIR names no folder with the authors' repositories")
COUNT, SEED = 60_000, 1


def check_out(origin: tuple[str, str], out: Path, *paths: str) -> Path:
    """Write some folders of a repository at its commit to `out`."""
    repository, commit = origin
    clones = [Path(str(FOLDER)) / repository, Path(str(FOLDER)) / repository.replace("/", "+") / "repo"]
    clone = next(path for path in clones if path.is_dir())
    archive = subprocess.run(["git", "-C", clone, "archive", commit, *paths], capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(out, filter="data")
    return out


def test_scorers_are_the_official_ones(tmp_path: Path) -> None:
    ruler = check_out(RULER, tmp_path / "ruler", "scripts/eval/synthetic")
    memagent = check_out(MEMAGENT, tmp_path / "memagent", "taskutils/memory_eval", "verl/utils/reward_score")
    samples = cases(COUNT, SEED)
    official = score_all(ruler, memagent, samples)
    ours = {
        "em": lambda c: qa.em(c.response, c.answers[0]),
        "sub_em": lambda c: qa.sub_em(c.response, c.answers[0]),
        "string_match_part": lambda c: qa.string_match_part(c.response, c.answers),
        "boxed_reward": lambda c: boxed.boxed_reward(c.response, c.answers),
        "is_equiv": lambda c: boxed.is_equiv(*c.latex),
    }
    for name, score in ours.items():
        digits = "".join(str(int(score(case))) for case in samples)
        assert digits == official[name], name
        assert 0.05 * COUNT < digits.count("1") < 0.95 * COUNT, "the inputs must exercise both outcomes"
    assert [round(qa.f1(c.response, c.answers[0]), 4) for c in samples] == pytest.approx(official["f1"])
    shares = [round(100 * qa.string_match_all(c.response, c.answers), 2) for c in samples]
    assert shares == pytest.approx(official["string_match_all"])
    assert _digest([boxed.find_boxed(c.response) for c in samples]) == official["extract_boxed"]
    assert _digest([qa.extract_the_answer_is(c.response) for c in samples]) == official["extract_the_answer_is"]
