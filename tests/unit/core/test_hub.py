"""A model is a folder or a hub id; what is neither is an error that names it."""

from __future__ import annotations

from pathlib import Path

import huggingface_hub
import pytest

from core.hub import CheckpointError, read_json, resolve


@pytest.mark.parametrize("weights", [True, False])
def test_a_server_elsewhere_needs_no_weights_here(weights: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    asked: list[list[str]] = []

    def snapshot_download(repo_id: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        return str(tmp_path / repo_id)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert resolve("org/name", weights=weights) == tmp_path / "org" / "name"
    assert ("*.safetensors" in asked[0]) == weights
    assert "*.json" in asked[0]


@pytest.mark.parametrize("name", ["/absent", "./absent/model", "name", "a/b/c", "not an/id!"])
def test_what_is_neither_is_named(name: str):
    with pytest.raises(CheckpointError, match=name):
        resolve(name)


def test_without_the_hub_a_command_that_needs_none_is_named(monkeypatch: pytest.MonkeyPatch):
    def snapshot_download(*_: object, **__: object) -> str:
        raise OSError("Name or service not known")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(CheckpointError, match=r"org/name: .*not known.*`tokentrue data smollm2 --out FOLDER`"):
        resolve("org/name")


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[]", "must hold a JSON object")])
def test_a_broken_file_of_a_model_is_named(text: str, message: str, tmp_path: Path):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=rf"config\.json: {message}.*again"):
        read_json(tmp_path / "config.json")
