"""Small runs of every method are killed, stopped and slowed at random moments, and so are services and the gateway.

This goes on as long as `--long MINUTES` says, for each of them. What comes out is the run that was never touched: no
task is lost or repeated, and no process, mount or file is left. The retrieval service of Search-R1 and of ToolOrchestra
is killed meanwhile. tests/e2e kills the evaluators, and a run that samples ahead is stopped in tests/unit/train.
"""

from __future__ import annotations

import ctypes
import http.client
import json
import os
import random
import signal
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.ruler.generate import generate
from benchmarks.ruler.niah import Niah
from core.data import write_jsonl
from core.data.files import write_records
from core.policy.server_process import find_free_port
from core.runs.files import read_jsonl
from core.text.tokenizer import load_tokenizer
from core.types import Task
from core.worlds import SPLITS, Split, find_world
from core.worlds.needles import KEYS, VALUES
from scripts.services import Service, run_services
from tests import kit
from tests.contract.test_presets import METHODS
from tests.e2e.conftest import Launcher
from tests.e2e.test_gateway import post
from tests.e2e.test_resume import assert_same_run

SIZES = {
    "warm_start.steps": 4, "warm_start.copy_steps": 1, "warm_start.batch_size": 4, "rollout.tasks_per_step": 2,
    "rollout.group_size": 2, "run.steps": 4, "run.eval_every": 2, "run.eval_tasks": 2, "run.save_every": 1,
    "run.record_every": 1, "run.seeds": [0], "model.device": "cpu", "model.dtype": "float32",
    "algorithm.entropy_coef": 0.01,  # changes weights where no reward differs
}  # fmt: skip
LOOKUP = {"run": "agentic.agent.world.run", "reward": "agentic.agent.rewards.exact", "max_turns": 3}
OWN = {
    "agentflow": {"model.max_model_len": 384, "warm_start.lookup_steps": 1},
    "compaction": {"warm_start.lookup_steps": 1},
    "agent": {"agent.agents": json.dumps({"lookup": LOOKUP})},
    # One rollout at a time: how long a workspace takes decides which calls share a batch, and so their last digits.
    "coding": {"warm_start.copy_steps": 2, "rollout.concurrency": 1, "coding.remember": 0},
    "codescout": {"rollout.concurrency": 1, "algorithm.overlong_filter": False},
    "search_r1": {"search_r1.max_retries": 30},
    "retool": {"rollout.concurrency": 1},
    "rlm": {"warm_start.lookup_steps": 1, "rollout.concurrency": 1},
    "toolorchestra": {
        "warm_start.copy_steps": None,
        "toolorchestra.search.max_retries": 30,
        "algorithm.min_group_std": 0,
    },
}
SERVERS = {"retrieval": "core.retrieval", "experts": "agentic.toolorchestra.scripted_experts"}
CLIENTS = 4
PACES = ("as it is", "stopped for a second", "slowed")


def make_arguments(method: str, folder: Path, preset: Path) -> list[str]:
    """Make the model and the data of a small run, and return its arguments."""
    if method == "memagent":
        return ["--preset", str(preset)]
    world = find_world(method)
    assert world is not None
    world.build_model(folder / "model")
    for split in SPLITS[:2]:
        tasks = world.draw_tasks(split, 6) if world.domains else draw_needles(folder / "model", split)
        write_jsonl(folder / f"{split}.jsonl", tasks, world.to_record)
    files = {"data.train": folder / "train.jsonl", "data.eval": folder / "dev.jsonl", "model.path": folder / "model"}
    values = {key: value for key, value in (SIZES | OWN.get(method, {}) | files).items() if value is not None}
    return ["--preset", "tiny", *(word for key, value in values.items() for word in ("--set", f"{key}={value}"))]


def draw_needles(model: Path, split: Split) -> Iterable[Task]:
    """Draw RULER's tasks, for a world without tasks of its own."""
    family = Niah(num_k=4, bare_question=True, value_type="words", key_words=KEYS, value_words=VALUES)
    return generate(family, length=448, count=6, tokenizer=load_tokenizer(model), split=split, budget="document")


@contextmanager
def serve_tools(method: str, folder: Path) -> Iterator[list[str]]:
    """Run a method's services, and yield the arguments that name them."""
    world = find_world(method)
    assert world is not None
    assert world.passages is not None
    write_records(folder / "corpus.jsonl", world.passages())
    own = {"retrieval": f"--threads 1 --corpus {folder / 'corpus.jsonl'}"}
    if method == "toolorchestra":
        own["experts"] = ""
    services = {
        name: Service(command=f"{{python}} -m {SERVERS[name]} --host {{host}} --port {{port}} {options}")
        for name, options in own.items()
    }
    with run_services(services, folder / "services") as addresses:
        (folder / "addresses.yaml").write_text(yaml.safe_dump(addresses))
        yield ["--set", f"{method}.addresses={folder / 'addresses.yaml'}"]


