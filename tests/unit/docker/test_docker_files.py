"""What can be said of docker/ without a container engine: the files agree with themselves and with the repository."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
SERVICES: dict[str, Any] = yaml.safe_load((ROOT / "docker/compose.yaml").read_text())["services"]


def option(service: dict[str, Any], name: str) -> str:
    words = shlex.split(service["command"])
    return words[words.index(name) + 1]


def devices(service: dict[str, Any]) -> list[str]:
    (reservation,) = service["deploy"]["resources"]["reservations"]["devices"]
    return list(reservation["device_ids"])


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_an_sglang_server_whose_health_is_asked_at_its_port(name):
    service = SERVICES[name]
    assert service["command"].startswith("python -m sglang.launch_server ")
    assert service["image"] == "twocore"
    assert option(service, "--model-path").lower().split("/")[1].startswith(name)
    assert service["healthcheck"]["test"][-1] == f"http://127.0.0.1:{option(service, '--port')}/health"


@pytest.mark.parametrize("profile", {profile for service in SERVICES.values() for profile in service["profiles"]})
def test_services_of_a_method_share_no_port_and_no_gpu_and_serve_each_of_its_roles_once(profile):
    services = [service for service in SERVICES.values() if profile in service["profiles"]]
    ports = [option(service, "--port") for service in services]
    gpus = [gpu for service in services for gpu in devices(service)]
    assert len(set(ports)) == len(ports)
    assert len(set(gpus)) == len(gpus)
    served = [role for service in services for role in service["labels"]["roles"].split()]
    preset = yaml.safe_load((ROOT / "agentic" / profile / "presets/seed.yaml").read_text())
    engines = {role["engine"] for role in preset[profile]["roles"].values()} - {"policy"}
    assert sorted(served) == sorted(engines)


def test_the_image_is_built_from_files_and_modules_that_exist():
    text = (ROOT / "docker/Dockerfile").read_text()
    assert re.search(r"^ARG SLIME_IMAGE=slimerl/slime:\S+\nFROM \$\{SLIME_IMAGE\}$", text, re.M)
    (requirement,) = re.findall(r"grep '(\^\S+)' requirements-gpu\.txt", text)
    assert re.search(requirement, (ROOT / "requirements-gpu.txt").read_text(), re.M)
    (modules,) = re.findall(r"python -c 'import (.+)'", text)
    for module in modules.split(", "):
        assert module == "slime" or find_spec(module), module
