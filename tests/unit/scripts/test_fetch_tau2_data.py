"""Tests `tokentrue data tau2` on a small repository of the same shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentic.toolorchestra.tau2.worker import git_blob
from scripts.fetch_tau2_data import fetch, find_differences, main
from tests.kit import git

FILE = "domains/retail/policy.md"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    repo = tmp_path / "source"
    for path, text in {f"data/tau2/{FILE}": "Be kind.\n", "data/other.txt": "no", "src/code.py": "no"}.items():
        (repo / path).parent.mkdir(parents=True, exist_ok=True)
        (repo / path).write_text(text)
    git(repo, "init", "--quiet")
    git(repo, "add", ".")
    git(repo, "commit", "--quiet", "-m", "all")
    git(repo, "config", "uploadpack.allowAnySHA1InWant", "true")
    return repo


def test_only_the_data_arrive_and_are_checked(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    fetch(out, str(source), git(source, "rev-parse", "HEAD"))
    assert (out / "tau2" / FILE).read_text() == "Be kind.\n"
    assert not (out / ".tau2-bench" / "src").exists()
    assert find_differences(out, {FILE: git_blob(b"Be kind.\n")}) == []
    (out / "tau2" / FILE).write_text("Be rude.\n")
    problems = find_differences(out, {FILE: git_blob(b"Be kind.\n"), "domains/retail/db.json": "0" * 40})
    assert ["expected" in problems[0], "missing" in problems[1]] == [True, True]


def test_a_source_that_is_not_there_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--out", str(tmp_path / "out"), "--from", str(tmp_path / "nothing")]) == 1
    assert "check the network" in capsys.readouterr().err
    (tmp_path / "out" / "tau2").mkdir(parents=True)
    assert main(["--out", str(tmp_path / "out")]) == 1
    assert "policy.md: missing" in capsys.readouterr().err
