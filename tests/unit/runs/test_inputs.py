"""What a run rests on has hashes: a change of a byte of data, or of any tensor of a large model, is told by name."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core.config import Recipe
from core.runs import inputs
from core.runs.inputs import hash_file, hash_inputs, list_code, list_input_changes
from core.runs.run_folder import INPUTS, RunFolder, RunFolderError
from tests.kit import make_recipe


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    path.write_text("one\ntwo\n")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({f"{i}.weight": torch.full((64, 64), float(i)) for i in range(5)}, folder / "model.safetensors")
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "notes.md"):
        (folder / name).write_text(name)
    return folder


def test_all_files_of_a_model_that_count_are_named(data: Path, folder: Path) -> None:
    (folder / "cache-1a2b.arrow").touch()  # of `map` of datasets, perhaps in another program
    found = hash_inputs({"data.train": data, "more": folder}, {"model": folder})
    assert "more/cache-1a2b.arrow" not in found
    assert {name for name in found if name.startswith("model/")} == {
        "model/config.json", "model/tokenizer.json", "model/chat_template.jinja", "model/model.safetensors",
    }  # fmt: skip
    assert "more/notes.md" in found
    digest = "c3f9c8c283a2b1f2f1896f27a01cbe3cddc0c9d93f752e4639035a0f5b36f6e8"
    assert found["data.train"] == {"size": 8, "sha256": digest}


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("tensor", range(5))
def test_a_change_of_any_tensor_changes_the_hash(
    folder: Path, whole: bool, tensor: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not whole:
        monkeypatch.setattr(inputs, "WHOLE_BYTES", 0)
        monkeypatch.setattr(inputs, "PART_BYTES", 256)
    path = folder / "model.safetensors"
    before, tensors = hash_file(path), load_file(path)
    assert hash_file(path) == before
    tensors[f"{tensor}.weight"] += 1e-3
    save_file(tensors, path)
    assert hash_file(path) != before
    renamed = {f"{name}s": value - 0 for name, value in tensors.items()}
    save_file(renamed, path)
    assert hash_file(path) != before


def test_a_line_tells_what_was_and_what_is(data: Path) -> None:
    before = hash_inputs({"data.train": data}, {})
    data.write_text("one\n")
    (line,) = list_input_changes(before, hash_inputs({"data.train": data}, {}))
    assert line.startswith("data.train: 8 bytes, sha256 ")
    assert " before, 4 bytes, sha256 " in line
    assert list_input_changes(before, {}) == [f"{line.split(' before')[0]} before, absent now"]


def test_a_run_goes_on_with_other_files_only_when_it_is_told_to(tmp_path: Path, data: Path, config: dict) -> None:
    run = RunFolder.create(tmp_path / "run", config)

    def check(accept: bool = False) -> None:
        RunFolder(run.path).check_inputs(hash_inputs({"data.train": data}, {}), accept=accept)

    check()
    data.write_text("there are no results yet")
    check()
    run.open_metrics(0).append({"stage": "train", "step": 1})
    check()
    data.write_text("half")
    told = r"(?s)data\.train: 24 bytes, .* before, 4 bytes.*--accept-changes"
    with pytest.raises(RunFolderError, match=told) as caught:
        check()
    assert "choose another --out" in str(caught.value)
    check(accept=True)
    check()
    assert len(run.inputs["changes"]) == 1
    assert "data.train: 24 bytes" in run.inputs["changes"][0]
    RunFolder.create(run.path, {**config, "preset": "other"}, fresh=True)
    assert not (run.path / INPUTS).exists()


def test_edited_code_is_told_by_its_file_but_not_to_a_run_that_began_without_it(
    tmp_path: Path, data: Path, config: dict
) -> None:
    folder = tmp_path / "my_method"
    for name in ("rollout.py", "test_rollout.py", "tests/kit.py", "tools/search.py", "presets/tiny.yaml"):
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text("")
    code = list_code(folder, make_recipe(Recipe, reward="core.rewards.math_grader.MathGrader"))
    assert list(code) == ["code/rollout.py", "code/tools/search.py", "code/reward"]
    assert code["code/reward"].name == "math_grader.py"
    assert list_code(folder / "none", make_recipe(Recipe, reward="time.time")) == {}  # written in C
    run = RunFolder.create(tmp_path / "run", config)
    run.open_metrics(0).append({"stage": "train", "step": 1})
    run.check_inputs(hash_inputs({"data.train": data}, {}))
    for _ in range(2):
        run.check_inputs(hash_inputs({"data.train": data, **code}, {}))
    (folder / "rollout.py").write_text("REWARD = 0")
    with pytest.raises(RunFolderError, match=r"code/rollout\.py: 0 bytes, .* before, 10 bytes"):
        run.check_inputs(hash_inputs({"data.train": data, **code}, {}))


def test_a_run_from_before_there_were_hashes_resumes_with_a_note(
    tmp_path: Path, data: Path, config: dict, caplog: pytest.LogCaptureFixture
) -> None:
    run = RunFolder.create(tmp_path / "run", config)
    run.open_metrics(0).append({"stage": "train", "step": 1})
    run.check_inputs(hash_inputs({"data.train": data}, {}))
    assert "began without hashes" in caplog.text
    assert run.inputs["files"]["data.train"]["size"] == 8
