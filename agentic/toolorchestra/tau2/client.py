"""Talks to the processes that have tau2: calls with a reply, and conversations as a queue of events.

A process starts at its first use. It ends with this one, because its stdin is then closed. A request to a process that
died raises EnvironmentFault, and the next conversation gets a new process.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentic.toolorchestra.environment import EnvironmentFault

WORKER = Path(__file__).with_name("worker.py")
Event = Mapping[str, Any]
_LIMIT_S = 120.0  # for a process to start, and for a call without a conversation


def check_paths(python: str, data: str | None) -> None:
    """Raise EnvironmentFault (`env_process`) if the interpreter or the folder does not exist."""
    if shutil.which(python) is None:
        raise _path_fault("python", python, "no such program")
    if data is not None and not Path(data).is_dir():
        raise _path_fault("data", data, "no such folder")


def _path_fault(place: str, path: str, fault: str) -> EnvironmentFault:
    wanted = {"python": "the interpreter that has tau2-bench", "data": "tau2-bench's `data` folder"}[place]
    return EnvironmentFault(
        "env_process",
        f"{path}: {fault}; name {wanted} with --tau2-{place}, or in a recipe with "
        f"toolorchestra.environment.options.{place} (benchmarks/tau2/README.md says how to get it)",
    )


class Mailbox:
    """Passes the events of one conversation or call from the reader's thread to the loop that waits for them."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    def put(self, event: Event) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def get(self) -> Event:
        return await self._events.get()


class Worker:
    """Runs one process. Its methods may be called from any loop."""

    def __init__(self, python: str, data: str | None):
        """Start the process. Raises EnvironmentFault (`env_process`) if it cannot be started."""
        check_paths(python, data)
        environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}  # or litellm asks the network at import
        if data is not None:
            environment["TAU2_DATA_DIR"] = str(Path(data).resolve())
        command = [python, "-P", str(WORKER)]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
            )
        except OSError as error:
            raise _path_fault("python", python, f"cannot be run ({error})") from None
        self._boxes: dict[str, Mailbox] = {}
        self._lock = threading.Lock()
        self._fatal: str | None = None
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def alive(self) -> bool:
        return self._fatal is None

    @property
    def load(self) -> int:
        return len(self._boxes)

    def open(self, key: str) -> Mailbox:
        box = self._boxes[key] = Mailbox()
        if self._fatal is not None:  # it died after it was picked
            box.put({"event": "error", "message": self._fatal})
        return box

    def forget(self, key: str) -> None:
        self._boxes.pop(key, None)

    def send(self, op: str, key: str, **fields: Any) -> None:
        """Send a request. Raises EnvironmentFault (`env_process`) if the process has died."""
        line = json.dumps({"op": op, "id": key, **fields}) + "\n"
        try:
            with self._lock:
                assert self._process.stdin is not None
                self._process.stdin.write(line)
                self._process.stdin.flush()
        except (OSError, ValueError):
            raise EnvironmentFault("env_process", self._fatal or "the tau2 process has ended") from None

    async def call(self, op: str, **fields: Any) -> Any:
        """Make one call and return its value. Raises EnvironmentFault."""
        key = uuid.uuid4().hex
        box = self.open(key)
        try:
            self.send(op, key, **fields)
            async with asyncio.timeout(_LIMIT_S):
                event = await box.get()
        except TimeoutError:
            raise EnvironmentFault("env_process", f"tau2 {op}: no reply within {_LIMIT_S:g} s") from None
        finally:
            self.forget(key)
        if event["event"] != "reply":
            raise EnvironmentFault("env_process", event["message"])
        return event["value"]

    def close(self) -> None:
        """End the process and the conversations that it still plays."""
        self._process.terminate()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        fatal = None
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:  # it died while it wrote, or something else writes there
                self._process.kill()
                break
            if event["event"] == "fatal":
                fatal = event["message"]
            elif box := self._boxes.get(event.get("id", "")):
                box.put(event)
        self._fatal = fatal or f"the tau2 process ended with exit code {self._process.wait()}; its stderr says why"
        for box in list(self._boxes.values()):
            box.put({"event": "error", "message": self._fatal})


class Workers:
    """Keeps `count` processes of the interpreter `python` (None: this one), with tau2's `data` folder (None: beside its
    sources). A conversation goes to the process with the fewest conversations."""

    def __init__(self, python: str | None = None, data: str | None = None, count: int = 1):
        self.python, self.data = python or sys.executable, data
        self._workers: list[Worker | None] = [None] * count

    def pick(self) -> Worker:
        """Choose a process, and start it if needed. Raises EnvironmentFault (`env_process`) if it cannot be started."""
        for place, worker in enumerate(self._workers):
            if worker is None or not worker.alive:
                self._workers[place] = fresh = Worker(self.python, self.data)
                return fresh
        return min((worker for worker in self._workers if worker is not None), key=lambda worker: worker.load)

    def close(self) -> None:
        for place, worker in enumerate(self._workers):
            if worker is not None:
                worker.close()
            self._workers[place] = None
