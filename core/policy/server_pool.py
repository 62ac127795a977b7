"""Spreads calls over the servers that sample for one trainer, and gives each of them the trainer's weights.

A session stays on the server that holds its prefix; it moves once, if that server has more than twice the work of
another. A reply from older weights than the call began with is refused. A server that fails, or answers with old
weights, is left out, and its calls go to the others. It comes back when it is healthy and has the present weights.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from core.policy.base import PolicyError
from core.policy.sglang import SGLangPolicy
from core.types import Completion, Sampling

logger = logging.getLogger(__name__)

MAX_SESSIONS = 65_536
"""Limits the sessions whose servers are remembered; the oldest is forgotten first, and may then move."""
MAX_ATTEMPTS = 4
"""Limits the servers that are tried for one call."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Say how long a server is left alone before it is asked again; the pause doubles each time."""


@dataclass(eq=False)
class _Server:
    """Holds what is known of one server. `work` counts the tokens of its calls that are not answered yet."""

    policy: SGLangPolicy
    work: int = 0
    up: bool = True
    revival: asyncio.Task[None] | None = field(default=None, repr=False)


@dataclass
class _Home:
    server: _Server
    moved: bool = False


class ServerPool:
    """A policy over servers that speak SGLang's protocol. `update_weights` comes before the first call.

    A call waits at most `timeout_s` seconds for its completion, and as long for a server when all are left out.
    """

    def __init__(self, urls: Sequence[str], *, timeout_s: float = 600.0):
        self._servers = [_Server(SGLangPolicy(url, timeout_s=timeout_s, max_retries=0)) for url in urls]
        self._timeout_s = timeout_s
        self._homes: OrderedDict[str, _Home] = OrderedDict()
        self._weights: tuple[Path, str] | None = None
        self._changing = asyncio.Lock()  # held while a server gets weights
        self._returned = asyncio.Condition()
        self.version = 0
        """Counts the weights that every server which is not left out has."""
        self.left_out = 0
        """Counts how often a server was left out."""

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        work = len(prompt_ids) + sampling.max_new_tokens
        for _ in range(MAX_ATTEMPTS):
            server, began = await self._choose(session), self.version
            server.work += work
            try:
                completion = await server.policy.generate(prompt_ids, sampling, session)
                if _as_number(completion.weight_version) >= began:
                    return completion
                error = PolicyError(
                    "engine", f"{server.policy.url}: answered with weights {completion.weight_version}, not {began}"
                )
            except PolicyError as failure:
                if failure.kind not in ("engine", "unavailable", "timeout"):
                    raise
                error = failure
            finally:
                server.work -= work
            self._leave_out(server, error)
        raise error

    async def update_weights(self, folder: Path, version: int) -> None:
        """Give every server the weights in `folder`. One that does not take them is left out until it does.

        Raises:
            PolicyError: no server took them.
        """
        async with self._changing:
            self._weights = (folder, str(version))
            servers = [server for server in self._servers if server.up]
            results = await asyncio.gather(
                *(server.policy.update_weights(folder, str(version)) for server in servers), return_exceptions=True
            )
            self.version = version
        failures = []
        for server, result in zip(servers, results, strict=True):
            if isinstance(result, PolicyError):
                failures.append(result)
                self._leave_out(server, result)
            elif isinstance(result, BaseException):
                raise result
        if servers and len(failures) == len(servers):
            raise failures[0]

    async def close(self) -> None:
        revivals = [server.revival for server in self._servers if server.revival is not None]
        for revival in revivals:
            revival.cancel()
        await asyncio.gather(*revivals, return_exceptions=True)
        await asyncio.gather(*(server.policy.close() for server in self._servers))

    async def _choose(self, session: str | None) -> _Server:
        """Return the server that a call goes to; wait for one while all are left out."""
        try:
            async with asyncio.timeout(self._timeout_s), self._returned:
                await self._returned.wait_for(lambda: any(server.up for server in self._servers))
        except TimeoutError:
            urls = ", ".join(server.policy.url for server in self._servers)
            raise PolicyError("unavailable", f"none of {urls} came back within {self._timeout_s:g} s") from None
        least = min((server for server in self._servers if server.up), key=lambda server: server.work)
        if session is None:
            return least
        home = self._homes.pop(session, None)
        if home is None or not home.server.up:
            home = _Home(least)
        elif not home.moved and home.server.work > 2 * least.work:
            home = _Home(least, moved=True)
        self._homes[session] = home  # the newest entry, so the last to be forgotten
        if len(self._homes) > MAX_SESSIONS:
            self._homes.popitem(last=False)
        return home.server

    def _leave_out(self, server: _Server, error: PolicyError) -> None:
        if server.up:
            logger.warning("left out: %s", error)
            self.left_out += 1
            server.up = False
            server.revival = asyncio.get_running_loop().create_task(self._revive(server))

    async def _revive(self, server: _Server) -> None:
        """Ask the server until it takes the present weights."""
        pause = FIRST_PAUSE_S
        while not server.up:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            async with self._changing:
                try:
                    if self._weights is not None:
                        await server.policy.update_weights(*self._weights)
                except PolicyError as error:
                    logger.info("still left out: %s", error)
                    continue
                server.up = True
        logger.warning("%s is back with weights %d", server.policy.url, self.version)
        async with self._returned:
            self._returned.notify_all()


def _as_number(version: str) -> int:
    """Return the number of a weight version, -1 for one that the pool has not given."""
    return int(version) if version.isdigit() else -1
