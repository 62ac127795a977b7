"""The command line `tokentrue`: its help, its commands and completion in the shell."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

from scripts import tokentrue, train

ROOT = Path(__file__).resolve().parents[3]
RUN_SCRIPTS = sorted(ROOT.glob("agentic/*/run.sh"))


def ask_for_completion(line: str, tmp_path: Path) -> list[str]:
    """Return what the shell would offer at the end of `line`."""
    answer = tmp_path / "answer"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_IFS": "\n",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    command = [sys.executable, "-m", "scripts.tokentrue"]
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT), **asked}, cwd=tmp_path, check=True)
    return [word.strip() for word in answer.read_text().split("\n")]


def test_help_fits_one_screen_and_imports_no_command() -> None:
    code = (
        "import sys\nfrom scripts.tokentrue import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert not {'torch', 'pydantic', 'yaml', 'argcomplete'} & sys.modules.keys()"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    for words in ("--help", "evaluate --help", "train --help"):
        command = [sys.executable, "-c", code, *words.split()]
        done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
    assert all(f"    {name} " in tokentrue.make_parser().format_help() for name in ("train", "evaluate", "report"))


@pytest.mark.parametrize("name", tokentrue.COMMANDS)
def test_a_commands_help_shows_the_name_that_it_is_called_by(name: str) -> None:
    command = tokentrue.COMMANDS[name]
    module = import_module(command.module)
    words = name.split()[: tokentrue.words_before_arguments(name)]
    assert module.make_parser().prog == " ".join(["tokentrue", *words])
    assert callable(module.main)


def test_a_command_gets_the_words_after_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts import convert_checkpoints, report

    received = []
    monkeypatch.setattr(report, "main", received.append)
    monkeypatch.setattr(convert_checkpoints, "main", lambda words: received.append(words) or 3)
    assert tokentrue.main(["report", "runs/x", "--data", "test"]) == 0
    assert tokentrue.main(["convert", "to-hf", "--out", "x"]) == 3
    assert received == [["runs/x", "--data", "test"], ["to-hf", "--out", "x"]]


@pytest.mark.parametrize("words", [["trian"], ["evaluate"], ["evaluate", "rular"], []])
def test_an_unknown_command_names_those_that_there_are(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        tokentrue.main(words)
    assert "COMMAND" in capsys.readouterr().err


def test_a_missing_package_names_the_script_that_installs(monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    def find_no_package(name: str) -> None:
        raise ModuleNotFoundError("No module named 'pydantic'", name="pydantic")

    monkeypatch.setattr(tokentrue, "import_module", find_no_package)
    assert tokentrue.main(["report", "x"]) == 1
    assert "pydantic is not installed" in (message := capsys.readouterr().err)
    assert "scripts/setup.sh" in message


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tokentrue ev", ["evaluate"]),
        ("tokentrue evaluate ", ["ruler", "heldout", "aime", "tau2", "questions", "table"]),
        (".venv/bin/tokentrue train mem", ["memagent"]),
        ("tokentrue train memagent --preset ", ["laptop", "one-gpu", "paper", "published", "seed", "tiny"]),
        ("tokentrue train memagent --backend s", ["slime"]),
        ("tokentrue convert to-hf --iter", ["--iterations"]),
        ("tokentrue report ", ["runs/one"]),
        ("tokentrue data download aime", ["aime24", "aime25"]),
    ],
)
def test_the_shell_completes_commands_options_and_values(line: str, offered: list[str], tmp_path: Path) -> None:
    (tmp_path / "runs/one").mkdir(parents=True)
    (tmp_path / "runs/one/config.yaml").touch()
    completions = ask_for_completion(line, tmp_path)
    assert [word for word in completions if not word.startswith("-") or word in offered] == offered


def test_the_installed_command_is_this_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"tokentrue": "scripts.tokentrue:main"}


@pytest.mark.parametrize(
    ("words", "called", "resolved"),
    [
        ("memagent", ["core.train.command", "scripts.report"], ["tiny", "runs/memagent-tiny"]),
        ("memagent --dry-run", ["core.train.command"], ["tiny", "runs/memagent-tiny"]),
        ("memagent --backend slime", ["core.backends.slime.launch"], ["seed", "runs/memagent-seed"]),
        (
            "memagent --preset=/x/own.yaml --out /y",
            ["core.train.command", "scripts.report"],
            ["/x/own.yaml", "/y"],
        ),
    ],
)
def test_training_resolves_preset_and_folder_and_then_reports(
    monkeypatch: pytest.MonkeyPatch, words: str, called: list[str], resolved: list[str]
) -> None:
    calls: list[tuple[str, list[str]]] = []

    class Module:
        def __init__(self, name: str):
            self.name = name

        def main(self, arguments: list[str]) -> int:
            calls.append((self.name, arguments))
            return 0

    monkeypatch.setattr(train, "import_module", Module)
    assert train.main(words.split()) == 0
    assert [name for name, _ in calls] == called
    assert calls[0][1] == [*words.split(), "--preset", resolved[0], "--out", resolved[1]]
    assert [arguments for _, arguments in calls[1:]] == [[resolved[1]]] * (len(called) - 1)


def test_a_failed_training_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def main(self, arguments: list[str]) -> int:
            assert "--preset" in arguments
            return 1

    monkeypatch.setattr(train, "import_module", lambda name: Failing())
    assert train.main(["memagent"]) == 1


@pytest.mark.parametrize(
    ("words", "experiment"),
    [
        ("memagent", "tiny runs/memagent-tiny\n"),
        ("memagent --preset tiny --out /x --set run.seeds=[0]", "tiny /x\n"),
        ("memagent --preset laptop", "laptop runs/memagent-laptop\n"),
        ("memagent --preset laptop --dry-run", ""),
        ("memagent --preset seed", ""),
        ("memagent --backend slime", ""),
        ("memagent --dry-run", ""),
    ],
)
def test_only_tiny_and_laptop_have_data_and_evaluation_of_their_own(
    words: str, experiment: str, capsys: pytest.CaptureFixture[str]
) -> None:
    train.print_experiment(words.split())
    assert capsys.readouterr().out == experiment


STAND_IN = """#!/usr/bin/env bash
[[ $2 != scripts.train ]] || exec {python} "$@"
echo "$2 ${{*:3:2}}" >>calls
[[ "$3 $4" != "serve services" ]] || {{ while [[ $1 != -- ]]; do shift; done; shift; exec "$@"; }}
"""
"""A Python that notes what it is to run; it runs only scripts.train, and the command that services are started for."""


@pytest.fixture(params=RUN_SCRIPTS, ids=lambda script: script.parent.name)
def run_script(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a run.sh in a tree without .venv, with the files that its options are read with."""
    needed = ("scripts/python.sh", "scripts/tokentrue.py", "scripts/train.py", "core/training_options.py")
    for path in (*needed, str(request.param.relative_to(ROOT))):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text())
    (tmp_path / "scripts/setup.sh").touch()
    return tmp_path / request.param.relative_to(ROOT)


