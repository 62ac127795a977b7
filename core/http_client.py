"""Defines how an HTTP server is called: where it is, connections, a key, limits of time, retries."""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import random
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

import yaml

from core.options import RecipeError
from core.types import Fault, ServiceError

if TYPE_CHECKING:  # methods import this file, and aiohttp takes long
    import aiohttp

logger = logging.getLogger(__name__)
T = TypeVar("T")

# What engines say of a prompt that does not fit: SGLang `context length`, vLLM that or `model length`, ours the rest.
_TOO_LONG = re.compile(r"context length|maximum model length|the context of \d")


class HTTPClient:
    """Posts JSON to the server at `url` (`http://host:port`, with or without a path).

    `retry` takes at most `timeout_s` seconds, if that is given; a rollout's calls have its deadline. It repeats what
    ended with a fault of `retried` at most `max_retries` times; the pause doubles from `backoff_s` seconds up to
    `max_backoff_s`. One attempt may take `attempt_s` seconds. Every fault is raised as an `error`.

    The key of a server that wants one is read from `api_key_file` at the first call. The HTTP session opens on the
    first call, belongs to that event loop, and is closed by `close()` or `async with`.
    """

    error: ClassVar[type[ServiceError]] = ServiceError
    retried: ClassVar[Collection[Fault]] = ("engine", "unavailable")

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float | None = None,
        attempt_s: float | None = None,
        max_retries: int = 3,
        backoff_s: float = 0.5,
        max_backoff_s: float = math.inf,
        api_key_file: str | Path | None = None,
    ):
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"url {url!r} has no scheme; write it as http://HOST:PORT, and a path if it has one")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._attempt_s = attempt_s
        self._max_retries = max_retries
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._key_file = api_key_file
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Return what `attempt` returns; call it again after a fault that may pass.

        Raises:
            ServiceError: the last attempt failed, or there was no time left for another.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                for count in itertools.count(1):
                    try:
                        return await attempt()
                    except ServiceError as error:
                        if error.kind not in self.retried or not self._max_retries:
                            raise
                        if count > self._max_retries:
                            message = f"{error}, at the last of {count} attempts"
                            raise self.error(error.kind, message) from error
                        logger.warning("%s; retry %d of %d", error, count, self._max_retries)
                    # Jitter keeps a fleet of rollouts from coming back in one wave.
                    pause = min(self._backoff_s * 2 ** (count - 1), self._max_backoff_s)
                    await asyncio.sleep(pause * random.uniform(0.75, 1.25))
                raise AssertionError("the last attempt returns or raises")
        except TimeoutError:
            raise self.error("timeout", f"{self.url}: no reply within {self._timeout_s:g} s") from None

    async def post(self, path: str, body: Mapping[str, Any], headers: Mapping[str, str] | None = None) -> bytes:
        """Return what the server answers to one request.

        Raises:
            ServiceError: `url` is no URL, the key cannot be read, there was no answer, or its status is not 200.
        """
        import aiohttp

        where = f"{self.url}{path}"
        try:
            async with self._http().post(where, json=body, headers=headers) as response:
                reply = await response.read()
        except aiohttp.InvalidURL as error:
            raise self.error("bad_request", f"{where}: not a URL; write it as http://HOST:PORT/PATH") from error
        except (aiohttp.ClientError, TimeoutError) as error:  # `attempt_s` gives TimeoutError
            raise self.error("unavailable", f"{where}: {type(error).__name__}: {error}") from error
        if response.status != 200:
            text = reply.decode(errors="replace")[:500]
            raise self.error(classify_status(response.status, text), f"{where}: HTTP {response.status}: {text}")
        return reply

    def _http(self) -> aiohttp.ClientSession:
        import aiohttp

        if self._session is None:
            # No limit of our own on connections: how many calls run at once is the caller's choice. Engines close one
            # that idles for 5 s, which a loop that was busy with a training step does not see before it asks again.
            self._session = aiohttp.ClientSession(
                headers=self._read_key_header(),
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=4.0),
                timeout=aiohttp.ClientTimeout(total=self._attempt_s, sock_connect=30.0),
            )
        return self._session

    def _read_key_header(self) -> dict[str, str]:
        if self._key_file is None:
            return {}
        try:
            return {"Authorization": f"Bearer {Path(self._key_file).read_text(encoding='utf-8').strip()}"}
        except (OSError, UnicodeDecodeError) as error:
            raise self.error("bad_request", f"api_key_file: {error}; write the key into it") from error


def classify_status(status: int, text: str = "") -> Fault:
    """Return the fault that an HTTP status other than 200 means, with the text of the reply."""
    if status == 400 and _TOO_LONG.search(text):
        return "too_long"
    if status in (408, 429, 502, 503, 504):
        return "unavailable"
    return "bad_request" if 400 <= status < 500 else "engine"


def read_addresses(field: str, path: str | None) -> Callable[[str], str]:
    """Return a function that puts an address for each `{name}` of a URL; without a file it changes nothing.

    `path` is a YAML file, name -> URL, as `tokentrue serve services` writes it, and `field` the recipe's key of it.

    Raises:
        RecipeError: the file is missing or broken; later, that it lacks a service.
    """
    if path is None:
        return lambda url: url
    try:
        addresses = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise RecipeError(
            f"{field}: {error}; start the services first: `tokentrue run METHOD` does it, and so does `tokentrue "
            "serve services FILE --logs DIR -- COMMAND`"
        ) from error
    except (yaml.YAMLError, ValueError) as error:
        raise RecipeError(f"{path}: is no YAML ({error}); remove it and start the services again") from error
    if not isinstance(addresses, dict):
        raise RecipeError(f"{path}: must map names to URLs; remove it and start the services again")

    def fill(url: str) -> str:
        try:
            return url.format_map(addresses)
        except (KeyError, IndexError, ValueError) as error:
            names = ", ".join(addresses)
            raise RecipeError(f"{path}: no address of {error}, which {url!r} asks; it has {names}") from error

    return fill
