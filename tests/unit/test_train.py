"""`python -m core.engine.train`: an error is reported before the run folder exists or a step runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from core.engine import train
from core.engine.train import main


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    started: list[str] = []
    monkeypatch.setattr(train, "train", lambda spec, recipe, folder: started.append(spec.name))
    return started


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    record = {"task_id": "t", "question": "?", "answers": ["1"], "context": "It is 1.", "metadata": {}}
    path.write_text(json.dumps(record) + "\n")
    return path


def run(out: Path, model: Path, data: Path, *more: str) -> int:
    settings = [f"model.path={model}", f"data.train={data}", f"data.eval={data}", *more]
    return main(["memagent", "--out", str(out), *(part for setting in settings for part in ("--set", setting))])


def test_a_good_start_trains(no_training: list[str], tmp_path: Path, model: Path, data: Path) -> None:
    assert run(tmp_path / "run", model, data) == 0
    assert no_training == ["memagent"]


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("model.path=/no/model", "/no/model"),
        ("data.train=/no/train.jsonl", "/no/train.jsonl: no such file"),
        ("data.eval=/no/dev.jsonl", "/no/dev.jsonl: no such file"),
        ("run.trackers=[mlflow]", "run.trackers"),
    ],
)
def test_a_bad_start_names_the_fault_and_leaves_no_folder(
    no_training: list[str], tmp_path: Path, model: Path, data: Path, setting: str, named: str, capsys
) -> None:
    assert run(tmp_path / "run", model, data, setting) == 1
    assert named in capsys.readouterr().err
    assert no_training == []
    assert not (tmp_path / "run").exists()


def test_a_record_that_the_method_cannot_use_is_named(tmp_path: Path, model: Path, data: Path, capsys) -> None:
    data.write_text(json.dumps({"task_id": "t", "question": "?", "answers": ["1"], "context": "", "metadata": {}}))
    assert run(tmp_path / "run", model, data) == 1
    assert f"{data}:1: field 'context'" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, model: Path, data: Path, capsys) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run(tmp_path / "file" / "run", model, data) == 1
    assert "file/run" in capsys.readouterr().err