def test_help_of_a_run_script_shows_its_comment_and_the_options(run_script: Path) -> None:
    """It needs no installation."""
    help_text = subprocess.run(["bash", run_script, "--help"], check=True, capture_output=True, text=True).stdout
    assert help_text.startswith(run_script.read_text().splitlines()[1].removeprefix("# "))
    assert "--backend {embedded,slime,vime}" in help_text


def test_a_run_script_makes_data_trains_evaluates_and_reports_and_trains_alone_with_other_presets(
    run_script: Path, tmp_path: Path
) -> None:
    python, method = tmp_path / ".venv/bin/python", run_script.parent.name
    python.parent.mkdir(parents=True)
    python.write_text(STAND_IN.format(python=sys.executable))
    python.chmod(0o755)
    (tmp_path / "runs/out").mkdir(parents=True)
    for options in ("--preset seed", "--backend slime", ""):
        (tmp_path / "calls").unlink(missing_ok=True)
        subprocess.run(["bash", run_script, "--out", "runs/out", *options.split()], check=True)
        calls = (tmp_path / "calls").read_text().splitlines()
        if options:
            assert calls == [f"scripts.tokentrue train {method}"]
    assert calls[0] == f"agentic.{method}.tiny.start_model --out runs/data/{method}-tiny"
    steps = [call.split()[1] for call in calls if call.startswith("scripts.tokentrue") and " data " not in call]
    services = ["serve"] * (method in ("search_r1", "toolorchestra"))
    assert list(dict.fromkeys(steps)) == [*services, "train", "evaluate", "report"]
    assert calls[-1] == "scripts.tokentrue report runs/out"
