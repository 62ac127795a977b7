from __future__ import annotations

from pathlib import Path

import pytest

from core.runs.run_folder import RunFolder, RunFolderError, flatten


def test_the_same_recipe_resumes(tmp_path: Path, config: dict) -> None:
    first = RunFolder.create(tmp_path / "run", {**config, "lengths": (1, 2)})
    first.open_metrics(0).append({"stage": "train", "step": 1, "reward": 0.5})
    again = RunFolder.create(tmp_path / "run", {**config, "lengths": [1, 2]})
    assert again.config == first.config
    assert again.config["train"]["lr"] == 5e-4
    assert again.read_metrics(0) == [{"stage": "train", "step": 1, "reward": 0.5}]
    assert again.seeds == [0]
    assert first.versions["python"]
    assert "resumed_with" not in again.versions


def begin(folder: RunFolder) -> None:
    folder.open_metrics(0).append({"stage": "train", "step": 1})


def test_another_recipe_is_refused_naming_the_keys_and_the_fix(tmp_path: Path, config: dict) -> None:
    begin(RunFolder.create(tmp_path / "run", config))
    other = {**config, "preset": "paper", "train": {"lr": 1e-6, "steps": 120}, "new": None}
    with pytest.raises(RunFolderError) as error:
        RunFolder.create(tmp_path / "run", other)
    message = str(error.value)
    assert "preset: 'tiny' in the folder, 'paper' asked for" in message
    assert "train.lr: 0.0005 in the folder, 1e-06 asked for" in message
    assert "train.kl: 0.0 in the folder, absent asked for" in message
    assert "new: absent in the folder, None asked for" in message
    assert "4 key(s)" in message
    assert "another --out" in message
    assert "--fresh" in message
    assert "steps" not in message
    assert RunFolder(tmp_path / "run").config == config


def test_a_run_that_failed_at_its_start_does_not_keep_its_folder(tmp_path: Path, config: dict) -> None:
    RunFolder.create(tmp_path / "run", config).open_metrics(0)
    mended = {**config, "preset": "paper"}
    assert RunFolder.create(tmp_path / "run", mended).config == mended


@pytest.mark.parametrize("done", ["warm_start/config.json", "evaluation/trained.json", "slime.sh", "notes.txt"])
def test_a_run_that_has_done_something_keeps_it(tmp_path: Path, config: dict, done: str) -> None:
    file = RunFolder.create(tmp_path / "run", config).path / done
    file.parent.mkdir(exist_ok=True)
    file.write_text("something")
    with pytest.raises(RunFolderError, match="preset: 'tiny' in the folder"):
        RunFolder.create(tmp_path / "run", {**config, "preset": "paper"})


def test_keys_that_may_differ(tmp_path: Path, config: dict) -> None:
    begin(RunFolder.create(tmp_path / "run", config))
    changed = {**config, "train": {**config["train"], "steps": 500}}
    with pytest.raises(RunFolderError, match=r"train\.steps"):
        RunFolder.create(tmp_path / "run", changed, may_differ=["tra"])
    assert RunFolder.create(tmp_path / "run", changed, may_differ=["train"]).config == config


def test_fresh_deletes_the_run_and_nothing_else(tmp_path: Path, config: dict) -> None:
    folder = RunFolder.create(tmp_path / "run", config)
    begin(folder)
    (folder.path / "notes.txt").write_text("mine")
    fresh = RunFolder.create(tmp_path / "run", {**config, "preset": "paper"}, fresh=True)
    assert fresh.seeds == []
    assert fresh.config["preset"] == "paper"
    assert (fresh.path / "notes.txt").read_text() == "mine"


def test_a_run_that_is_being_written_is_neither_joined_nor_deleted(tmp_path: Path, config: dict) -> None:
    folder = RunFolder.create(tmp_path / "run", config)
    begin(folder)
    with folder.lock():
        with pytest.raises(RunFolderError, match="another process is writing"), RunFolder(folder.path).lock():
            pass
        with pytest.raises(RunFolderError, match="another process is writing"):
            RunFolder.create(tmp_path / "run", config, fresh=True)
        assert len(folder.read_metrics(0)) == 1
    fresh = RunFolder.create(tmp_path / "run", config, fresh=True)
    with fresh.lock(), pytest.raises(RunFolderError, match="another process is writing"), folder.lock():
        pass


