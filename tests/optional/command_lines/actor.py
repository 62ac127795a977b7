"""A policy that plays its lines to a program, and the scratch repository that the program works in."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from core.gateway import FinishedSession, Gateway, SessionSettings, serve_gateway
from core.runs.record import RolloutLog
from core.text.tokenizer import Ids, token_bytes
from core.types import Sampling
from scripts.serve_gateway import record_session
from tests import kit
from tests.unit.gateway.model import RandomModel
from tests.unit.gateway.templates import make_tokenizer

Line = str | Callable[[str], str]
"""One answer, or a function that makes it of the prompt."""

WRONG, RIGHT = "return price - tax", "return price + tax"
SESSION = "s"


class Actor(RandomModel):
    """Answers with the next line of the first part whose name stands in the prompt, in tokens of random pieces."""

    def __init__(self, parts: Mapping[str, Sequence[Line]]):
        super().__init__(make_tokenizer("qwen3"), "hermes")
        self.lines = {name: list(lines) for name, lines in parts.items()}

    def respond(self, prompt_ids: Ids, sampling: Sampling) -> list[int]:
        prompt = self.tokenizer.decode(prompt_ids)
        part = next(name for name in self.lines if name in prompt)
        line = self.lines[part].pop(0)
        return [*self.encode(line if isinstance(line, str) else line(prompt)), self.tokenizer.eos_token_id]

    @property
    def has_played(self) -> bool:
        """Whether no line is left."""
        return not any(self.lines.values())


def call(name: str, **arguments: object) -> str:
    """Write a call of a tool in Hermes' format."""
    return f"\n<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def find_program(name: str, package: str) -> str:
    """Return the path of a program; skip the test where it is not in PATH."""
    found = shutil.which(name)
    kit.require(found, f"needs {name} in PATH: {package}, outside of the repository")
    return str(found)


class Stage:
    """Holds a scratch repository with a fault in it, and the URL of a session in front of an actor."""

    def __init__(self, home: Path, gateway: Gateway, tokenizer: Any, url: str):
        self.home = home
        self.url = url
        self.repository = home / "repository"
        self.repository.mkdir()
        self.file = self.repository / "shop.py"
        self.file.write_text(f"def total(price, tax):\n    {WRONG}\n")
        self.record = home / "rollouts.jsonl.gz"
        self._gateway = gateway
        self._tokenizer = tokenizer

    async def run(self, *command: str, **environment: str) -> str:
        """Run a program in the repository, whose folder is its home; return what it wrote."""
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.repository,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), **environment},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output, _ = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
        written = output.decode(errors="replace")
        assert process.returncode == 0, written[-3000:]
        return written

    async def finish(self) -> FinishedSession:
        """Close the session and record it as `rollouts.jsonl.gz`; assert that the fault is mended."""
        assert RIGHT in self.file.read_text()
        finished = await self._gateway.finish_session(SESSION)
        log = RolloutLog(self.record, partial(token_bytes, self._tokenizer))
        log.append([record_session(finished, 0)])
        return finished


@asynccontextmanager
async def set_stage(home: Path, actor: Actor, model_roles: Mapping[str, str] | None = None) -> AsyncIterator[Stage]:
    """Serve an actor through a gateway, with one session."""
    settings = SessionSettings(max_context=1_000_000, model_roles=model_roles or {})
    gateway = Gateway({"policy": actor.policy}, actor.tokenizer, settings)
    async with serve_gateway(gateway) as url:
        gateway.open_session(SESSION, Sampling(max_new_tokens=4096))
        yield Stage(home, gateway, actor.tokenizer, f"{url}/s/{SESSION}")
