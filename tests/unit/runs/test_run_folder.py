from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import pytest

from core.config import RecipeError
from core.rollout.method import method_spec
from core.runs.run_folder import RunFolder, RunFolderError


def start_run(path: Path, config: dict) -> RunFolder:
    """Create a run that has done one step."""
    folder = RunFolder.create(path, config)
    folder.open_metrics(0).append({"stage": "train", "step": 1})
    return folder


def test_the_same_recipe_resumes(tmp_path: Path, config: dict) -> None:
    first = start_run(tmp_path / "run", {**config, "lengths": (1, 2)})
    again = RunFolder.create(tmp_path / "run", {**config, "lengths": [1, 2]})
    assert again.config == first.config
    assert again.config["train"]["lr"] == 5e-4
    assert again.read_metrics(0) == [{"stage": "train", "step": 1}]
    assert again.seeds == [0]
    assert first.versions["python"]
    assert "resumed_with" not in again.versions


def test_another_recipe_is_refused_with_the_keys_and_the_fix(tmp_path: Path, config: dict) -> None:
    start_run(tmp_path, config)
    other = {**config, "preset": "paper", "train": {"lr": 1e-6, "steps": 120}, "new": None}
    with pytest.raises(RunFolderError) as error:
        RunFolder.create(tmp_path, other)
    for part in (
        "4 key(s)",
        "preset: 'tiny' in the folder, 'paper' asked for",
        "train.lr: 0.0005 in the folder, 1e-06 asked for",
        "train.kl: 0.0 in the folder, absent asked for",
        "new: absent in the folder, None asked for",
        "another --out",
        "--fresh",
    ):
        assert part in str(error.value)
    assert RunFolder(tmp_path).config == config


def test_a_run_of_an_earlier_version_resumes_with_the_defaults_of_the_keys_that_it_lacks(tmp_path: Path) -> None:
    recipe = method_spec("memagent").load("tiny")
    old = recipe.dump()
    del old["optimizer"]["cpu_offload"], old["model"]["compile"], old["algorithm"]["tis_mode"]
    start_run(tmp_path, old)
    folder = RunFolder.create(tmp_path, recipe.dump(), complete=recipe.complete)
    assert folder.config == old  # until the run writes its own
    offloaded = method_spec("memagent").load("tiny", ["optimizer.cpu_offload=true"])
    told = r"1 key\(s\) differ:\n  optimizer.cpu_offload: False in the folder, True "
    with pytest.raises(RunFolderError, match=told):
        RunFolder.create(tmp_path, offloaded.dump(), complete=recipe.complete)


def test_a_recipe_with_a_key_that_is_gone_is_compared_as_it_is(tmp_path: Path) -> None:
    recipe = method_spec("memagent").load("tiny")
    start_run(tmp_path, {**recipe.dump(), "gone": 1})
    with pytest.raises(RunFolderError, match="gone: 1 in the folder, absent asked for"):
        RunFolder.create(tmp_path, recipe.dump(), complete=recipe.complete)


def test_keys_that_are_gone_keep_no_old_run_from_going_on(tmp_path: Path) -> None:
    """A value that a user chose is no default, so its key is told."""
    spec = method_spec("memagent")
    recipe = spec.load("tiny")
    old = recipe.dump()
    old["health"] |= {"cut_off": 0.95, "min_entropy": 0.003}
    old["rejection"]["epochs"] = 1
    start_run(tmp_path, old)
    assert RunFolder.create(tmp_path, recipe.dump(), complete=recipe.complete).config == recipe.dump()
    assert spec.load(str(tmp_path / "config.yaml")).dump() == recipe.dump()
    old["rejection"]["epochs"] = 2
    start_run(tmp_path / "chosen", old)
    with pytest.raises(RecipeError, match=r"rejection.epochs: unknown key"):
        spec.load(str(tmp_path / "chosen/config.yaml"))


