"""`tokentrue run`: what a preset's experiment is, what runs and what does not, and what a failure shows."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from core.config import RecipeError
from core.rollout.method import method_spec
from scripts import run, tokentrue, train
from tests import kit

ROOT = Path(__file__).resolve().parents[3]
RUN_SCRIPTS = sorted(ROOT.glob("agentic/*/run.sh"))
EXPERIMENTS = sorted(
    (path.parents[1].name, path.stem)
    for path in ROOT.glob("agentic/*/presets/*.yaml")
    if "\nexperiment:" in path.read_text()
)


def plan(words: str) -> run.Experiment:
    options, all_words = train.read_options(run.make_parser(), words.split())
    experiment = run.read_experiment(options)
    assert experiment is not None
    return run.make_plan(experiment, options, all_words)


def test_every_method_has_an_experiment_for_a_laptop() -> None:
    assert {(script.parent.name, "tiny") for script in RUN_SCRIPTS} <= set(EXPERIMENTS)


@pytest.mark.parametrize(("method", "preset"), EXPERIMENTS)
def test_the_commands_of_a_preset_are_there_and_take_their_options(
    method: str, preset: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = plan(f"{method} --preset {preset}")
    recipe = method_spec(method).load(preset)
    assert {recipe.data.train, recipe.data.eval} <= set(map(str, made.data))
    words = (*map(str, made.data), *(word for command in made.data.values() for word in command))
    for word in (word for word in words if Path(word).suffix in (".jsonl", ".txt")):
        (tmp_path / word).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / word).touch()
    for words in (*made.data.values(), made.train, *made.evaluate.values(), *made.report):
        assert not [word for word in words if "{" in word]
        if words[0] == "tokentrue":
            name = tokentrue.find_command(words[1:])
            assert name
            parser = import_module(tokentrue.COMMANDS[name].module).make_parser()
            parser.parse_args(words[1 + tokentrue.words_before_arguments(name) :])
        else:
            assert words[1] == "-m"
            import_module(words[2])
    assert made.report[-1][:3] == ["tokentrue", "report", str(made.out)]


@pytest.mark.parametrize("words", ["--preset seed", "--backend slime", "--set experiment=null", "--preset no-such-one"])
def test_without_an_experiment_a_run_only_trains(words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[list[str]] = []
    monkeypatch.setattr(train, "main", lambda words: trained.append(words) or 3)
    assert run.main(["memagent", *words.split()]) == 3
    assert trained[0][: 1 + len(words.split())] == ["memagent", *words.split()]


def test_the_plan_can_be_pasted_and_a_baseline_is_only_trained() -> None:
    made = plan("search_r1 --out /x/y --set run.seeds=[0]")
    lines = made.describe().splitlines()
    assert lines[-1] == "tokentrue report /x/y --data test"
    assert "tokentrue train search_r1 --out /x/y --set run.seeds=[0] --preset tiny" in map(unquote, lines)
    assert subprocess.run(["bash", "-n"], input=made.describe(), text=True).returncode == 0
    baseline = plan("search_r1 --baseline rejection")
    assert baseline.services
    assert not baseline.evaluate
    assert not baseline.report


def unquote(line: str) -> str:
    return line.replace("'\"'\"'", "")


def test_a_run_makes_what_is_missing_logs_evaluations_and_goes_on_with_what_failed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def python(code: str) -> list[str]:
        return ["python", "-c", f"from pathlib import Path; folder = Path({str(tmp_path)!r}); {code}"]

    made, there, log = tmp_path / "made", tmp_path / "there", tmp_path / "evaluate-one.log"
    there.touch()
    waits = "import time; [time.sleep(0.01) for _ in range(2000) if not (folder / 'two').exists()]; print('out')"
    experiment = run.Experiment(
        tmp_path,
        {made: python("(folder / 'made').touch()"), there: python("raise SystemExit(9)")},
        {},
        python("assert (folder / 'made').exists(); (folder / 'trained').touch()"),
        {
            log: python(f"assert (folder / 'trained').exists(); {waits}; 1 / (folder / 'fixed').exists()"),
            tmp_path / "evaluate-two.log": python("(folder / 'two').touch()"),
            tmp_path / "evaluate-three.log": python("(folder / 'three').touch()"),
        },
        2,
        [python("(folder / 'reported').touch()")],
    )
    assert experiment.run() == 1
    assert log.read_text().startswith("out")
    assert "ZeroDivisionError" in capfd.readouterr().err
    assert not (tmp_path / "reported").exists()
    (tmp_path / "fixed").touch()
    assert experiment.run() == 0
    assert (tmp_path / "three").exists()
    assert (tmp_path / "reported").exists()


def test_data_that_are_older_than_their_world_are_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [tmp_path / name for name in ("old", "new", "other")]
    for file, time in zip(files, (0, None, 0), strict=True):
        file.touch()
        os.utime(file, time if time is None else (time, time))
    command = ["tokentrue", "data", "world", "skeleton", "--out", "x"]
    data = dict(zip(files, (command, command, ["python", "-c", "x"]), strict=True))
    assert run.Experiment(tmp_path, data, {}, [], {}, 1, []).make_data() == 0
    (note,) = capfd.readouterr().out.splitlines()
    assert note.startswith(f"note: {files[0]} is older than ")
    assert note.endswith(f"delete {tmp_path} to make it anew")


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_lets_a_command_end_in_order(number: signal.Signals, status: int, tmp_path: Path) -> None:
    """A terminal sends Ctrl-C to both processes, and `kill` its signal to ours alone."""
    started, ended = tmp_path / "started", tmp_path / "ended"
    training = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit())\n"
        f"try:\n    pathlib.Path({str(started)!r}).touch(); time.sleep(60)\n"
        f"finally:\n    time.sleep(1); pathlib.Path({str(ended)!r}).touch()"
    )
    ours = (
        "import sys; from pathlib import Path; from scripts import run\n"
        f"experiment = run.Experiment(Path(), {{}}, {{}}, ['python', '-c', {training!r}], {{}}, 1, [])\n"
        "run.read_experiment, run.make_plan = lambda options: experiment, lambda *_: experiment\n"
        "sys.exit(run.main(['memagent']))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", ours], cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background ignore it
    )  # fmt: skip
    kit.wait_until(lambda: started.exists() or process.poll() is not None)
    (os.killpg if number is signal.SIGINT else os.kill)(process.pid, number)
    assert process.wait(60) == status
    assert ended.exists()


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh clone. Its setup.sh and all Pythons only say that they were called; the machine's Python has no slime."""
    root, says = tmp_path / "a clone", '#!/bin/sh\n[ $1 = -c ] && exit 1\necho "${0##*/} $*"\n'
    for name in ("scripts/python.sh", "agentic/compaction/run.sh"):
        (root / name).parent.mkdir(parents=True)
        shutil.copy(ROOT / name, root / name)
    for name in ("bin/python3", "python"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(says)
        (root / name).chmod(0o755)
    (root / "scripts/setup.sh").write_text("echo set up\nmkdir -p .venv/bin\nmv python .venv/bin\n")
    monkeypatch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return root


@pytest.mark.parametrize("words", ["", "--dry-run", "--dry-run --set run.seeds=[0]"])
def test_a_fresh_clone_is_set_up_first_for_a_dry_run_too(words: str, clone: Path) -> None:
    done = subprocess.run(["bash", clone / "agentic/compaction/run.sh", *words.split()], text=True, capture_output=True)
    assert done.stdout == f"set up\npython -m scripts.tokentrue run compaction {words}".rstrip() + "\n"


@pytest.mark.parametrize("words", ["-h", "--help", "--dry-run --help"])
def test_help_begins_with_the_comment_of_the_script_and_installs_nothing(words: str, clone: Path) -> None:
    done = subprocess.run(["bash", clone / "agentic/compaction/run.sh", *words.split()], text=True, capture_output=True)
    assert done.stdout.startswith("Compaction from nothing to a report")
    assert done.stdout.endswith(f"\npython3 -m scripts.tokentrue run compaction {words}\n")
    assert not (clone / ".venv").exists()


def test_an_experiment_does_not_belong_to_what_a_run_follows_from() -> None:
    recipe = method_spec("memagent").load("tiny", ["experiment.at_once=5"])
    assert recipe.experiment.at_once == 5
    assert "experiment" not in recipe.dump()
    with pytest.raises(RecipeError, match="neither with tokentrue nor with python"):
        method_spec("memagent").load("tiny", ["experiment.evaluate={x: rm -r runs}"])


def test_the_costs_are_those_of_the_processes_that_ended() -> None:
    """In a process of their own: a child counts the memory that its parent had when it began."""
    script = "from scripts import run; run.run_command(['python', '-c', '{}']); print(run.describe_costs(90))"
    for work, least, most in (("pass", 0.0, 0.2), ("bytearray(400_000_000)", 0.4, 0.6)):
        command = [sys.executable, "-c", script.format(work)]
        told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        found = re.fullmatch(r"this call took 1\.5 min, 0\.00 CPU hours, (\d\.\d) GB in the largest process\n", told)
        assert found is not None, told
        assert least <= float(found[1]) <= most
