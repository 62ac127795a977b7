"""The services of `seed` and `paper`: where the presets look for them, and started with a stand-in for SGLang."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentic.toolorchestra.config import PRESETS
from agentic.toolorchestra.rollout import SPEC
from scripts.services import Service, read_services

ROOT = PRESETS.parents[2]
FILES = PRESETS.parent / "services"

SGLANG = """
import argparse, http.server, json, os
parser = argparse.ArgumentParser()
parser.add_argument("--model-path")
parser.add_argument("--host")
parser.add_argument("--port", type=int)
options, rest = parser.parse_known_args()

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps([options.model_path, os.environ["CUDA_VISIBLE_DEVICES"]]).encode())
    def log_message(self, *_): pass

http.server.HTTPServer((options.host, options.port), Handler).serve_forever()
"""
READ = """
import json, sys, urllib.request, yaml
addresses = yaml.safe_load(open(sys.argv[1]))
print(json.dumps({name: [url, json.load(urllib.request.urlopen(url + "/health"))] for name, url in addresses.items()}))
"""


def find_free_ports(count: int) -> list[int]:
    """Return ports that differ, since each is held until the last one is found."""
    with ExitStack() as stack:
        listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in listeners]


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


def test_the_document_changes_files_in_five_places() -> None:
    assert [Path(target).name for _, _, target in SEDS] == [
        "services.yaml",
        "seed.yaml",
        "frames-services.yaml",
        "frames-services.yaml",
        "hle-services.yaml",
    ]


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


@pytest.mark.timeout(300)
@pytest.mark.parametrize("preset", ["seed", "paper"])
def test_one_command_starts_them_all_at_their_ports_and_gpus_and_stops_them(preset: str, tmp_path: Path) -> None:
    """The file's own commands, but for a `sglang` that only answers, an encoder that is no model, and free ports."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/__init__.py").touch()
    (tmp_path / "sglang/launch_server.py").write_text(SGLANG)
    (tmp_path / "read.py").write_text(READ)
    (tmp_path / "corpus.jsonl").write_text('{"id": "1", "contents": "Lamp"}\n')
    text = (FILES / f"{preset}.yaml").read_text()
    text = text.replace(" --encoder qwen3-embedding --index-device cuda", "").replace(
        "data/toolorchestra", str(tmp_path)
    )
    file = tmp_path / "services.yaml"
    ports = iter(find_free_ports(len(re.findall(r"port: \d+", text))))
    file.write_text(re.sub(r"port: \d+", lambda _: f"port: {next(ports)}", text))
    expected = read_services(file)
    logs = tmp_path / "logs"
    command = [sys.executable, "-m", "scripts.services", str(file), "--logs", str(logs), "--"]
    done = subprocess.run(
        [*command, sys.executable, str(tmp_path / "read.py"), str(logs / "addresses.yaml")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]), "OMP_NUM_THREADS": "1"},
        text=True,
        capture_output=True,
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert yaml.safe_load((logs / "addresses.yaml").read_text()) == {name: url for name, (url, _) in said.items()}
    for name, service in expected.items():
        url, answer = said[name]
        assert url == f"http://127.0.0.1:{service.port}"
        if name != "retrieval":
            assert answer == [model(service), ",".join(map(str, service.gpus or ()))]
    assert said["retrieval"][1]["status"] == "ok"
    for service in expected.values():
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", service.port), timeout=5)
