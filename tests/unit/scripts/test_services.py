"""The starter of services: all answer before the command runs, and none outlives the starter."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from core.config import RecipeError
from scripts.services import ADDRESSES, main, read_services, run_services, serve_around
from tests.kit import wait_until

SERVER = """
import http.server, os, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        text = str(os.getpid()) if self.path == "/pid" else os.environ.get("CUDA_VISIBLE_DEVICES", "")
        self.wfile.write(text.encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
READ = """
import sys, urllib.request, yaml
for name, url in yaml.safe_load(open(sys.argv[1])).items():
    print(name, urllib.request.urlopen(url + "/health").read().decode())
sys.exit(7)
"""


@pytest.fixture
def two_services(tmp_path: Path) -> Path:
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "read.py").write_text(READ)
    command = f"{{python}} {tmp_path / 'server.py'} {{port}}"
    file = tmp_path / "services.yaml"
    file.write_text(yaml.safe_dump({"one": {"command": command}, "two": {"command": command, "gpus": [2, 3]}}))
    return file


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as reply:
        return str(reply.read().decode())


def answers(url: str) -> bool:
    try:
        read(f"{url}/health")
    except OSError:
        return False
    return True


def fail(tmp_path: Path, capsys: pytest.CaptureFixture[str], **services: dict[str, Any]) -> str:
    """Start services that cannot all start, and return what is printed."""
    file = tmp_path / "services.yaml"
    file.write_text(yaml.safe_dump(services))
    assert main([str(file), "--logs", str(tmp_path), "--", "true"]) == 1
    return capsys.readouterr().err


def test_the_command_finds_them_and_gives_its_status(two_services: Path, capfd: pytest.CaptureFixture[str]):
    logs = two_services.parent / "logs"
    read = [sys.executable, str(two_services.parent / "read.py"), str(logs / ADDRESSES)]
    assert main([str(two_services), "--logs", str(logs), "--", *read]) == 7
    out = capfd.readouterr().out
    assert "one \n" in out
    assert "two 2,3\n" in out
    addresses = yaml.safe_load((logs / ADDRESSES).read_text())
    assert not any(map(answers, addresses.values()))


def test_a_second_starter_does_not_take_the_addresses_of_the_first(two_services: Path, capsys: Any):
    logs = two_services.parent / "logs"
    with serve_around(two_services, logs):
        assert main([str(two_services), "--logs", str(logs), "--", "true"]) == 1
        addresses = yaml.safe_load((logs / ADDRESSES).read_text())
        assert all(map(answers, addresses.values()))
    assert "another process keeps its services there" in capsys.readouterr().err


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_they_and_the_command_end_with_a_starter_that_is_ended(two_services: Path, how: signal.Signals):
    logs, beats = two_services.parent / "logs", two_services.parent / "beats"
    command = [sys.executable, "-m", "scripts.tokentrue", "serve", "services", str(two_services)]
    command += ["--logs", str(logs), "--", "bash", "-c", f"while true; do echo >> {beats}; sleep 0.1; done"]
    starter = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])})
    wait_until(beats.exists)
    addresses = yaml.safe_load((logs / ADDRESSES).read_text())
    assert all(map(answers, addresses.values()))
    starter.send_signal(how)
    starter.wait()
    wait_until(lambda: not any(map(answers, addresses.values())))

    def silent() -> bool:
        before = beats.stat().st_size
        time.sleep(1)
        return beats.stat().st_size == before

    wait_until(silent)


def test_a_service_that_dies_is_started_again_at_its_address(two_services: Path, capfd: pytest.CaptureFixture[str]):
    logs = two_services.parent / "logs"
    with run_services(read_services(two_services), logs) as addresses:
        url = addresses["one"]
        first = int(read(f"{url}/pid"))
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: not answers(url))
        wait_until(lambda: answers(url))
        assert int(read(f"{url}/pid")) != first
        assert answers(addresses["two"])
    assert not any(map(answers, addresses.values()))
    assert "service one has ended and is started again" in capfd.readouterr().err
    assert "ended with status -9" in (logs / "one.log").read_text()


def test_the_first_failure_is_shown_with_its_last_lines_and_ends_the_waiting(tmp_path: Path, capsys: Any):
    """Otherwise this would last the hour that `slow` may take."""
    broken = {"command": "{python} -c 'raise SystemExit(\"no GPU\")'"}
    assert "no GPU" in fail(tmp_path, capsys, slow={"command": "sleep 3600", "start_s": 3600}, broken=broken)


def test_another_server_is_not_taken_for_ours(tmp_path: Path, capsys: Any):
    with socket.create_server(("127.0.0.1", 0)) as other:
        service = {"command": "sleep 3600", "port": other.getsockname()[1]}
        assert "one: somebody listens at port" in fail(tmp_path, capsys, one=service)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", r"must be a mapping"),
        (b"{}", r"at least 1 item"),
        (b"- a", r"must be a mapping"),
        (b"a: [", r"not valid YAML"),
        (b"a: \xff", r"not valid YAML: 'utf-8' codec"),
        (b"a: {comand: x}", r"a\.comand: unknown key; did you mean a\.command\?"),
        (b"a: {command: x, port: 99999}", r"a\.port: .*65535"),
        (b"a: {command: ''}", r"a\.command: names no program"),
        (b"a: {command: 'echo {prt}'}", r"a\.command: unknown {prt}; there are {python}, {host}, {port}"),
        (b"a: {command: 'echo {}'}", r"a\.command: unknown {}; there are"),
        (b"a: {command: 'echo \"x'}", r"a\.command: No closing quotation"),
        (b"a: {command: 'echo }'}", r"a\.command: Single '}'"),
    ],
)
def test_bad_files_are_refused_by_name(tmp_path: Path, text: bytes, message: str):
    file = tmp_path / "services.yaml"
    file.write_bytes(text)
    with pytest.raises(RecipeError, match=rf"(?s)services\.yaml: .*{message}"):
        read_services(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main([str(tmp_path / "absent.yaml"), "--logs", str(tmp_path), "--", "true"]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'absent.yaml'}: cannot be read (No such file or directory)\n"
