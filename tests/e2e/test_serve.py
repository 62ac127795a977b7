"""`evaluate --serve embedded`: one command starts a server, evaluates through it and stops it."""

from __future__ import annotations

import re
import urllib.error
import urllib.request
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.ruler.evaluate import main
from core.runs.evaluation import EvalResult, load_evaluations

from .conftest import REPOSITORY

pytestmark = pytest.mark.e2e


def evaluate(model: Path, out: Path, *options: str) -> EvalResult:
    common = "--preset tiny --variants trained --lengths 448 --tasks 3 --seeds 0 --concurrency 3 --threads 1".split()
    assert main(["--model", str(model), "--out", str(out), "--set", "model.device=cpu", *common, *options]) == 0
    (result,) = load_evaluations(out / "evaluation")
    return result


def test_a_served_model_scores_as_one_in_this_process(model, tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    served = evaluate(model, tmp_path / "served", "--serve", "embedded", "--serve-args=--device cpu --kv-tokens 2048")
    here = evaluate(model, tmp_path / "here")
    assert (served.notes.pop("served"), here.notes.pop("served")) == (True, False)
    for result in (served, here):
        result.notes.pop("cpu_seconds")
    assert replace(served, seconds=0.0) == replace(here, seconds=0.0)
    log = (tmp_path / "served" / "evaluate-server.log").read_text()
    url = re.search(r"http://127\.0\.0\.1:\d+", log)
    assert url, log
    with pytest.raises(urllib.error.URLError, match="refused"):
        urllib.request.urlopen(url[0])