def test_fresh_does_not_delete_what_a_cluster_trained(tmp_path: Path, config: dict) -> None:
    folder = RunFolder.create(tmp_path / "run", config)
    (folder.path / "torch_dist").mkdir()
    with pytest.raises(RunFolderError, match=r"torch_dist was trained on a cluster.*move it away"):
        RunFolder.create(tmp_path / "run", config, fresh=True)
    assert RunFolder.create(tmp_path / "run", config).config == config


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_no_run_wrote_is_left_alone(tmp_path: Path, config: dict, fresh: bool) -> None:
    (tmp_path / "evaluation").mkdir()
    with pytest.raises(RunFolderError, match="not a run folder"):
        RunFolder.create(tmp_path, config, fresh=fresh)
    assert [entry.name for entry in tmp_path.iterdir()] == ["evaluation"]
    with pytest.raises(RunFolderError, match="not a run folder"):
        RunFolder(tmp_path)


def test_a_run_killed_before_its_config_was_written_starts_again(tmp_path: Path, config: dict) -> None:
    (tmp_path / ".config.yaml.123.tmp").write_text("meth")
    assert RunFolder.create(tmp_path, config).config == config


def test_fresh_starts_over_from_a_broken_config_too(tmp_path: Path, config: dict) -> None:
    (tmp_path / "config.yaml").write_text("a: [1")
    assert RunFolder.create(tmp_path, config, fresh=True).config == config


@pytest.mark.parametrize("text", ["a: [1", "just text"])
def test_a_broken_config_names_the_file(tmp_path: Path, config: dict, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RunFolderError, match=r"config\.yaml"):
        RunFolder.create(tmp_path, config)


def test_resuming_on_other_software_is_recorded_once(
    tmp_path: Path, config: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("core.runs.run_folder.collect_versions", lambda: {"torch": "1"})
    RunFolder.create(tmp_path, config)
    monkeypatch.setattr("core.runs.run_folder.collect_versions", lambda: {"torch": "2"})
    RunFolder.create(tmp_path, config)
    assert RunFolder.create(tmp_path, config).versions == {"torch": "1", "resumed_with": [{"torch": "2"}]}


def steps(folder: RunFolder) -> list[tuple[str, int]]:
    return [(record["stage"], record["step"]) for record in folder.read_metrics(0)]


def test_rewind_follows_the_order_of_the_stages(tmp_path: Path, config: dict) -> None:
    folder = RunFolder.create(tmp_path, config)
    log = folder.open_metrics(0)
    for stage, step in [("warm_start", 1), ("warm_start", 9), ("eval", 0), ("train", 1), ("train", 2), ("eval", 2)]:
        log.append({"stage": stage, "step": step})
    assert log.rewind("train", 9) == 0
    assert log.rewind("train", 1) == 2
    assert steps(folder) == [("warm_start", 1), ("warm_start", 9), ("eval", 0), ("train", 1)]
    assert log.rewind("warm_start", 1) == 3
    assert steps(folder) == [("warm_start", 1)]
    log.append({"stage": "warm_start", "step": 2})
    assert steps(folder) == [("warm_start", 1), ("warm_start", 2)]


@pytest.mark.parametrize(("record", "message"), [({"stage": "rl", "step": 1}, "stage"), ({"stage": "train"}, "step")])
def test_a_record_needs_a_stage_and_a_step(tmp_path: Path, config: dict, record: dict, message: str) -> None:
    log = RunFolder.create(tmp_path, config).open_metrics(0)
    with pytest.raises(ValueError, match=message):
        log.append(record)
    assert log.records() == []


def test_flatten() -> None:
    assert flatten({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}


def test_a_run_has_one_writer_at_a_time(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {"method": "m", "preset": "p"})
    writing = pytest.raises(RunFolderError, match="another process is writing")
    with folder.lock(), writing, RunFolder(folder.path).lock():
        pass
    with RunFolder(folder.path).lock():
        pass
