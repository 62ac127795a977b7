"""Reads tasks of Harbor, as Terminal-Bench 2 has them, as records of this method: instruction.md is the question.

    tokentrue data harbor TASK_FOLDER... --out train.jsonl

A record has the files of tests/ as `verifier`, and the image: that of task.toml, or the one to build of the folder's
environment/. Where its Dockerfile does no more than put files into WORKDIR, on a plain Linux or Python, the record has
the `repository` too, and needs no Docker: it runs on the Linux and Python of this machine.

No workspace has a network. What would install or fetch is left out of test.sh if it brings pytest alone, which is
started directly. That is told, and what else a workspace cannot do is refused.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from core.data import DataError, write_jsonl
from core.options import show_errors
from core.types import Task

SETTINGS = """
schema_version version task metadata source solution agent.timeout_sec verifier.timeout_sec environment.os
environment.network_mode environment.allow_internet environment.build_timeout_sec environment.cpus environment.memory
environment.memory_mb environment.storage environment.storage_mb
""".split()
"""Names the settings of task.toml that are read, or that mean nothing here: the recipe has limits of its own."""
TEXTS = ("task.name", "environment.docker_image", "environment.workdir")
OTHERS = {"environment.os": "windows", "environment.network_mode": "allowlist"}
OTHER_CONTAINERS = ("environment/docker-compose.yaml", "environment/docker-compose.yml", "tests/Dockerfile")
CANARY = re.compile(r"\A(<!--.*canary.*-->\n|#.*canary.*\n|\n)+", re.IGNORECASE)
PLAIN_IMAGE = re.compile(r"FROM\s+(docker\.io/)?(library/)?(ubuntu|debian|python)(:[\w.-]+)?", re.IGNORECASE)
SAYS_NOTHING = re.compile(
    r"|(LABEL|MAINTAINER|EXPOSE|CMD)\s.*|ENV(\s+(DEBIAN_FRONTEND|LANG|LC_ALL|TZ|(PIP|UV)_\w+|PYTHON(UNBUFFERED|"
    r"DONTWRITEBYTECODE))[= ]\S+)+",
    re.IGNORECASE,
)
LEFT_OUT = re.compile(
    r"apt-get( -\S+)* update|apt-get( -\S+)* install( (-\S+|curl|ca-certificates|wget))+|"
    r"curl .*astral\.sh/uv\S* *\| *(ba)?sh|(source|\.) \S*/\.local/bin/env\S*"
)
PYTEST = re.compile(r"((?:if |! )*)(?:uvx((?: (?:-p|--python|-w|--with)[ =]\S+)*) )?pytest( .*)")
BROUGHT = re.compile(r"(pytest|pytest-json-ctrf|numpy)(==\S+)?")
"""Names the packages that a workspace has, or that only write one more report."""
NEEDS_NETWORK = re.compile(r"\b(apt-get|apt|apk|curl|wget|pip3?|uvx?|npm|npx|conda|git clone)\b")


def read_folder(folder: Path, notes: list[str]) -> Task:
    """Read a task; `notes` gets what was left out or changed, and what the task needs.

    Raises:
        DataError: a file is missing or broken, or the task asks for what no workspace has.
    """
    folder = folder.resolve()
    try:
        settings = read_settings(folder)
        question = CANARY.sub("", read_text(folder / "instruction.md"))
        tests = {path.as_posix(): read_as_it_is(file) for path, file in list_files(folder / "tests").items()}
        tests["test.sh"] = rewrite_script(read_text(folder / "tests/test.sh"), f"{folder}/tests/test.sh", notes)
        metadata, why = read_environment(folder / "environment", settings.get("environment.workdir"))
    except (OSError, ValueError) as error:
        raise DataError(f"{folder}: {error}") from error
    name, given = settings.get("task.name") or folder.name, settings.get("environment.docker_image")
    image = given or "harbor-" + re.sub(r"[^a-z0-9]+", "-", name.lower())
    if why:
        build = "" if given else f": docker build -t {image} {folder}/environment"
        notes.append(f"{folder}: needs coding.backend=docker and the image {image}, with git and pytest{build} ({why})")
    return Task(name, question, ("tests/test.sh",), metadata={"image": image, "verifier": tests, **metadata})


def read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of task.toml by dotted names. Raises ValueError for what no workspace has."""
    given: dict[str, Any] = {}
    for name, value in tomllib.loads(read_text(folder / "task.toml")).items():
        given |= {f"{name}.{key}": each for key, each in value.items()} if isinstance(value, dict) else {name: value}
    wrong = [name for name, value in given.items() if value and not is_known(name, value)]
    wrong += [name for name in OTHER_CONTAINERS if (folder / name).exists()]
    version = str(given.get("schema_version", given.get("version", "1.4")))
    if [int(part) for part in version.split(".")] > [1, 4] or wrong:
        fix = "leave the task out, or write it for one container of Linux without network, in schema 1.4"
        raise ValueError(f"no workspace has what {', '.join(wrong) or 'its schema_version'} asks for. Fix: {fix}.")
    return given


