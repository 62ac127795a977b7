"""The services of `seed` and `paper`: where the presets look for them, and which model each of them serves."""

from __future__ import annotations

import re

import pytest

from agentic.toolorchestra.config import PRESETS
from agentic.toolorchestra.rollout import SPEC
from scripts.services import Service, read_services

FILES = PRESETS.parent / "services"


def model(service: Service) -> str:
    found = re.search(r"--model-path (\S+)", service.command)
    return found[1] if found else ""


@pytest.mark.parametrize("preset", ["seed", "paper"])
def test_the_launcher_looks_at_every_service(preset: str) -> None:
    slime = SPEC.load(preset).slime
    assert slime is not None
    services = read_services(FILES / f"{preset}.yaml")
    assert slime.services == {name: f"http://{s.host}:{s.port}/health" for name, s in services.items()}


@pytest.mark.parametrize("preset", ["seed", "paper"])
def test_each_model_is_served_under_its_name_where_it_is_asked(preset: str) -> None:
    served = {f"http://{s.host}:{s.port}/v1": s for s in read_services(FILES / f"{preset}.yaml").values()}
    local = {n: m for n, m in SPEC.load(preset).toolorchestra.models.items() if str(m.url).startswith("http://127.")}
    assert len({m.url for m in local.values()}) == len(served) - 1, "all but the retrieval service"
    for name, section in local.items():
        service = served[str(section.url)]
        named = re.search(r"--served-model-name (\S+)", service.command)
        assert (section.name or name) == (named[1] if named else model(service))
