"""Tests docker/ without a container engine: the files agree with one another and with the repository."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.services import read_services

ROOT = Path(__file__).resolve().parents[3]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]


def option(service: dict[str, Any], name: str) -> str:
    words = shlex.split(service["command"])
    return words[words.index(name) + 1]


def expand(command: str, key: str = "") -> str:
    """Fill in SERVICES_KEY as compose does: `${NAME:+text}` is the text where NAME has a value, and else nothing."""
    command = command.replace("${SERVICES_KEY}", key)
    command = re.sub(r"\$\{SERVICES_KEY:\+(.*?)\}", lambda match: match[1] if key else "", command)
    assert "$" not in command
    return command.strip()


def devices(service: dict[str, Any]) -> list[str]:
    (reservation,) = service["deploy"]["resources"]["reservations"]["devices"]
    return list(reservation["device_ids"])


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_a_server_of_our_image_whose_health_is_asked_at_its_port(name):
    service = SERVICES[name]
    assert service["image"] == "tokentrue"
    assert service["healthcheck"]["test"][-1] == f"http://127.0.0.1:{option(service, '--port')}/health"
    if name != "retrieval":
        assert service["command"].startswith("python -m sglang.launch_server ")
        model = option(service, "--model-path").lower()
        assert all(word in model for word in name.split("-")), "it is named after what it serves"


def test_services_of_toolorchestra_are_those_of_its_service_file():
    """Command, GPUs and port are the same while no key is set."""
    ours = {name: service for name, service in SERVICES.items() if "toolorchestra" in service["profiles"]}
    theirs = read_services(ROOT / "agentic/toolorchestra/services/seed.yaml")
    assert ours.keys() == theirs.keys()
    for name, service in theirs.items():
        environment = " ".join(f"{key}={value}" for key, value in ours[name].get("environment", {}).items())
        command = expand(ours[name]["command"])
        command = f"env {environment} {command}" if environment else command
        assert command == service.command.format(python="python", host="127.0.0.1", port=service.port)
        assert devices(ours[name]) == [str(gpu) for gpu in service.gpus or ()]


def test_the_image_is_built_from_files_and_modules_that_exist():
    text = (ROOT / "docker/Dockerfile").read_text()
    assert re.search(r"^ARG SLIME_IMAGE=slimerl/slime:\S+\nFROM \$\{SLIME_IMAGE\}$", text, re.M)
    (requirement,) = re.findall(r"grep '(\^\S+)' requirements-gpu\.txt", text)
    assert re.search(requirement, (ROOT / "requirements-gpu.txt").read_text(), re.M)
    (modules,) = re.findall(r"python -c 'import (.+)'", text)
    for module in modules.split(", "):
        assert module == "slime" or find_spec(module), module


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_answers_its_own_machine_alone_unless_there_is_a_key(name):
    closed, opened = (shlex.split(expand(SERVICES[name]["command"], key)) for key in ("", "k"))
    assert closed[closed.index("--host") + 1] == "127.0.0.1"
    assert closed.count("--host") == 1
    key = ["--api-key-file", "/run/services.key"] if name == "retrieval" else ["--api-key", "k"]
    assert opened[len(closed) :] == ["--host", "0.0.0.0", *key]
