"""The services of `seed` and `paper`: where the presets look for them, and started with a stand-in for SGLang."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from agentic.toolorchestra.config import PRESETS
from agentic.toolorchestra.rollout import SPEC
from scripts.services import Service, read_services

ROOT = PRESETS.parents[2]
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


@pytest.mark.parametrize("preset", ["seed", "paper"])
def test_gpus_of_one_node_are_shared_by_servers_of_fixed_size_alone(preset: str) -> None:
    on: dict[int, list[Service]] = {}
    for service in read_services(FILES / f"{preset}.yaml").values():
        assert service.gpus
        for gpu in service.gpus:
            on.setdefault(gpu, []).append(service)
        tensor = re.search(r"--tp (\d)", service.command)
        assert len(service.gpus) == int(tensor[1] if tensor else 1)
    assert sorted(on) == list(range(8))
    for together in on.values():
        assert len(together) == 1 or all("--max-total-tokens" in service.command for service in together)


COMMANDS = (PRESETS.parent / "RESULTS.md").read_text().replace("\\\n", " ")
SEDS = re.findall(r"^sed '?([^'\n]+?)'? +(\S+) >(\S+)$", COMMANDS, re.MULTILINE)


@pytest.mark.parametrize(("expression", "source", "target"), SEDS)
def test_what_the_document_changes_is_changed_throughout(
    expression: str, source: str, target: str, tmp_path: Path
) -> None:
    first = expression.split(";")[0]
    old, new = first.removesuffix("g").strip(first[1]).split(first[1])[1:3]
    text = subprocess.run(["sed", expression, str(ROOT / source)], text=True, capture_output=True, check=True).stdout
    said = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    assert old not in said
    assert new in said
    for option in ("--api-key-file /data/services.key", "api_key_file: /data/services.key"):
        assert (option in expression) == (option in text)
    (tmp_path / "seed.yaml").write_text(text)
    if "services" in target:
        assert read_services(tmp_path / "seed.yaml").keys() == read_services(ROOT / source).keys()
    else:
        slime = SPEC.load(str(tmp_path / "seed.yaml")).slime
        assert slime is not None
        assert all(url.startswith(f"http://{new}:") for url in slime.services.values())
