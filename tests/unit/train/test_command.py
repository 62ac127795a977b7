"""`tokentrue train`: an error is reported before the run folder exists or a step runs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
import yaml

from agentic.memagent.rollout import MemAgent
from core.engine import weights
from core.rollout.method import method_spec
from core.runs.progress import ProgressLine
from core.runs.run_folder import RunFolder
from core.train import command as train
from core.train import memory
from core.train.command import main


class Command:
    """Runs `tokentrue train memagent` into the folder `out`, without the training itself: that is counted."""

    def __init__(self, folder: Path, model: Path, capsys: pytest.CaptureFixture[str]):
        self.out, self.model, self.data, self.capsys = folder / "run", model, folder / "train.jsonl", capsys
        self.trainings = 0
        record = {"task_id": "t", "question": "?", "answers": ["1"], "context": "It is 1.", "metadata": {}}
        self.data.write_text(json.dumps(record) + "\n")

    def __call__(self, *words: str) -> str:
        """Run with options and settings, and return what the command prints. It must succeed."""
        status, out, err = self.run(words)
        assert status == 0, err
        return out + err

    def refuse(self, *words: str) -> str:
        """Run with options and settings, and return the error. It must fail, and nothing may be trained."""
        trained = self.trainings
        status, _, err = self.run(words)
        assert (status, self.trainings) == (1, trained)
        return err

    def run(self, words: Sequence[str]) -> tuple[int, str, str]:
        own = f"model.path={self.model}", f"data.train={self.data}", f"data.eval={self.data}"
        options = [word for word in words if word.startswith("--")]
        settings = [word for word in (*own, *words) if word not in options]
        sets = [part for setting in settings for part in ("--set", setting)]
        status = main(["memagent", "--out", str(self.out), *sets, *options])
        return status, *self.capsys.readouterr()


@pytest.fixture
def command(
    tmp_path: Path, model: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Command:
    made = Command(tmp_path, model, capsys)

    def count(*_: Any) -> None:
        made.trainings += 1

    monkeypatch.setattr(train, "train", count)
    return made


def absent_compiler(*_: torch.Tensor) -> None:
    raise RuntimeError("no compiler")


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("model.path=/no/model", "/no/model"),
        ("roles.helper=trained", "roles.helper is trained, and the method never asks it"),
        ("data.train=/no/train.jsonl", "/no/train.jsonl: no such file"),
        ("data.eval=/no/dev.jsonl", "/no/dev.jsonl: no such file"),
        ("model.compile=true", "set model.compile=false"),
        ("run.trackers=[paper]", "run.trackers"),
        ("run.trackers=[mlflow]", "run.trackers: mlflow needs a package: pip install mlflow"),
        ("run.tracker_mode=online", "run: tracker_mode=online is for W&B alone; set run.trackers=[wandb], too"),
        ("--memory=500MB", "of memory and 0.50 GB are available"),
    ],
)
def test_a_bad_start_names_the_fault_and_leaves_no_folder(command, setting, named, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr(torch, "compile", lambda function: absent_compiler)
    assert named in command.refuse(setting)
    assert not command.out.exists()


def test_a_tokenizer_larger_than_its_model_is_named(command, model, tmp_path):
    command()
    command.model = shutil.copytree(model, tmp_path / "other")
    config = json.loads((command.model / "config.json").read_text())
    size = config["vocab_size"]
    (command.model / "config.json").write_text(json.dumps({**config, "vocab_size": size - 1}))
    error = command.refuse()
    assert f"{command.model}: the tokenizer has the token " in error
    assert f" of id {size - 1}, and config.json says vocab_size={size - 1}, " in error


def test_every_record_is_read_before_the_start(command):
    record = {"question": "?", "answer": "1", "context": "It is 1.", "level": 3}
    command.data.write_text(f"{json.dumps(record)}\n" * 2)
    assert command().count(f"note: {command.data}: field level is not used (2 of 2 records)") == 1
    with command.data.open("a") as file:
        file.write(json.dumps({**record, "answer": "So it\nis 1."}))
    assert f"{command.data}:3: field 'answer': is a text of 2 lines" in command.refuse()


def test_a_folder_that_cannot_be_written_is_named(command, tmp_path):
    (tmp_path / "file").write_text("in the way")
    command.out = tmp_path / "file" / "run"
    assert "file/run" in command.refuse()


def test_a_dry_run_prints_the_plan_of_memory_as_comments(command):
    recipe, _, plan = command("--dry-run", "--memory=4GB").partition("# memory on cpu in float32\n")
    assert yaml.safe_load(recipe)["model"]["path"] == str(command.model)
    assert all(line.startswith("# ") for line in plan.splitlines())
    items = {line[2:].split("  ")[0] for line in plan.splitlines()}
    assert {"weights", "moments", "gradients", "KV cache", "activations and logits"} <= items
    assert plan.endswith("it fits into 4.00 GB\n")
    assert not command.out.exists()


def test_a_dry_run_tells_the_hours_of_a_measured_preset(command):
    hours = []
    for known in ("", "experiment.hours_at_100_gflops=6", "experiment.hours_at_100_gflops=60"):
        told = command("--dry-run", *filter(None, [known]))
        hours.append(re.findall(r"# about ([\d.]+) hours .*, at (\d+) GFLOP/s in float32", told))
    assert hours[0] == []
    assert float(hours[2][0][0]) / float(hours[1][0][0]) == pytest.approx(10, rel=0.5)
    told = "# about 60.0 hours on a machine of 100 GFLOP/s with training and evaluation of the preset as it is"
    assert told in command("--dry-run", "model.path=/no/model", known)


def test_a_dry_run_prints_what_an_offloaded_optimizer_takes_of_the_machine(command):
    told = command("model.device=cuda", "optimizer.cpu_offload=true", "--dry-run", "--memory=80GB")
    _, _, plans = told.partition("# memory on cuda in float32\n")
    card, _, machine = plans.partition("# memory of the machine, for optimizer.cpu_offload\n")
    assert ("moments" in card, "moments" in machine) == (False, True)
    assert machine.endswith("it fits into 80.00 GB\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the card is here, and says itself what it computes fast")
def test_a_dry_run_plans_for_a_card_that_is_not_here(command):
    settings = ("model.device=cuda", "model.dtype=auto", "experiment.hours_at_100_gflops=6")
    _, _, plan = command(*settings, "--dry-run", "--memory=24GB").partition("# memory on cuda in bfloat16\n")
    assert plan.endswith("it fits into 24.00 GB\n")


def test_what_is_offloaded_must_fit_into_this_machine_unless_memory_is_given(command, monkeypatch):
    monkeypatch.setattr(weights, "find_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr(memory, "available_bytes", lambda device: {"cpu": 10**9, "cuda": 80 * 10**9}[device.type])
    settings = ("model.device=cuda", "optimizer.cpu_offload=true")
    assert "optimizer.cpu_offload needs 8.14 GB of the machine's memory" in command.refuse(*settings)
    assert not command.out.exists()
    recipe = method_spec("memagent").load("tiny", [f"model.path={command.model}", *settings])
    train.check_fit(recipe, memory=80 * 10**9)


def test_a_dry_run_without_the_model_has_no_plan(command, tmp_path, monkeypatch):
    """It tells whether the run itself makes the model, and how to plan for a card that is elsewhere."""
    monkeypatch.chdir(tmp_path)
    *_, last = command("--dry-run", "model.path=/no/model").splitlines()
    assert last.startswith("# no memory plan: /no/model: no such folder")
    *_, last = command("--dry-run", "model.path=runs/data/memagent-tiny/model").splitlines()
    assert "# no memory plan yet: runs/data/memagent-tiny/model is not" in last
    if not torch.cuda.is_available():
        *_, last = command("--dry-run", "model.device=cuda").splitlines()
        assert last.endswith("--memory SIZE plans for a card that is not here")


def test_a_resumed_run_keeps_the_number_format_that_it_began_with(command, monkeypatch):
    answers = iter([("bfloat16", "faster here"), ("float32", "faster there")])
    monkeypatch.setattr(memory, "choose_dtype", lambda config, device: next(answers))
    for expected in ("bfloat16: faster here", f"bfloat16: {command.out} began with it"):
        assert f"model.dtype auto is {expected}" in command("model.dtype=auto")
        assert RunFolder(command.out).config["model"]["dtype"] == "bfloat16"
    command("model.dtype=auto", "--fresh")
    assert RunFolder(command.out).config["model"]["dtype"] == "float32"


def test_more_steps_of_a_decaying_rate_are_another_recipe(command, tmp_path):
    """Half-way through, the rate would jump up again; with an end of its own the decay goes on as it was."""
    command()
    (command.out / "result").write_text("one step")
    told = command.refuse("run.steps=80")
    assert "optimizer.lr_decay_steps: 40 in the folder, 80 asked for" in told
    command.out, fixed = tmp_path / "fixed", "optimizer.lr_decay_steps=90"
    command(fixed)
    (command.out / "result").write_text("one step")
    command(fixed, "run.steps=80")


def test_fewer_steps_than_a_seed_has_behind_it_are_refused(command):
    """Its checkpoint would stand for a run of so few steps, in config.yaml, table and report."""
    settings = ("run.seeds=[0, 1]", "optimizer.lr_decay_steps=40")
    command(*settings)
    (RunFolder(command.out).checkpoints_path(1) / "step-000030").mkdir(parents=True)
    told = command.refuse(*settings, "run.steps=20")
    assert "seed-1/checkpoints/step-000030 is beyond run.steps=20; set it to 30 or more" in told
    assert RunFolder(command.out).config["run"]["steps"] == 40
    command.refuse("run.seeds=[2]", "optimizer.lr_decay_steps=40", "run.steps=20")
    command(*settings, "run.steps=30")


def test_lines_of_workers_are_taken_when_the_console_is_gone() -> None:
    """Else the pipe fills, and the workers wait for ever."""
    lines, shown = get_context("spawn").SimpleQueue(), list[str]()
    for line in (ProgressLine("one", 0, 1), ProgressLine("two", 0, 1), None):
        lines.put(line)

    def show(line: ProgressLine) -> None:
        shown.append(line.label)
        raise SystemExit(1)  # as rich does when its pipe is broken

    train._relay(lines, show)
    assert shown == ["one", "two"]


def test_a_resume_names_what_it_rests_on_and_has_changed(command, model, tmp_path):
    command.model = shutil.copytree(model, tmp_path / "model")
    command()
    RunFolder(command.out).open_metrics(0).append({"stage": "train", "step": 1})
    command()
    tokenizer = command.model / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    command.data.write_text(command.data.read_text() + "\n")
    error = command.refuse()
    for name in ("data.train: ", "data.eval: ", "model/tokenizer_config.json: ", "--accept-changes"):
        assert name in error
    assert "model/model.safetensors" not in error
    command("--accept-changes")
    command()
    assert command.trainings == 4


def test_a_dry_run_prints_the_departures_and_refuses_a_context_as_the_run_does(command):
    positions = weights.load_config(command.model).max_positions
    changed, longest = "algorithm.clip_ratio_high=0.5", f"model.max_model_len={positions}"
    told = command(changed, longest, "inference.kv_tokens=100000", "--dry-run")
    assert "# departure: algorithm.clip_ratio_high is 0.5; memagent has 0.2" in told
    for more in (["--dry-run"], []):
        told = command.refuse(changed, f"model.max_model_len={positions + 1}", *more)
        assert f"model.max_model_len {positions + 1} is above the {positions} positions" in told
        for serving in ((), ("inference.replicas=1", "run.parallel_seeds=1")):
            told = command.refuse(changed, longest, "inference.kv_tokens=32", *serving, *more)
            assert f"inference.kv_tokens 32 is less than the context of {positions}" in told


def test_a_dry_run_tells_what_would_refuse_the_run(command, monkeypatch):
    def dry(*settings: str) -> str:
        return command("--dry-run", *settings)

    assert "would be refused" not in dry()
    assert "# a run would be refused: roles.helper: 'no.module.f'" in dry("roles.helper=python:no.module.f")
    command.refuse("rollout.group_size=1", "--dry-run")
    with monkeypatch.context() as broken:
        broken.setattr(MemAgent, "__init__", Mock(side_effect=AssertionError))
        assert "# a run would be refused: AssertionError" in dry()
    monkeypatch.setattr(MemAgent, "needs", ("reader",))
    assert "# a run would be refused: roles.reader is missing, and the method asks it" in dry()
    monkeypatch.setattr(MemAgent, "needs", ("helper",))
    assert "never asks" not in dry("roles.helper=http://127.0.0.1:9")


def test_a_role_that_nobody_asks_is_noted(command):
    told = command("roles.helper=http://127.0.0.1:9")
    assert "note: roles.helper is set, and the method never asks it" in told


@pytest.mark.parametrize("name", ["versions.json", "inputs.json"])
def test_a_resume_names_a_file_of_the_run_that_is_broken(command, name):
    command()
    (command.out / name).write_text("{")
    assert f"{name} is not valid JSON" in command.refuse()
