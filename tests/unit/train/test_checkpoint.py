"""Checkpoints are whole or absent; the newest whole one is resumed from; a corrupt one is named."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from core.config import OptimizerSection
from core.engine import weights
from core.hub import CheckpointError
from core.runs.run_folder import list_checkpoints
from core.train import checkpoint
from core.train.trainer import Trainer


def make_trainer(folder: Path) -> Trainer:
    return Trainer(weights.load(folder), OptimizerSection(lr=1e-2))


def test_the_latest_two_can_be_resumed_and_the_weights_of_all_stay(qwen2, tmp_path):
    model = weights.load(qwen2)
    assert (checkpoint.latest(tmp_path / "absent"), list_checkpoints(tmp_path)) == (None, [])
    for step in (5, 10, 15, 20):
        checkpoint.save(tmp_path, step, model, qwen2, {})
    names = [path.name for path in list_checkpoints(tmp_path)]
    assert names == ["step-000005", "step-000010", "step-000015", "step-000020"]
    assert [(path / checkpoint.STATE).exists() for path in list_checkpoints(tmp_path)] == [False, False, True, True]
    for path in list_checkpoints(tmp_path):
        weights.load(path)
    assert checkpoint.latest(tmp_path).name == "step-000020"


def test_a_newest_checkpoint_without_its_state_is_told_and_a_copy_beside_it_is_none(qwen2, tmp_path):
    assert checkpoint.find_newest(tmp_path) is None
    for step in (1, 2):
        checkpoint.save(tmp_path, step, weights.load(qwen2), qwen2, {})
    newest = tmp_path / "step-000002"
    shutil.copytree(newest, tmp_path / "step-000002-good")
    assert checkpoint.find_newest(tmp_path) == newest
    (newest / checkpoint.STATE).unlink()
    with pytest.raises(CheckpointError, match=r"trainer\.pt: is missing.*delete .*step-000002 and go on"):
        checkpoint.find_newest(tmp_path)


def test_what_can_be_resumed_is_kept_although_newer_checkpoints_have_no_state(qwen2, tmp_path):
    model = weights.load(qwen2)
    for step in (5, 10, 15):
        checkpoint.save(tmp_path, step, model, qwen2, {})
    for path in list_checkpoints(tmp_path)[1:]:
        (path / checkpoint.STATE).unlink()
    (tmp_path / "step-000005" / checkpoint.STATE).write_bytes(b"state")
    checkpoint.drop_old_states(tmp_path)
    assert checkpoint.latest(tmp_path).name == "step-000005"


@pytest.mark.parametrize("killed_at", ["weights", "state", "rename"])
def test_a_save_that_dies_leaves_the_previous_checkpoint(qwen2, tmp_path, monkeypatch, killed_at):
    model = weights.load(qwen2)
    checkpoint.save(tmp_path, 1, model, qwen2, {})

    def die(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        match killed_at:
            case "weights":
                patched.setattr(weights, "save", die)
            case "state":
                patched.setattr(torch, "save", die)
            case "rename":
                patched.setattr(Path, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            checkpoint.save(tmp_path, 2, model, qwen2, {})
    assert checkpoint.latest(tmp_path).name == "step-000001"
    assert len(list_checkpoints(tmp_path)) == 1
    checkpoint.save(tmp_path, 2, model, qwen2, {})
    assert checkpoint.load(checkpoint.latest(tmp_path), model)["step"] == 2
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["step-000001", "step-000002"]


def test_saving_a_step_again_replaces_it(qwen2, other_qwen2, tmp_path):
    checkpoint.save(tmp_path, 1, weights.load(qwen2), qwen2, {"cursor": 1})
    path = checkpoint.save(tmp_path, 1, weights.load(other_qwen2), qwen2, {"cursor": 2})
    model = weights.load(qwen2)
    assert checkpoint.load(path, model)["cursor"] == 2
    other = weights.load(other_qwen2)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", ["trainer.pt", "model.safetensors"])
@pytest.mark.parametrize("how", ["empty", "half", "garbage", "absent"])
def test_a_corrupt_checkpoint_is_named_and_the_model_stays(qwen2, other_qwen2, tmp_path, name, how):
    source = weights.load(qwen2)
    path = checkpoint.save(tmp_path, 4, source, qwen2, {"trainer": make_trainer(qwen2).state(), "cursor": 1})
    file = path / name
    content = file.read_bytes()
    match how:
        case "absent":
            file.unlink()
        case _:
            file.write_bytes({"empty": b"", "half": content[: len(content) // 2], "garbage": b"garbage" * 99}[how])
    model = weights.load(other_qwen2)
    before = [p.clone() for p in model.parameters()]
    with pytest.raises(CheckpointError, match=name) as caught:
        checkpoint.load(path, model)
    assert str(path) in str(caught.value)
    assert f"elete {path}; the run resumes from the one before" in str(caught.value)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_broken_weights_of_a_second_policy_say_which_checkpoint_to_delete(qwen2, tmp_path):
    model, critic = weights.load(qwen2), weights.load(qwen2)
    path = checkpoint.save(tmp_path, 4, model, qwen2, {}, {"critic": critic})
    (path / "critic" / "model.safetensors").write_bytes(b"garbage")
    with pytest.raises(CheckpointError, match=r"critic.model\.safetensors: cannot be read") as caught:
        checkpoint.load(path, model, {"critic": critic})
    assert f"delete {path}; the run resumes from the one before" in str(caught.value)