def list_servers(words: str) -> list[int]:
    """List the processes below this one whose command line has `words`: a keeper, and its server after it."""
    return [pid for pid in kit.list_descendants(os.getpid()) if words.encode() in read_command(pid)]


def read_command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def list_children() -> set[int]:
    """List the processes below this one that run. Orphans become ours, so nothing that a run starts can be missed."""
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    return set(filter(kit.is_running, kit.list_descendants(os.getpid())))


@contextmanager
def nothing_left() -> Iterator[None]:
    """Check that the block leaves no process and no mount."""
    children, mounts = list_children(), Path("/proc/self/mountinfo").read_text()
    yield
    kit.wait_until(lambda: list_children() == children)  # what sees its parent gone needs a moment to end
    assert Path("/proc/self/mountinfo").read_text() == mounts


def list_files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def pause(pid: int, rng: random.Random, pace: str) -> None:
    """Stop the process and let it go on, once for long or often for short."""
    for _ in range({"as it is": 0, "stopped for a second": 1, "slowed": 20}[pace]):
        os.kill(pid, signal.SIGSTOP)
        time.sleep(1.0 if pace == "stopped for a second" else 0.05)
        os.kill(pid, signal.SIGCONT)
        time.sleep(rng.uniform(0.0, 0.05))


class Killer:
    """Starts a process again and again until it ends by itself, and kills it at random moments until the deadline.

    `start` starts the process and returns its id. `seconds` is what it takes when nobody touches it.
    """

    def __init__(self, launcher: Launcher, name: str, long_s: float, seconds: float):
        self.launcher = launcher
        self.rng = random.Random(name)
        self.seconds = seconds
        self.deadline = time.monotonic() + long_s
        self.kills = 0
        self.paces = Counter[str]()

    @property
    def goes_on(self) -> bool:
        return time.monotonic() < self.deadline

    def run(self, start: Callable[[], int], meanwhile: Callable[[], None] = lambda: None) -> None:
        status = None
        while status != 0:
            pid, pace = start(), self.rng.choice(PACES)
            if self.goes_on:
                time.sleep(self.rng.uniform(0.02, 0.5) * self.seconds)  # a run that goes on has less to do
                meanwhile()
                pause(pid, self.rng, pace)
                self.launcher.kill(pid)
                self.paces[pace] += 1
            status = self.launcher.wait()
            assert status in (0, -signal.SIGKILL), self.launcher.log.read_text()
            self.kills += status != 0


@pytest.mark.timeout(7200)
@pytest.mark.parametrize("method", METHODS)
def test_a_run_ends_as_one_that_was_not_touched(
    method: str,
    long_s: float,
    launcher: Launcher,
    preset: Path,
    isolation: None,
    tmp_path: Path,
    tell: Callable[[str], None],
) -> None:
    arguments = make_arguments(method, tmp_path, preset)
    services: AbstractContextManager[list[str]] = nullcontext([])
    if method in ("search_r1", "toolorchestra"):
        services = serve_tools(method, tmp_path)
    lost_servers = 0
    with nothing_left(), services as addresses:
        untouched = tmp_path / "untouched"
        started = time.monotonic()
        launcher.start([*arguments, *addresses, "--out", str(untouched)], method)
        assert launcher.wait() == 0, launcher.log.read_text()
        killer, runs = Killer(launcher, method, long_s, time.monotonic() - started), 0

        def kill_retrieval() -> None:
            nonlocal lost_servers
            servers = list_servers(SERVERS["retrieval"])
            if addresses and servers and killer.rng.random() < 0.5:  # else it is being started again
                os.kill(killer.rng.choice(servers), signal.SIGKILL)
                lost_servers += 1

        while killer.goes_on:
            run = tmp_path / f"run-{runs}"
            killer.run(
                lambda run=run: launcher.start([*arguments, *addresses, "--out", str(run)], method), kill_retrieval
            )
            assert_same_run(run, untouched)
            assert list_files(run) == list_files(untouched)
            runs += 1
    also = f" and {lost_servers} of its service" if addresses else ""
    tell(f"{method}: {killer.kills} kills{also} in {runs} runs ({dict(killer.paces)}); lost 0, repeated 0, left 0")
    assert killer.kills > 0
    assert lost_servers > 0 or not addresses


