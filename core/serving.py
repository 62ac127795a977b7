"""What every HTTP server of this repository does before it works on a request.

Our servers answer programs, never web pages. Without an API key a server answers this machine alone: it listens on a
loopback address, and requests must name one. Otherwise a web page could reach it under a name of its own (DNS
rebinding).
"""

from __future__ import annotations

import argparse
import asyncio
import errno
import hmac
import ipaddress
import re
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.http import HttpProcessingError
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from core.options import Port, argparse_type
from core.types import Sampling

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BODY_TIMEOUT_S = 60.0
"""Bounds the time in which a body must arrive."""

MAX_REQUESTS = 4096
"""Bounds the requests that a server works on at once: more would only wait, each with its body in memory."""

_OFF_AT_ONE = frozenset({"n", "repetition_penalty"})

_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d{1,5})?", re.IGNORECASE)


class ListenError(ValueError):
    """Says that a server may not listen as asked; the message names the fix."""


def make_app(
    *,
    max_body_bytes: int,
    api_key: str | None = None,
    body_timeout_s: float = BODY_TIMEOUT_S,
    middlewares: Sequence[Any] = (),
) -> web.Application:
    """Make an application that refuses a request unless it is well sent. A handler finds the body in memory.

    Refused are: requests of web pages (403), requests for another host (403, without `api_key`), requests without the
    key (401), bodies that are not JSON (415), too large (413) or late (408), and what comes while too many wait (503).
    Every refusal is `{"error": {"message": text}}`. `GET /health` needs no key.
    """
    working = 0

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal working
        working += 1
        try:
            try:
                check_sender(request, api_key)
                if working > MAX_REQUESTS and request.can_read_body:
                    raise web.HTTPServiceUnavailable(text=f"{MAX_REQUESTS} requests wait already; try again later")
                await read_body(request, body_timeout_s)
            except web.HTTPException as refusal:
                return web.json_response({"error": {"message": refusal.text}}, status=refusal.status)
            return await handler(request)
        finally:
            working -= 1

    return web.Application(middlewares=[check, *middlewares], client_max_size=max_body_bytes)


def check_sender(request: web.Request, api_key: str | None) -> None:
    """Raise an HTTPException for a request that its headers refuse."""
    headers = request.headers
    if headers.get("Origin") or headers.get("Sec-Fetch-Site"):  # browsers name the page, and programs do not
        raise web.HTTPForbidden(text="requests of web pages are refused")
    if api_key is None:
        if not _LOOPBACK.fullmatch(headers.get("Host", "")):
            raise web.HTTPForbidden(
                text=f"host {headers.get('Host', '')[:100]!r}: this server answers to 127.0.0.1 and localhost alone"
            )
    elif not _holds_key(request, api_key) and (request.method, request.path) != ("GET", "/health"):
        raise web.HTTPUnauthorized(text="send the server's key as `Authorization: Bearer KEY`")
    # A page may post text and forms to any address without asking it first, but not JSON.
    kind = request.content_type
    if request.can_read_body and kind != "application/json" and not kind.endswith("+json"):
        raise web.HTTPUnsupportedMediaType(text=f"content type {kind[:100]!r}: send application/json")


def _holds_key(request: web.Request, api_key: str) -> bool:
    bearer = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
    sent = (bearer, request.headers.get("X-Api-Key", ""))
    return any(hmac.compare_digest(value.encode(errors="replace"), api_key.encode()) for value in sent)


async def read_body(request: web.Request, timeout_s: float) -> None:
    """Read the body, which `request` keeps. Raise an HTTPException if it is late, too large or broken."""
    try:
        async with asyncio.timeout(timeout_s):
            await request.read()
    except TimeoutError:
        raise web.HTTPRequestTimeout(text=f"the body did not arrive within {timeout_s:g} s") from None
    except web.HTTPRequestEntityTooLarge:
        limit = request.client_max_size
        raise web.HTTPRequestEntityTooLarge(limit, text=f"body: more than {limit} bytes; send less at once") from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise web.HTTPBadRequest(text=f"body: cannot be read ({type(error).__name__})") from error


class StrictBody(BaseModel):
    """The body of a request. A field that it does not know is refused, unless it is off."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _drop_unused_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        unused = {name: value for name, value in data.items() if name not in cls.model_fields}
        off = {name for name, value in unused.items() if not value or (value == 1 and name in _OFF_AT_ONE)}
        return {name: value for name, value in data.items() if name not in off}


class SamplingBody(StrictBody):
    """The parameters of sampling that SGLang's and vLLM's wires share."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    stop_token_ids: list[int] | None = None
    stop: str | list[str] | None = None
    frequency_penalty: float = 0.0
    # These change only the text.
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end a completion."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    def make_sampling(self, max_new_tokens: int, seed: int | None) -> Sampling:
        shared = self.model_dump(include={"temperature", "top_p", "top_k", "frequency_penalty"})
        ids = tuple(self.stop_token_ids or ())
        return Sampling(**shared, max_new_tokens=max_new_tokens, stop_token_ids=ids, seed=seed, stop=self.stops)


def describe_invalid(error: ValidationError) -> str:
    """Describe the first thing that is wrong with a body as `field: what is wrong`."""
    first = error.errors(include_url=False, include_input=False)[0]
    what = "not implemented by this server" if first["type"] == "extra_forbidden" else first["msg"]
    return f"{'.'.join(map(str, first['loc'])) or 'body'}: {what}"


def listen(host: str, port: int) -> socket.socket:
    """Open a listening socket before a model or an index loads, so that a busy port ends the program at once."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror or error})"
        sys.exit(f"port {port} on {host} {reason}: stop the other server, or choose another with --port")


def add_address_options(parser: argparse.ArgumentParser, port: int) -> None:
    """Add the options of where a server listens, by default at `port` of this machine alone."""
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=argparse_type(Port), default=port, help="0 takes a free one")
    parser.add_argument(
        "--api-key-file",
        type=Path,
        metavar="FILE",
        help="holds the key that requests must carry; a --host beyond 127.0.0.1 needs it",
    )


def serve_app(args: argparse.Namespace, open_app: Callable[[str | None], tuple[web.Application, str]]) -> None:
    """Serve until the process is ended. `open_app` takes the API key; it returns the application and what it serves.

    A ValueError, such as that of `read_api_key`, ends the process with its message.
    """
    with listen(args.host, args.port) as listener:
        try:
            app, about = open_app(read_api_key(args.host, args.api_key_file))
        except ValueError as error:
            sys.exit(str(error))
        host, port = listener.getsockname()[:2]
        print(f"serving {about} on http://{host}:{port}", flush=True)
        web.run_app(app, sock=listener, handler_cancellation=True, access_log=None, print=None)


def read_api_key(host: str, file: Path | None) -> str | None:
    """Return the key for a server that listens on `host`, None if it needs none.

    Raises:
        ListenError: the file holds no key, or there is no file although other machines can reach `host`.
    """
    if file is not None:
        try:
            key = file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ListenError(f"--api-key-file {file}: {error}; write the key into it") from error
        if not key:
            raise ListenError(f"--api-key-file {file}: is empty; write the key into it")
        return key
    if not is_loopback(host):
        raise ListenError(
            f"--host {host}: other machines would reach this server; give a key with --api-key-file, or listen on "
            "127.0.0.1"
        )
    return None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach what listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
