"""Spreads calls over the servers that sample for one trainer, and gives each of them the trainer's weights.

A session stays on the server that holds its prefix; it moves once, if that server has more than twice the work of
another, and where that server takes long over new weights. While a server gets weights, and until they are checked, it
gets no calls. A reply from older weights than the call began with is refused, and so is one from weights that failed
their check. A server is left out if a call ends there as `engine`, `unavailable` or `timeout`, or its reply is refused;
its calls go to the others. It comes back when it is healthy and has the present weights.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from core.policy.base import Policy, PolicyError
from core.policy.http_policy import HTTPPolicy
from core.policy.servers import make_server_policy
from core.types import Completion, Sampling

logger = logging.getLogger(__name__)

Check = Callable[[Policy], Awaitable[None]]
"""Raises PolicyError unless a server samples from the weights that it was given."""

MAX_SESSIONS = 65_536
"""Limits the sessions whose servers are remembered; the oldest is forgotten first, and may then move."""
MAX_ATTEMPTS = 4
"""Limits the servers that are tried for one call."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
"""Say how long a server is left alone before it is asked again; the pause doubles each time."""
UPDATE_S = 300.0
"""Limits the seconds that a server may take to read weights."""


@dataclass(eq=False)
class _Server:
    """Holds what is known of one server. `work` counts the tokens of its calls that are not answered yet.

    `changing` says that it is getting weights, or that these are being checked; `version` counts the newest weights
    that passed.
    """

    policy: HTTPPolicy
    work: int = 0
    up: bool = True
    changing: bool = False
    version: int = -1
    revival: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def takes_calls(self) -> bool:
        return self.up and not self.changing


@dataclass
class _Home:
    server: _Server
    moved: bool = False


class ServerPool:
    """A policy over servers (core/policy/servers.py reads their URLs). `update_weights` comes before the first call.

    An attempt of a call waits at most `timeout_s` seconds for its completion, and as long for a server that takes
    calls. The version that a server is given names this pool too, so that weights of another run, or those that a
    server was started with, are never taken for its own. All servers have the key in `api_key_file`, if they have one.
    """

    def __init__(self, urls: Sequence[str], *, timeout_s: float, api_key_file: str | Path | None = None):
        options = {"timeout_s": timeout_s, "max_retries": 0, "api_key_file": api_key_file}
        self._servers = [_Server(make_server_policy(url, **options)) for url in urls]
        self._timeout_s = timeout_s
        self._homes: OrderedDict[str, _Home] = OrderedDict()
        self._id = uuid.uuid4().hex
        self._weights: tuple[Path, int] | None = None
        self._check: Check | None = None
        self._changing = asyncio.Lock()  # held while the servers get new weights
        self._changed = asyncio.Condition()  # told when a server got weights, or did not
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
                completion = self._name_versions(await server.policy.generate(prompt_ids, sampling, session))
                if not completion.token_ids:  # such as of an aborted call, for which vLLM names no weights
                    return replace(completion, weight_version=str(server.version), earlier_versions=())
                if await self._has_right_weights(server, completion, began):
                    return completion
                error = PolicyError(
                    "engine", f"{server.policy.url}: sampled with other weights than it was given, or with older ones"
                )
            except PolicyError as failure:
                if failure.kind not in ("engine", "unavailable", "timeout"):
                    raise
                error = failure
            finally:
                server.work -= work
            self._leave_out(server, error)
        raise error

    async def _has_right_weights(self, server: _Server, completion: Completion, began: int) -> bool:
        """Return whether no token is from weights older than `began`, of others, or that failed their check."""
        versions = [int(version) for version, _ in completion.count_versions()]
        if max(versions) > server.version:  # these weights came during the call
            await self._wait_until(lambda: not server.changing)
        return began <= min(versions) and max(versions) <= server.version

    async def update_weights(self, folder: Path, version: int, check: Check | None = None) -> None:
        """Give every server the weights in `folder`. One that does not take them is left out until it does.

        `check` looks at a server that says it has them.

        Raises:
            PolicyError: these are the first weights, and no server took them.
        """
        async with self._changing:
            first = self._weights is None
            self._weights, self._check = (folder, version), check
            servers = [server for server in self._servers if server.up]
            results = await asyncio.gather(*map(self._give_weights, servers), return_exceptions=True)
            self.version = version
        failures = [result for result in results if result is not None]
        for failure in failures:
            if not isinstance(failure, PolicyError) or (first and len(failures) == len(servers)):
                raise failure

    async def _give_weights(self, server: _Server) -> None:
        """Give a server the present weights, and check it. One that fails is left out."""
        server.changing = True
        try:
            if self._weights is not None:
                folder, version = self._weights
                await server.policy.update_weights(folder, f"{self._id}-{version}", UPDATE_S)
                if self._check is not None:
                    await self._check(server.policy)
                server.version = version
        except PolicyError as error:
            self._leave_out(server, error)
            raise
        finally:
            server.changing = False
            await self._tell_of_change()

    async def close(self) -> None:
        revivals = [server.revival for server in self._servers if server.revival is not None]
        for revival in revivals:
            revival.cancel()
        await asyncio.gather(*revivals, return_exceptions=True)
        await asyncio.gather(*(server.policy.close() for server in self._servers))

    async def _choose(self, session: str | None) -> _Server:
        """Return the server that a call goes to; wait for its home half the time, then for any that takes calls."""
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    async with asyncio.timeout(self._timeout_s / 2):
                        await self._wait_until(lambda: self._can_choose(session))
                except TimeoutError:
                    self._homes.pop(session or "", None)
                    await self._wait_until(lambda: self._can_choose(session))
        except TimeoutError:
            urls = ", ".join(server.policy.url for server in self._servers)
            raise PolicyError("unavailable", f"none of {urls} came back within {self._timeout_s:g} s") from None
        least = min((server for server in self._servers if server.takes_calls), key=lambda server: server.work)
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

    def _can_choose(self, session: str | None) -> bool:
        home = None if session is None else self._homes.get(session)
        choice = [home.server] if home is not None and home.server.up else self._servers
        return any(server.takes_calls for server in choice)

    async def _wait_until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds that only a change of a server can make true."""
        async with self._changed:
            await self._changed.wait_for(holds)

    async def _tell_of_change(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _name_versions(self, completion: Completion) -> Completion:
        """Return the completion with the steps of the trainer as its versions, -1 stands for others' weights."""

        def step(version: str) -> str:
            pool, _, number = version.rpartition("-")
            return number if pool == self._id else "-1"

        earlier = tuple((step(version), count) for version, count in completion.earlier_versions)
        return replace(completion, weight_version=step(completion.weight_version), earlier_versions=earlier)

    def _leave_out(self, server: _Server, error: PolicyError) -> None:
        if server.up:
            logger.warning("left out: %s", error)
            self.left_out += 1
            server.up = False
            server.revival = asyncio.get_running_loop().create_task(self._revive(server))

    async def _revive(self, server: _Server) -> None:
        """Ask the server until it takes the present weights. One that hangs must not hold up the others."""
        pause = FIRST_PAUSE_S
        while not server.up:
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)
            try:
                if await server.policy.is_healthy():
                    await self._give_weights(server)
                    # Newer weights may have come meanwhile.
                    server.up = self._weights is None or server.version == self._weights[1]
            except Exception as error:  # a check fails in ways of its own, such as by a token that the model has not
                logger.info("still left out: %s: %r", server.policy.url, error)
        logger.warning("%s is back with weights %d", server.policy.url, self.version)
        await self._tell_of_change()
