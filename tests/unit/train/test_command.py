"""`tokentrue train`: an error is reported before the run folder exists or a step runs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
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


@pytest.fixture(autouse=True)
def no_training(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    started: list[str] = []
    monkeypatch.setattr(train, "train", lambda spec, recipe, folder, baseline: started.append(spec.name))
    return started


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "train.jsonl"
    record = {"task_id": "t", "question": "?", "answers": ["1"], "context": "It is 1.", "metadata": {}}
    path.write_text(json.dumps(record) + "\n")
    return path


def run(out: Path, model: Path, data: Path, *settings: str, more: Sequence[str] = ()) -> int:
    overrides = [f"model.path={model}", f"data.train={data}", f"data.eval={data}", *settings]
    words = [part for override in overrides for part in ("--set", override)]
    return main(["memagent", "--out", str(out), *words, *more])


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
    ],
)
def test_a_bad_start_names_the_fault_and_leaves_no_folder(
    no_training: list[str], tmp_path: Path, model: Path, data: Path, setting: str, named: str, capsys, monkeypatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr(torch, "compile", lambda function: absent_compiler)
    assert run(tmp_path / "run", model, data, setting) == 1
    assert named in capsys.readouterr().err
    assert no_training == []
    assert not (tmp_path / "run").exists()


def test_a_tokenizer_larger_than_its_model_is_named(
    no_training: list[str], tmp_path: Path, model: Path, data: Path, capsys
) -> None:
    other = shutil.copytree(model, tmp_path / "other")
    config = json.loads((other / "config.json").read_text())
    size = config["vocab_size"]
    (other / "config.json").write_text(json.dumps({**config, "vocab_size": size - 1}))
    assert run(tmp_path / "run", other, data) == 1
    error = capsys.readouterr().err
    assert f"{other}: the tokenizer has the token " in error
    assert f" of id {size - 1}, and config.json says vocab_size={size - 1}, " in error
    assert no_training == []
    assert run(tmp_path / "run", model, data) == 0


def test_every_record_is_read_before_the_start(tmp_path: Path, model: Path, data: Path, capsys) -> None:
    record = {"question": "?", "answer": "1", "context": "It is 1.", "level": 3}
    data.write_text(f"{json.dumps(record)}\n" * 2)
    assert run(tmp_path / "run", model, data) == 0
    assert capsys.readouterr().err.count(f"note: {data}: field level is not used (2 of 2 records)") == 1
    with data.open("a") as file:
        file.write(json.dumps({**record, "answer": "So it\nis 1."}))
    assert run(tmp_path / "again", model, data) == 1
    assert f"{data}:3: field 'answer': is a text of 2 lines" in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, model: Path, data: Path, capsys) -> None:
    (tmp_path / "file").write_text("in the way")
    assert run(tmp_path / "file" / "run", model, data) == 1
    assert "file/run" in capsys.readouterr().err


def test_a_dry_run_prints_the_plan_of_memory_as_comments(tmp_path: Path, model: Path, data: Path, capsys) -> None:
    assert run(tmp_path / "run", model, data, more=["--dry-run", "--memory", "4GB"]) == 0
    recipe, _, plan = capsys.readouterr().out.partition("# memory on cpu in float32\n")
    assert yaml.safe_load(recipe)["model"]["path"] == str(model)
    assert all(line.startswith("# ") for line in plan.splitlines())
    items = {line[2:].split("  ")[0] for line in plan.splitlines()}
    assert {"weights", "moments", "gradients", "KV cache", "activations and logits"} <= items
    assert plan.endswith("it fits into 4.00 GB\n")
    assert not (tmp_path / "run").exists()


def test_a_dry_run_tells_the_hours_of_a_measured_preset(tmp_path: Path, model: Path, data: Path, capsys) -> None:
    hours = []
    for known in ("", "experiment.hours_at_100_gflops=6", "experiment.hours_at_100_gflops=60"):
        assert run(tmp_path / "run", model, data, *filter(None, [known]), more=["--dry-run"]) == 0
        hours.append(re.findall(r"# about ([\d.]+) hours .*, at (\d+) GFLOP/s in float32", capsys.readouterr().out))
    assert hours[0] == []
    assert float(hours[2][0][0]) / float(hours[1][0][0]) == pytest.approx(10, rel=0.5)
    assert run(tmp_path / "run", Path("/no/model"), data, known, more=["--dry-run"]) == 0
    told = "# about 60.0 hours on a machine of 100 GFLOP/s with training and evaluation of the preset as it is"
    assert told in capsys.readouterr().out


def test_a_dry_run_prints_what_an_offloaded_optimizer_takes_of_the_machine(tmp_path, model, data, capsys) -> None:
    settings = ("model.device=cuda", "optimizer.cpu_offload=true")
    assert run(tmp_path / "run", model, data, *settings, more=["--dry-run", "--memory", "80GB"]) == 0
    _, _, plans = capsys.readouterr().out.partition("# memory on cuda in float32\n")
    card, _, machine = plans.partition("# memory of the machine, for optimizer.cpu_offload\n")
    assert ("moments" in card, "moments" in machine) == (False, True)
    assert machine.endswith("it fits into 80.00 GB\n")


@pytest.mark.skipif(torch.cuda.is_available(), reason="the card is here, and says itself what it computes fast")
def test_a_dry_run_plans_for_a_card_that_is_not_here(tmp_path: Path, model: Path, data: Path, capsys) -> None:
    settings = ("model.device=cuda", "model.dtype=auto", "experiment.hours_at_100_gflops=6")
    assert run(tmp_path / "run", model, data, *settings, more=["--dry-run", "--memory", "24GB"]) == 0
    _, _, plan = capsys.readouterr().out.partition("# memory on cuda in bfloat16\n")
    assert plan.endswith("it fits into 24.00 GB\n")


def test_what_is_offloaded_must_fit_into_this_machine_unless_memory_is_given(
    no_training: list[str], tmp_path: Path, model: Path, data: Path, capsys, monkeypatch
) -> None:
    monkeypatch.setattr(weights, "find_device", lambda device: torch.device("cuda"))
    monkeypatch.setattr(memory, "available_bytes", lambda device: {"cpu": 10**9, "cuda": 80 * 10**9}[device.type])
    settings = ("model.device=cuda", "optimizer.cpu_offload=true")
    assert run(tmp_path / "run", model, data, *settings) == 1
    assert "optimizer.cpu_offload needs 8.14 GB of the machine's memory" in capsys.readouterr().err
    assert no_training == []
    assert not (tmp_path / "run").exists()
    train.check_fit(method_spec("memagent").load("tiny", [f"model.path={model}", *settings]), memory=80 * 10**9)


def test_a_dry_run_without_the_model_has_no_plan(tmp_path: Path, data: Path, capsys) -> None:
    assert run(tmp_path / "run", Path("/no/model"), data, more=["--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("# no memory plan: /no/model: no such folder")


@pytest.mark.skipif(torch.cuda.is_available(), reason="plans for the card that is here")
def test_a_dry_run_says_how_to_plan_for_a_card_elsewhere(tmp_path: Path, model: Path, data: Path, capsys) -> None:
    assert run(tmp_path / "run", model, data, "model.device=cuda", more=["--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("--memory SIZE plans for a card that is not here")


def test_a_dry_run_tells_that_the_run_itself_makes_the_model(
    tmp_path: Path, data: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(tmp_path / "run", Path("runs/data/memagent-tiny/model"), data, more=["--dry-run"]) == 0
    assert "# no memory plan yet: runs/data/memagent-tiny/model is not" in capsys.readouterr().out.splitlines()[-1]


def test_a_run_that_does_not_fit_is_refused_before_its_folder_exists(
    no_training: list[str], tmp_path: Path, model: Path, data: Path, capsys
) -> None:
    assert run(tmp_path / "run", model, data, more=["--memory", "500MB"]) == 1
    assert "of memory and 0.50 GB are available" in capsys.readouterr().err
    assert no_training == []
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_the_number_format_that_it_began_with(
    tmp_path: Path, model: Path, data: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    out = tmp_path / "run"
    answers = iter([("bfloat16", "faster here"), ("float32", "faster there")])
    monkeypatch.setattr(memory, "choose_dtype", lambda config, device: next(answers))
    for expected in ("bfloat16: faster here", f"bfloat16: {out} began with it"):
        assert run(out, model, data, "model.dtype=auto") == 0
        assert f"model.dtype auto is {expected}" in capsys.readouterr().err
        assert RunFolder(out).config["model"]["dtype"] == "bfloat16"
    assert run(out, model, data, "model.dtype=auto", more=["--fresh"]) == 0
    assert RunFolder(out).config["model"]["dtype"] == "float32"


def test_more_steps_of_a_decaying_rate_are_another_recipe(tmp_path: Path, model: Path, data: Path, capsys) -> None:
    """Half-way through, the rate would jump up again; with an end of its own the decay goes on as it was."""
    assert run(tmp_path / "run", model, data) == 0
    (tmp_path / "run" / "result").write_text("one step")
    assert run(tmp_path / "run", model, data, "run.steps=80") == 1
    assert "optimizer.lr_decay_steps: 40 in the folder, 80 asked for" in capsys.readouterr().err
    fixed = "optimizer.lr_decay_steps=90"
    assert run(tmp_path / "fixed", model, data, fixed) == 0
    (tmp_path / "fixed" / "result").write_text("one step")
    assert run(tmp_path / "fixed", model, data, fixed, "run.steps=80") == 0


def test_fewer_steps_than_a_seed_has_behind_it_are_refused(
    no_training: list[str], tmp_path: Path, model: Path, data: Path, capsys
) -> None:
    """Its checkpoint would stand for a run of so few steps, in config.yaml, table and report."""
    out, settings = tmp_path / "run", ("run.seeds=[0, 1]", "optimizer.lr_decay_steps=40")
    assert run(out, model, data, *settings) == 0
    (RunFolder(out).checkpoints_path(1) / "step-000030").mkdir(parents=True)
    assert run(out, model, data, *settings, "run.steps=20") == 1
    assert "seed-1/checkpoints/step-000030 is beyond run.steps=20; set it to 30 or more" in capsys.readouterr().err
    assert RunFolder(out).config["run"]["steps"] == 40
    assert run(out, model, data, "run.seeds=[2]", "optimizer.lr_decay_steps=40", "run.steps=20") == 1
    assert run(out, model, data, *settings, "run.steps=30") == 0
    assert len(no_training) == 2


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


def test_a_resume_names_what_it_rests_on_and_has_changed(
    no_training: list[str], tmp_path: Path, model: Path, data: Path, capsys
) -> None:
    own, out = tmp_path / "model", tmp_path / "run"
    shutil.copytree(model, own)
    assert run(out, own, data) == 0
    RunFolder(out).open_metrics(0).append({"stage": "train", "step": 1})
    assert run(out, own, data) == 0
    tokenizer = own / "tokenizer_config.json"
    tokenizer.write_text(tokenizer.read_text() + " ")
    data.write_text(data.read_text() + "\n")
    capsys.readouterr()
    assert run(out, own, data) == 1
    error = capsys.readouterr().err
    for name in ("data.train: ", "data.eval: ", "model/tokenizer_config.json: ", "--accept-changes"):
        assert name in error
    assert "model/model.safetensors" not in error
    assert run(out, own, data, more=["--accept-changes"]) == 0
    assert run(out, own, data) == 0
    assert len(no_training) == 4


def test_a_dry_run_prints_the_departures_and_refuses_a_context_as_the_run_does(
    tmp_path: Path, model: Path, data: Path, capsys
) -> None:
    positions = weights.load_config(model).max_positions
    settings = ("algorithm.clip_ratio_high=0.5", f"model.max_model_len={positions}", "inference.kv_tokens=100000")
    assert run(tmp_path / "run", model, data, *settings, more=["--dry-run"]) == 0
    assert "# departure: algorithm.clip_ratio_high is 0.5; memagent has 0.2" in capsys.readouterr().out
    for more in (["--dry-run"], []):
        wanted = f"model.max_model_len={positions + 1}"
        assert run(tmp_path / "run", model, data, *settings[:1], wanted, more=more) == 1
        assert f"model.max_model_len {positions + 1} is above the {positions} positions" in capsys.readouterr().err
        for serving in ((), ("inference.replicas=1", "run.parallel_seeds=1")):
            small = ("inference.kv_tokens=32", *serving)
            assert run(tmp_path / "run", model, data, *settings[:2], *small, more=more) == 1
            assert f"inference.kv_tokens 32 is less than the context of {positions}" in capsys.readouterr().err


def test_a_dry_run_tells_what_would_refuse_the_run(
    tmp_path: Path, model: Path, data: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    def dry(*settings: str) -> tuple[int, str]:
        status = run(tmp_path / "run", model, data, *settings, more=["--dry-run"])
        return status, "".join(capsys.readouterr())

    assert "would be refused" not in dry()[1]
    assert "# a run would be refused: roles.helper: 'no.module.f'" in dry("roles.helper=python:no.module.f")[1]
    assert dry("rollout.group_size=1")[0] == 1
    with monkeypatch.context() as broken:
        broken.setattr(MemAgent, "__init__", Mock(side_effect=AssertionError))
        assert "# a run would be refused: AssertionError" in dry()[1]
    monkeypatch.setattr(MemAgent, "needs", ("reader",))
    assert "# a run would be refused: roles.reader is missing, and the method asks it" in dry()[1]
    monkeypatch.setattr(MemAgent, "needs", ("helper",))
    assert "never asks" not in dry("roles.helper=http://127.0.0.1:9")[1]


def test_a_role_that_nobody_asks_is_noted(no_training: list[str], tmp_path: Path, model: Path, data: Path, capsys):
    assert run(tmp_path / "run", model, data, "roles.helper=http://127.0.0.1:9") == 0
    assert "note: roles.helper is set, and the method never asks it" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["versions.json", "inputs.json"])
def test_a_resume_names_a_file_of_the_run_that_is_broken(
    no_training: list[str], tmp_path: Path, model: Path, data: Path, capsys, name: str
) -> None:
    assert run(tmp_path / "run", model, data) == 0
    (tmp_path / "run" / name).write_text("{")
    assert run(tmp_path / "run", model, data) == 1
    assert f"{name} is not valid JSON" in capsys.readouterr().err