def test_a_run_that_failed_at_its_start_takes_another_recipe(tmp_path: Path, config: dict) -> None:
    RunFolder.create(tmp_path, config).open_metrics(0)
    other = {**config, "preset": "paper"}
    assert RunFolder.create(tmp_path, other).config == other


@pytest.mark.parametrize("file", ["warm_start/config.json", "evaluation/trained.json", "slime.sh", "notes.txt"])
def test_a_run_with_results_keeps_its_recipe(tmp_path: Path, config: dict, file: str) -> None:
    path = RunFolder.create(tmp_path, config).path / file
    path.parent.mkdir(exist_ok=True)
    path.write_text("something")
    with pytest.raises(RunFolderError, match="preset: 'tiny' in the folder"):
        RunFolder.create(tmp_path, {**config, "preset": "paper"})


def test_keys_may_differ_by_name_or_by_section(tmp_path: Path, config: dict) -> None:
    start_run(tmp_path, config)
    other = {**config, "train": {**config["train"], "steps": 500}}
    with pytest.raises(RunFolderError, match=r"train\.steps"):
        RunFolder.create(tmp_path, other, may_differ=["tra"])
    assert RunFolder.create(tmp_path, other, may_differ=["train"]).config == config


def test_fresh_deletes_the_run_and_nothing_else(tmp_path: Path, config: dict) -> None:
    start_run(tmp_path, config)
    (tmp_path / "notes.txt").write_text("mine")
    fresh = RunFolder.create(tmp_path, {**config, "preset": "paper"}, fresh=True)
    assert (fresh.seeds, fresh.config["preset"]) == ([], "paper")
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_run_has_one_writer_and_fresh_does_not_delete_it(tmp_path: Path, config: dict) -> None:
    folder = start_run(tmp_path, config)
    with folder.lock():
        with pytest.raises(RunFolderError, match="another process is writing"), RunFolder(tmp_path).lock():
            pass
        for fresh in (False, True):
            with pytest.raises(RunFolderError, match="another process is writing"):
                RunFolder.create(tmp_path, config, fresh=fresh)
        assert len(folder.read_metrics(0)) == 1
    fresh = RunFolder.create(tmp_path, config, fresh=True)
    with fresh.lock(), pytest.raises(RunFolderError, match="another process is writing"), folder.lock():
        pass


def test_the_sandboxes_of_a_run_stand_in_its_versions(tmp_path: Path, config: dict) -> None:
    folder = start_run(tmp_path, config)
    for backend in (None, "landlock", "landlock", "bubblewrap"):
        folder.record_sandbox(backend)
    resumed = RunFolder.create(tmp_path, config)
    assert resumed.versions["sandbox"] == ["landlock", "bubblewrap"]
    assert "resumed_with" not in resumed.versions


def test_a_run_that_another_process_replaced_before_the_lock_is_not_written(tmp_path: Path, config: dict) -> None:
    mine = RunFolder.create(tmp_path, config)
    theirs = RunFolder.create(tmp_path, {**config, "preset": "paper"}, fresh=True)
    with pytest.raises(RunFolderError, match="another process has changed this run"), mine.lock():
        pass
    with theirs.lock():
        pass


def test_fresh_takes_away_a_link_and_leaves_what_it_leads_to(tmp_path: Path, config: dict) -> None:
    folder = start_run(tmp_path / "run", config)
    folder.seed_path(0).rename(tmp_path / "elsewhere")
    folder.seed_path(0).symlink_to(tmp_path / "elsewhere")
    fresh = RunFolder.create(tmp_path / "run", config, fresh=True)
    assert (fresh.seeds, fresh.seed_path(0).is_symlink()) == ([], False)
    assert (tmp_path / "elsewhere" / "metrics.jsonl").is_file()