@pytest.mark.timeout(7200)
def test_services_that_are_killed_answer_everything(long_s: float, tmp_path: Path, tell: Callable[[str], None]) -> None:
    """Clients ask until they are answered, while servers and their keepers are killed."""
    rng, kills, asked = random.Random(0), Counter[str](), Counter[str]()
    with nothing_left(), serve_tools("toolorchestra", tmp_path), ThreadPoolExecutor(CLIENTS) as pool:
        urls = yaml.safe_load((tmp_path / "addresses.yaml").read_text())
        deadline = time.monotonic() + long_s
        clients = [pool.submit(ask_services, urls, number, deadline) for number in range(CLIENTS)]
        while time.monotonic() < deadline:
            time.sleep(rng.uniform(0.5, 4.0))
            name = rng.choice([*SERVERS])
            if len(servers := list_servers(SERVERS[name])) == 2:
                keeper, server = sorted(servers)
                pause(server, rng, rng.choice(PACES))
                killed = rng.choice(("keeper", "server"))
                os.kill({"keeper": keeper, "server": server}[killed], signal.SIGKILL)
                kills[f"{name}'s {killed}"] += 1
        for client in clients:
            asked.update(client.result())
    tell(f"services: {kills.total()} kills {dict(kills)}; {asked['answers']} answers, lost 0, wrong 0, left 0")
    assert kills.total() > 0
    assert asked["answers"] > CLIENTS


def ask_services(urls: dict[str, str], number: int, deadline: float) -> Counter[str]:
    """Ask both services in turn until the deadline, each question until it is answered; check every answer."""
    rng, asked = random.Random(number), Counter[str]()
    while time.monotonic() < deadline:
        left, right = rng.randrange(1000), rng.randrange(1000)
        question = {"role": "user", "content": f"What is {left} plus {right}?"}
        reply = post_until_answered(
            f"{urls['experts']}/v1/chat/completions", {"model": "abacus", "messages": [question]}
        )
        assert f"boxed{{{left + right}}}" in reply["choices"][0]["message"]["content"]
        [[found]] = post_until_answered(f"{urls['retrieval']}/retrieve", {"queries": ["harbor"], "topk": 1})["result"]
        assert found["contents"]
        asked["answers"] += 2
    return asked


def post_until_answered(url: str, body: Any, limit_s: float = 300.0) -> Any:
    deadline = time.monotonic() + limit_s
    while True:
        try:
            return post(url, body)
        except (urllib.error.URLError, http.client.HTTPException, ConnectionError) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500:
                raise
            assert time.monotonic() < deadline, f"{url}: no answer within {limit_s:g} s"
            time.sleep(0.1)


@pytest.mark.timeout(7200)
def test_a_gateway_that_is_killed_records_every_session_once(
    long_s: float, launcher: Launcher, model: Path, tmp_path: Path, tell: Callable[[str], None]
) -> None:
    """Agents repeat what was not answered. A gateway knows the sessions that one before it has recorded."""
    port = find_free_port("127.0.0.1")
    arguments = ["--model", str(model), "--port", str(port), "--record", str(tmp_path / "record"), "--device", "cpu"]
    url = f"http://127.0.0.1:{port}"
    with nothing_left(), ThreadPoolExecutor(CLIENTS) as pool:
        rng, kills, deadline = random.Random(0), 0, time.monotonic() + long_s
        agents = [pool.submit(play_sessions, url, number, deadline) for number in range(CLIENTS)]
        while not all(agent.done() for agent in agents):
            pid = launcher.start(arguments, "gateway")
            if rng.random() < 0.7:  # else it may be killed before it serves
                kit.wait_until(lambda: is_healthy(url) or all(agent.done() for agent in agents), 600.0)
            wait(agents, rng.uniform(0.1, 4.0) if time.monotonic() < deadline else 600.0)
            pause(pid, rng, rng.choice(PACES))
            launcher.kill(pid)
            assert launcher.wait() == -signal.SIGKILL, launcher.log.read_text()
            kills += 1
        played = [name for agent in agents for name in agent.result()]
    recorded = list(read_jsonl(tmp_path / "record" / "sessions.jsonl"))
    assert Counter(record["session"] for record in recorded) == Counter(played), "a session is lost or there twice"
    assert all(any(any(row["loss_mask"]) for row in record["rows"]) for record in recorded)
    tell(f"gateway: {kills} kills; {len(played)} sessions, lost 0, repeated 0, left 0")
    assert played


def is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=10.0) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def play_sessions(url: str, number: int, deadline: float) -> list[str]:
    """Play sessions of two turns until the deadline, and finish each; return their names."""
    names = []
    while time.monotonic() < deadline:
        name = f"agent-{number}-task-{len(names)}"
        while not play_session(f"{url}/s/{name}"):
            pass
        names.append(name)
    return names


def play_session(url: str) -> bool:
    """Play one session. Return False if the gateway lost it before it was finished, so it must be played again."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "hello"}]
    try:
        for _ in range(2):
            body = {"model": "policy", "messages": messages, "max_tokens": 8}
            reply = post_until_answered(f"{url}/v1/chat/completions", body)
            messages += [reply["choices"][0]["message"], {"role": "user", "content": "go on"}]
        post_until_answered(f"{url}/finish", {})
    except urllib.error.HTTPError as error:
        if error.code not in (404, 410):
            raise
        return error.code == 410  # it was recorded, and the reply was lost
    return True
