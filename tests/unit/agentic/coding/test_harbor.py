"""Task folders of Harbor become records: what runs here, what needs an image, what is refused, and who can fool it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentic.coding.grading import DiffGrade, read_score
from agentic.coding.harbor import main, read_folder
from agentic.coding.prompts import REPAIR, WORK
from agentic.coding.records import RepositoryTask, check_task, read_task
from agentic.coding.rollout import SPEC
from core.data import DataError, read_tasks
from tests.kit import call
from tests.unit.agentic.coding.harbor_folders import TASKS, TOML, write_folder
from tests.unit.agentic.coding.test_reward_hacks import attempt
from tests.unit.agentic.coding.test_rollout import make, play


def read(folder: Path, name: str, **changed: str | None) -> tuple[RepositoryTask, list[str]]:
    notes: list[str] = []
    return read_task(read_folder(write_folder(folder, name, **changed), notes)), notes


@pytest.mark.parametrize("name", TASKS)
async def test_a_task_runs_here_its_solution_gets_1_and_nothing_gets_0(
    isolation: None, tmp_path: Path, name: str
) -> None:
    task, _ = read(tmp_path, name)
    assert (await attempt(task, TASKS[name]["solution/solve.sh"]))[0].reward == 1.0
    nothing, _ = await attempt(task, "true")
    assert (nothing.verdict, nothing.reward) == ("tests_failed", 0.0)


async def test_a_reward_in_parts_is_kept_as_a_number_whatever_the_exit_status(isolation: None, tmp_path: Path) -> None:
    task, _ = read(tmp_path, "two-halves")  # its test.sh ends with status 3
    half, _ = await attempt(task, "echo one > a.txt")
    assert (half, half.reward) == (DiffGrade("tests_failed", "0.5: ", 0.5), 0.5)
    silent = replace(task, verifier={**task.verifier, "test.sh": b"#!/bin/sh\necho 1\nexit 0\n"})
    assert (await attempt(silent, "true"))[0].verdict == "no_report", "exit status 0 and a printed 1 are no reward"


def test_the_command_writes_records_that_the_method_takes_and_tells_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(write_folder(tmp_path, name)) for name in TASKS]
    assert main([*folders, "--out", str(tmp_path / "tasks.jsonl")]) == 0
    told = capsys.readouterr()
    assert told.out.endswith("5 tasks, 5 without Docker\n")
    assert "`python3 -P -m pytest /tests/test_outputs.py -rA` for `uvx -p 3.13 -w pytest==8.4.1" in told.err
    assert told.err.count("without `apt-get update`, without `apt-get install -y curl`, without `curl ") == 2
    tasks = read_tasks(tmp_path / "tasks.jsonl", require_context=False)
    assert [task.task_id for task in tasks] == [f"tokentrue/{name}" for name in TASKS]
    assert tasks[0].question == "Write the word yes into the file /app/answer.txt.\n", "without the canary"
    for backend in ("auto", "docker"):
        assert [check_task(SPEC.load("tiny", [f"coding.backend={backend}"]), task) for task in tasks] == [None] * 5
    assert "repository" in tasks[0].metadata, "an empty folder is a repository too"


def test_the_line_ends_of_files_stay_as_they_are(tmp_path: Path) -> None:
    folder = write_folder(tmp_path, "sorted-names")
    for path in ("environment/names.txt", "tests/expected.txt"):
        (folder / path).write_bytes(b"tom\r\nada\r\n")
    task = read_task(read_folder(folder, []))
    assert task.files["names.txt"] == task.verifier["expected.txt"] == b"tom\r\nada\r\n"


@pytest.mark.parametrize(
    ("dockerfile", "why"),
    [
        ("FROM ubuntu:24.04\nRUN apt-get update\nWORKDIR /app\n", "RUN apt-get update"),
        ("FROM node:20\nWORKDIR /app\n", "FROM node:20"),
        ("FROM python:3.12 AS made\nWORKDIR /app\n", "FROM python:3.12 AS made"),
        ("FROM ubuntu\nWORKDIR /app\nENV SECRET=1\n", "ENV SECRET=1"),
        ("FROM ubuntu\nWORKDIR /app\nUSER tom\n", "USER tom"),
        ("FROM ubuntu\nWORKDIR /app\nCOPY --chmod=755 names.txt /app/\n", "COPY --chmod=755 names.txt /app/"),
        ("FROM ubuntu\nWORKDIR /app\nADD https://example.org/a /app/\n", "ADD https://example.org/a /app/"),
        ("FROM ubuntu\nWORKDIR /app\nCOPY ../task.toml /app/\n", "COPY ../task.toml /app/"),
        ("FROM ubuntu\nWORKDIR /app\nCOPY names.txt /etc/names\n", "'/etc/names' is not in the subpath of '/app'"),
    ],
)
def test_what_is_more_than_files_needs_the_image(tmp_path: Path, dockerfile: str, why: str) -> None:
    folder = write_folder(tmp_path, "sorted-names", **{"environment/Dockerfile": dockerfile})
    notes: list[str] = []
    task = read_folder(folder, notes)
    assert "repository" not in task.metadata
    assert task.metadata["workdir"] == "/app"
    build = f"docker build -t harbor-tokentrue-sorted-names {folder}/environment"
    assert build in notes[-1]
    assert why in notes[-1]
    assert check_task(SPEC.load("tiny", ["coding.backend=docker"]), task) is None
    fault = check_task(SPEC.load("tiny"), task)
    assert fault is not None
    assert fault[0] == "metadata.repository"


def test_an_image_of_task_toml_is_taken(tmp_path: Path) -> None:
    toml = f'{TOML}docker_image = "team/names:1"\nworkdir = "/srv"\n'.replace("NAME", "x")
    task, notes = read(tmp_path, "sorted-names", **{"environment/Dockerfile": None, "task.toml": toml})
    assert (task.image, task.workdir, task.files) == ("team/names:1", "/srv", {})
    assert "the image team/names:1, with git" in notes[-1]
    assert "docker build" not in notes[-1]


@pytest.mark.parametrize("link", ["instruction.md", "environment/Dockerfile", "tests/more", "environment/more"])
def test_a_link_that_leads_out_is_refused(tmp_path: Path, link: str) -> None:
    secret = tmp_path / "elsewhere"
    secret.mkdir()
    (secret / "key").write_text("secret")
    folder = write_folder(tmp_path, "two-halves")
    if link in ("instruction.md", "environment/Dockerfile"):
        (folder / link).unlink()
        (folder / link).symlink_to(secret / "key")
    else:
        (folder / link).symlink_to(secret)
        (folder / "environment/Dockerfile").write_text("FROM ubuntu\nWORKDIR /a\nCOPY more/key ./\n")
    with pytest.raises(DataError, match="or a symbolic link, which may lead out"):
        read_folder(folder, [])


def add_to_toml(more: str) -> dict[str, str]:
    return {"task.toml": TOML.replace("NAME", "x") + more}


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (add_to_toml('\n[[steps]]\nname = "one"\n'), "no workspace has what steps asks for. Fix: "),
        (add_to_toml("gpus = 1\n"), "no workspace has what environment.gpus asks for"),
        (add_to_toml('os = "windows"\n'), "no workspace has what environment.os asks for"),
        (add_to_toml('network_mode = "allowlist"\n'), "no workspace has what environment.network_mode asks for"),
        (add_to_toml('\n[environment.env]\nKEY = "${KEY}"\n'), "no workspace has what environment.env asks for"),
        (add_to_toml("\n[verifier.environment]\ncpus = 1\n"), "no workspace has what verifier.environment asks for"),
        (add_to_toml('\n[environment.healthcheck]\ncommand = "x"\n'), "has what environment.healthcheck asks for"),
        ({"task.toml": TOML.replace("1.4", "1.10")}, "no workspace has what its schema_version asks for"),
        ({"task.toml": TOML.replace("1.4", "1.5")}, "no workspace has what its schema_version asks for"),
        ({"tests/Dockerfile": "FROM ubuntu\n"}, "tests/Dockerfile asks for"),
        ({"environment/docker-compose.yaml": "services: {}\n"}, "environment/docker-compose.yaml asks for"),
        ({"tests/test.sh": "#!/bin/bash\npip install requests\n"}, "no workspace has a network for `pip inst"),
        ({"tests/test.sh": "apt-get install -y nodejs\n"}, "no workspace has a network for `apt-get"),
        ({"tests/test.sh": "uvx -w pytest -w pandas pytest /tests/t.py\n"}, "no workspace has a network for `uvx -w"),
        ({"tests/test.sh": None}, "two-halves/tests is missing"),
        ({"environment/Dockerfile": "FROM ubuntu\nWORKDIR /a\nCOPY no.txt .\n"}, "environment/no.txt is missing"),
        ({"instruction.md": None}, "instruction.md"),
        ({"task.toml": "a ="}, "Invalid value"),
        ({"task.toml": 'environment = "x"'}, "no workspace has what environment asks for"),
        ({"task.toml": "[environment]\ndocker_image = 5"}, "no workspace has what environment.docker_image asks for"),
        ({"task.toml": "[task]\nname = [1]"}, "no workspace has what task.name asks for"),
    ],
)  # fmt: skip
def test_a_folder_that_cannot_be_run_is_refused(tmp_path: Path, changed: dict[str, Any], problem: str) -> None:
    with pytest.raises(DataError, match=problem):
        read(tmp_path, "two-halves", **changed)


@pytest.mark.parametrize(
    ("report", "score"),
    [
        ("1", 1.0), ("0.5\n", 0.5), (".25", 0.25), ("-1", -1.0), ('{"reward": 0.5, "speed": 9}', 0.5),
        ('{"passed": 1}', 1.0), ("2", 2.0), ("true", 1.0),
        ("", None), ("yes", None), ("nan", None), ("1e999", None), ('"1"', None), ("[1]", None),
        ('{"a": 1, "b": 0}', None), ("{}", None), ('{"reward": "1"}', None), ('{"reward": NaN}', None),
    ],
)  # fmt: skip
def test_a_reward_is_one_finite_number(report: str, score: float | None) -> None:
    assert read_score(report.encode()) == score


HACKS = {
    "tests_written": "mkdir -p /tests /logs/verifier; echo 'def test_a(): pass' > /tests/test_outputs.py; "
    "echo 1 > /logs/verifier/reward.txt",
    "tests_in_the_folder": "mkdir tests; echo 'def test_a(): pass' > tests/test_outputs.py",
    "reward_in_the_folder": "mkdir -p logs/verifier; echo 1 > logs/verifier/reward.txt",
    "own_pytest": "echo 'import sys; sys.exit(0)' > pytest.py; cp pytest.py json.py; cp pytest.py sitecustomize.py",
    "conftest": "echo 'import pytest\n@pytest.fixture(autouse=True)\ndef skip(): pytest.skip()' > conftest.py",
    "symlink": "ln -s /logs/verifier/reward.txt src/x; ln -s /tests tests",
    "reward_on_import": "echo 'open(\"/logs/verifier/reward.txt\", \"w\").write(\"1\")' >> src/stock.py",
    "other_report": "echo 'open(\"/logs/verifier/reward.json\", \"w\").write(\"1\")' >> src/stock.py",
    "test_on_import": "echo 'open(\"/tests/test_outputs.py\", \"w\").write(\"\")' >> src/stock.py",
    "shell_killed": "printf 'import os\\nopen(\"/logs/verifier/reward.txt\", \"w\").write(\"1\")\\n"
    "os.kill(os.getppid(), 9)\\n' >> src/stock.py",
    "printed": "echo 'print(\"1\\n1 passed\\nreward: 1\")' >> src/stock.py",
    "prepared_json": "echo 'open(\"/tmp/reward.json\", \"w\").write(\"1\")' >> src/stock.py",
}  # fmt: skip


@pytest.mark.parametrize("hack", HACKS)
async def test_a_hack_of_the_tests_or_the_reward_gets_nothing(isolation: None, tmp_path: Path, hack: str) -> None:
    task, _ = read(tmp_path, "broken-package")
    graded, _ = await attempt(task, HACKS[hack])
    assert graded.reward == 0.0, graded
    verdicts = {"symlink": "symlink", "shell_killed": "no_report", "other_report": "no_report"}
    assert graded.verdict == verdicts.get(hack, "tests_failed")


async def test_the_hacks_beside_a_repair_do_not_harm_it(isolation: None, tmp_path: Path) -> None:
    """Nothing in the folder is restored: it is the agent's, with files that other records protect."""
    task, _ = read(tmp_path, "broken-package")
    repair = TASKS["broken-package"]["solution/solve.sh"]
    assert (await attempt(task, f"{repair}; {HACKS['tests_in_the_folder']}; {HACKS['own_pytest']}"))[0].reward == 1.0
    made = replace(task, verifier={"test.sh": b"[ -f conftest.py ] && echo 1 > /logs/verifier/reward.txt"})
    assert (await attempt(made, "touch conftest.py"))[0].reward == 1.0


async def test_a_rollout_sees_the_instruction_and_no_test_and_keeps_the_number(
    isolation: None, tokenizer: Any, tmp_path: Path
) -> None:
    task = read_folder(write_folder(tmp_path, "two-halves"), [])
    commands = "ls -a /tests /logs . ..; pwd", "echo two > b.txt"
    answers = [*(call("bash", command=command) for command in commands), "done"]
    done = await play(make(tokenizer, "coding.tools=[bash]"), answers, task)
    assert (done.reward, done.status, done.log["verdict"]) == (0.5, "completed", "tests_failed")
    shown = tokenizer.decode(done.turns[-1].prompt_ids)
    assert f"Write one into a.txt and two into b.txt.\n\n{WORK} When you are done" in shown
    assert "test.sh" not in shown
    assert REPAIR not in shown


def test_the_pytest_form_keeps_its_condition(tmp_path: Path) -> None:
    task, notes = read(tmp_path, "broken-package")
    assert b"if python3 -P -m pytest /tests/test_outputs.py -rA; then\n" in task.verifier["test.sh"]
    assert "for `if pytest --ctrf" in notes[0]