@pytest.mark.parametrize("checkpoints", ["torch_dist", "verl"])
def test_fresh_does_not_delete_what_a_cluster_trained(tmp_path: Path, config: dict, checkpoints: str) -> None:
    folder = RunFolder.create(tmp_path, config)
    (folder.path / checkpoints).mkdir()
    with pytest.raises(RunFolderError, match=rf"{checkpoints} was trained on a cluster.*move it away"):
        RunFolder.create(tmp_path, config, fresh=True)
    assert RunFolder.create(tmp_path, config).config == config


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


def test_what_a_killed_process_was_writing_is_deleted_and_what_a_live_one_writes_is_not(
    tmp_path: Path, config: dict
) -> None:
    run = RunFolder.create(tmp_path, config)
    (tmp_path / "seed-0").mkdir()
    ended = subprocess.Popen(["true"])
    ended.wait()
    for folder in (tmp_path, tmp_path / "seed-0"):
        for writer in (ended.pid, os.getppid(), "no-number"):
            (folder / f".config.yaml.{platform.node()}.{writer}.tmp").write_text("meth")
    (tmp_path / ".config.yaml.elsewhere.1.tmp").write_text("meth")
    with run.lock():
        left = sorted(path.name for path in tmp_path.rglob(".*.tmp"))
    kept = [f".config.yaml.{platform.node()}.{writer}.tmp" for writer in (os.getppid(), "no-number")]
    assert left == sorted([*kept, *kept, ".config.yaml.elsewhere.1.tmp"])


@pytest.mark.parametrize("text", ["a: [1", "just text"])
def test_a_broken_config_is_named_and_fresh_starts_over(tmp_path: Path, config: dict, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(RunFolderError, match=r"config\.yaml"):
        RunFolder.create(tmp_path, config)
    assert RunFolder.create(tmp_path, config, fresh=True).config == config


def test_resuming_on_other_software_is_recorded_once(
    tmp_path: Path, config: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    for version in ("1", "2", "2"):
        monkeypatch.setattr("core.runs.run_folder.collect_versions", lambda version=version: {"torch": version})
        folder = RunFolder.create(tmp_path, config)
    assert folder.versions == {"torch": "1", "resumed_with": [{"torch": "2"}]}


def test_rewind_follows_the_order_of_the_stages(tmp_path: Path, config: dict) -> None:
    log = RunFolder.create(tmp_path, config).open_metrics(0)

    def steps() -> list[tuple[str, int]]:
        return [(record["stage"], record["step"]) for record in log.records()]

    for stage, step in [("warm_start", 1), ("warm_start", 9), ("eval", 0), ("train", 1), ("train", 2), ("eval", 2)]:
        log.append({"stage": stage, "step": step})
    assert log.rewind("train", 9) == 0
    assert log.rewind("train", 1) == 2
    assert steps() == [("warm_start", 1), ("warm_start", 9), ("eval", 0), ("train", 1)]
    assert log.rewind("warm_start", 1) == 3
    log.append({"stage": "warm_start", "step": 2})
    assert steps() == [("warm_start", 1), ("warm_start", 2)]


def test_the_trained_policy_is_the_last_checkpoint_or_the_best(tmp_path):
    folder = RunFolder.create(tmp_path / "run", {"run": {"keep": "best"}})
    assert folder.find_trained(0) is None
    metrics = folder.open_metrics(0)
    for step, reward in [(0, 0.95), (2, 0.5), (4, 0.9), (6, 0.9), (8, 0.4)]:
        metrics.append({"stage": "eval", "step": step, "reward": reward})
    for step in (3, 4, 6, 10):
        (folder.checkpoints_path(0) / f"step-{step:06d}").mkdir(parents=True)
    assert folder.find_trained(0).name == "step-000006", "the later of two equals, and the start model is none"
    assert folder.find_trained(0, "last").name == "step-000010"
    (folder.checkpoints_path(1) / "step-000003").mkdir(parents=True)
    assert folder.find_trained(1).name == "step-000003", "nothing was evaluated"
