"""Servers as children: ready when entered, gone when left, and gone when the starter is killed."""

from __future__ import annotations

import os
import signal
import sys
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import pytest
from aiohttp import web

from core.policy import server_process
from core.policy.server_process import ServerError, make_server_command, run_server, serve, start_keeper
from tests.kit import PROGRAM, answer_health, is_running, serve_app, wait_until

# A server with a child of its own, as SGLang has them. It takes half a second to become healthy.
FAKE = """
import http.server, os, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("pids", os.getpid(), child.pid, flush=True)
born = time.time()
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if time.time() > born + 0.5 else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
"""


@pytest.fixture
def fake(tmp_path: Path) -> str:
    """An `interpreter` that is the fake server, whatever module it is told to run."""
    path = tmp_path / "python"
    path.write_text(PROGRAM + FAKE)
    path.chmod(0o755)
    return str(path)


def pids(log: Path) -> list[int]:
    line = next(line for line in log.read_text().splitlines() if line.startswith("pids"))
    return [int(pid) for pid in line.split()[1:]]


def wait_until_ended(processes: list[int]) -> None:
    wait_until(lambda: not any(map(is_running, processes)))


def test_a_server_is_healthy_when_entered_and_gone_with_its_children_when_left(fake, tmp_path):
    log = tmp_path / "logs" / "server.log"
    with serve("sglang", "m", log=log, python=fake) as url:
        with urllib.request.urlopen(f"{url}/health") as response:
            assert response.status == 200
        processes = pids(log)
        assert all(map(is_running, processes))
    wait_until_ended(processes)


def test_a_server_ends_when_its_user_fails(fake, tmp_path):
    with pytest.raises(ZeroDivisionError), serve("sglang", "m", log=tmp_path / "log", python=fake):
        1 / 0  # noqa: B018
    wait_until_ended(pids(tmp_path / "log"))


def test_a_server_that_ignores_the_request_to_stop_is_killed(fake, tmp_path, monkeypatch):
    deaf = FAKE.replace("import http.server", "import signal; signal.signal(15, signal.SIG_IGN)\nimport http.server")
    Path(fake).write_text(PROGRAM + deaf)
    keeper = tmp_path / "keeper.py"
    keeper.write_text(Path(server_process.__file__).read_text().replace("STOP_S = 15.0", "STOP_S = 0.3"))
    monkeypatch.setattr(server_process, "__file__", str(keeper))
    with serve("sglang", "m", log=tmp_path / "log", python=fake):
        processes = pids(tmp_path / "log")
    wait_until_ended(processes)


def test_a_server_ends_with_a_keeper_that_is_killed(fake, tmp_path):
    command = make_server_command("sglang", "m", host="127.0.0.1", port=0, python=fake)
    with (tmp_path / "log").open("ab") as output, start_keeper(command, output) as keeper:
        wait_until(lambda: "pids" in (tmp_path / "log").read_text())
        server, child = pids(tmp_path / "log")
        keeper.kill()
        wait_until_ended([server])
    os.kill(child, signal.SIGKILL)  # SGLang's children see to that themselves


def test_a_server_sees_the_gpus_that_it_is_given(tmp_path):
    show = [sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], 'PATH' in os.environ)"]
    with (tmp_path / "log").open("ab") as output, start_keeper(show, output, {"CUDA_VISIBLE_DEVICES": "2,3"}) as keeper:
        keeper.wait()
    assert (tmp_path / "log").read_text() == "2,3 True\n"


def test_another_server_at_the_address_is_not_taken_for_ours(tmp_path):
    app = web.Application()
    app.router.add_get("/health", answer_health)
    with (
        serve_app(app) as url,
        pytest.raises(ServerError, match=f"another server answers at {url} already"),
        run_server([sys.executable, "-c", ""], url, log=tmp_path / "log", start_s=60),
    ):
        pass


def test_a_server_that_answered_and_ended_is_not_ready(tmp_path):
    (tmp_path / "log").write_text("")
    app = web.Application()
    app.router.add_get("/health", answer_health)
    with serve_app(app) as url, pytest.raises(ServerError, match="ended before it was ready"):
        server_process.wait_until_healthy(url, lambda: False, 60, tmp_path / "log")


def test_a_server_that_dies_at_the_start_is_told_with_the_end_of_its_log(fake, tmp_path):
    Path(fake).write_text(PROGRAM + "raise SystemExit('no such folder')")
    with pytest.raises(ServerError) as raised, serve("sglang", "m", log=tmp_path / "log", python=fake):
        pass
    assert "ended before it was ready" in str(raised.value)
    assert "no such folder" in str(raised.value)
    assert str(tmp_path / "log") in str(raised.value)


@pytest.mark.parametrize(("backend", "name"), [("sglang", "SGLang"), ("vllm", "vLLM")])
def test_a_python_without_the_server_is_told_with_the_fix(tmp_path, backend, name):
    if find_spec(backend) is not None:
        pytest.skip(f"this Python has {name}")
    fix = f"This Python has no {name}.*--serve-python PYTHON.*--serve embedded"
    with pytest.raises(ServerError, match=fix), serve(backend, "m", log=tmp_path / "log"):
        pass


def test_a_server_that_never_becomes_ready_is_given_up_and_stopped(fake, tmp_path):
    with (
        pytest.raises(ServerError, match=r"not ready after 0\.2 s"),
        serve("sglang", "m", log=tmp_path / "log", python=fake, start_s=0.2),
    ):
        pass
    # It may have been stopped before it came to print its process ids.
    if "pids" in (tmp_path / "log").read_text():
        wait_until_ended(pids(tmp_path / "log"))
