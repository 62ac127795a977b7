"""The command line `tokentrue`: its help and its commands."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from scripts import tokentrue, train

ROOT = Path(__file__).resolve().parents[3]


def test_help_fits_one_screen_and_imports_no_command() -> None:
    code = (
        "import sys\nfrom scripts.tokentrue import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: assert not {'torch', 'pydantic', 'yaml'} & sys.modules.keys()"
    )
    environment = {**os.environ, "COLUMNS": "80"}
    for words in ("--help", "evaluate --help", "train --help", "run --help"):
        command = [sys.executable, "-c", code, *words.split()]
        done = subprocess.run(command, cwd=ROOT, env=environment, text=True, capture_output=True)
        assert done.returncode == 0, done.stderr
        lines = done.stdout.splitlines()
        assert len(lines) <= 24
        assert max(map(len, lines)) <= 80
    assert all(f"  {name} " in tokentrue.make_parser().format_help() for name in ("train", "evaluate", "report"))


@pytest.mark.parametrize("name", tokentrue.COMMANDS)
def test_a_commands_help_shows_the_name_that_it_is_called_by(name: str) -> None:
    command = tokentrue.COMMANDS[name]
    module = import_module(command.module)
    words = name.split()[: tokentrue.words_before_arguments(name)]
    assert module.make_parser().prog == " ".join(["tokentrue", *words])
    assert callable(module.main)


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
    ("words", "called", "added"),
    [
        ("memagent", ["core.train.command", "scripts.report"], "--preset tiny --out runs/memagent-tiny"),
        ("memagent --dry-run", ["core.train.command"], "--preset tiny --out runs/memagent-tiny"),
        ("memagent --backend slime", ["core.backends.slime.launch"], "--preset seed --out runs/memagent-seed"),
        ("memagent --preset=/x/own.yaml --out /y", ["core.train.command", "scripts.report"], ""),
    ],
)
def test_training_resolves_preset_and_folder_and_then_reports(
    monkeypatch: pytest.MonkeyPatch, words: str, called: list[str], added: str
) -> None:
    calls: list[tuple[str, object]] = []

    class Module:
        def __init__(self, name: str):
            self.name = name

        def main(self, arguments: list[str]) -> int:
            calls.append((self.name, arguments))
            return 0

        def report(self, out: Path, scores: bool) -> int:
            calls.append((self.name, out))
            return 0

    monkeypatch.setattr(train, "import_module", Module)
    assert train.main(words.split()) == 0
    assert [name for name, _ in calls] == called
    whole = [*words.split(), *added.split()]
    assert calls[0][1] == whole
    assert [out for _, out in calls[1:]] == [Path(whole[-1])] * (len(called) - 1)


def test_a_reader_that_leaves_early_makes_no_traceback() -> None:
    code = (
        "import sys\nfrom types import SimpleNamespace\nfrom scripts import tokentrue\n"
        "tokentrue.import_module = lambda name: SimpleNamespace(main=lambda words: print(*words))\n"
        "sys.exit(tokentrue.main(['report', 'x' * 9]))"
    )
    read, write = os.pipe()
    os.close(read)
    for unbuffered in ("", "1"):
        environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=write, stderr=subprocess.PIPE, text=True)
        assert (done.returncode, done.stderr) == (1, "error: [Errno 32] Broken pipe\n")
        assert not subprocess.run(["sh", "-c", 'exec "$@" >&-', "sh", *command], cwd=ROOT).returncode
    os.close(write)