def is_known(name: str, value: Any) -> bool:
    """Say whether a setting of task.toml has a meaning here, or needs none."""
    if name in TEXTS:
        return isinstance(value, str)
    return (name in SETTINGS or name.partition(".")[0] in SETTINGS) and OTHERS.get(name) != value


def rewrite_script(text: str, path: str, notes: list[str]) -> str:
    """Return test.sh as it runs without network. Raises ValueError for a line that cannot."""
    lines, told = [], []
    for line in text.replace("\\\n", " ").splitlines():
        words = " ".join(line.split())
        if all(map(LEFT_OUT.fullmatch, words.split(" && "))):
            told.append(f"without `{words}`")
            continue
        found = PYTEST.fullmatch(words)
        if found and all(map(BROUGHT.fullmatch, re.findall(r"(?:-w|--with)[ =](\S+)", found[2] or ""))):
            # -P: nothing in the agent's folder replaces a module of Python or pytest.
            line = f"{found[1]}python3 -P -m pytest{re.sub(r' --ctrf[ =][^ ;]+', '', found[3])}"
            told.append(f"`{line}` for `{words}`")
        if NEEDS_NETWORK.search(line.partition("#")[0]):
            fix = "install it in environment/Dockerfile, and start pytest directly"
            raise ValueError(f"tests/test.sh: no workspace has a network for `{words}`. Fix: {fix}.")
        lines.append(line)
    if told:
        notes.append(f"{path}: {', '.join(told)}")
    return "\n".join([*lines, ""])


def read_environment(folder: Path, workdir: str | None) -> tuple[dict[str, Any], str]:
    """Return a record's `workdir`, and its `repository` if files are all that it needs; else say what else it does."""
    current, files, why = PurePosixPath("/"), dict[PurePosixPath, Path](), ""
    has_recipe = (folder / "Dockerfile").exists() or (folder / "Dockerfile").is_symlink()
    text = read_text(folder / "Dockerfile") if has_recipe else "there is no Dockerfile"
    if len(re.findall(r"(?mi)^\s*FROM\s", text)) > 1:
        why = "several stages"
    for line in map(str.strip, re.sub(r"(?m)^\s*#.*\n", "", text).replace("\\\n", " ").splitlines()):
        word, *words = line.split() or [""]
        if word.upper() == "WORKDIR" and len(words) == 1 and "$" not in words[0]:
            current /= words[0]
        elif word.upper() == "COPY" and len(words) > 1 and not re.search(r" --|[\[\"'$<*?:]|\.\.", line):
            target = current / words[-1]
            into = len(words) > 2 or words[-1].endswith("/") or target == current
            for source in (folder / source.lstrip("/") for source in words[:-1]):
                place = target / source.name if into and source.is_file() else target
                files |= {place / path: file for path, file in list_files(source).items()}
        elif not (SAYS_NOTHING.fullmatch(line) or PLAIN_IMAGE.fullmatch(line)):
            why = why or line
    root, texts = PurePosixPath(workdir or current), dict[str, str]()
    try:
        texts = {path.relative_to(root).as_posix(): read_as_it_is(file) for path, file in files.items()}
    except ValueError as error:  # a file is no text, or outside of WORKDIR
        why = why or str(error)
    why = why or (".dockerignore" if (folder / ".dockerignore").exists() else "")
    programs = [
        path.relative_to(root).as_posix() for path, file in files.items() if not why and file.stat().st_mode & 64
    ]
    commands = {"pre_commands": f"chmod +x -- {shlex.join(programs)}"} if programs else {}
    return {"workdir": str(root), **({} if why else {"repository": texts}), **commands}, why


def list_files(path: Path) -> dict[PurePosixPath, Path]:
    """Return the files of a folder, or the one file, by their paths in it. Raises ValueError if one is not there."""
    found = [path, *sorted(path.rglob("*"))]
    if wrong := [file for file in found if not file.exists() or file.resolve() != file]:
        raise ValueError(
            f"{wrong[0]} is missing, or a symbolic link, which may lead out. Fix: put the file itself there."
        )
    return {PurePosixPath(file.relative_to(path).as_posix()): file for file in found if file.is_file()}


def read_as_it_is(path: Path) -> str:
    """Return the text of a file with its own line ends. Raises ValueError for what is no text."""
    return path.read_bytes().decode()


def read_text(path: Path) -> str:
    """Return the text of a file. Raises ValueError as list_files."""
    list_files(path)
    return path.read_text()


@show_errors(DataError, OSError)
def main(arguments: Sequence[str] | None = None) -> int:
    options, notes = make_parser().parse_args(arguments), list[str]()
    tasks = [read_folder(folder, notes) for folder in options.folders]
    write_jsonl(options.out, tasks)
    print(*(f"note: {note}\n" for note in notes), sep="", end="", file=sys.stderr)
    print(f"{options.out}: {len(tasks)} tasks, {sum('repository' in task.metadata for task in tasks)} without Docker")
    return 0


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokentrue data harbor", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="a task: it holds a task.toml")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE")
    return parser
