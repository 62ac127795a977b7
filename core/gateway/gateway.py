"""The gateway: agents that others wrote call the policy here as they would call OpenAI or Anthropic.

    gateway = Gateway({"policy": policy}, tokenizer, SessionSettings(max_context=8192))
    gateway.open_session("task-7", sampling)       # the agent's base URL: http://HOST:PORT/s/task-7/v1
    finished = await gateway.finish_session("task-7")    # its turns, with the exact tokens

A request names its session in the path, as the API key, or in the header X-Session-Id.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict, replace
from functools import partial
from typing import Any, Protocol

from aiohttp import web

from core.gateway import anthropic_messages, openai_chat, openai_responses, vllm_tokens
from core.gateway.bodies import Body, parse_body
from core.gateway.history import Answer
from core.gateway.messages import AgentRequest, GatewayError, refuse
from core.gateway.session import TURN_LIMITS, FinishedSession, GatewaySession
from core.gateway.settings import FROZEN, SessionSettings
from core.gateway.transcriber import Transcriber
from core.policy.base import Policy, PolicyError, Roles
from core.rollout.method import RolloutError
from core.rollout.rows import make_rows
from core.serving import make_app
from core.text.tokenizer import Tokenizer
from core.types import Fault, Sampling, Task
from core.vllm_wire import write_models

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 1 << 25
"""Bounds a request's body: 32 MB of JSON hold more text than any context."""

FIRST_PING_S = 0.2
"""Gives a request for a stream this time to fail with a status of its own. Then its stream begins."""

PING_S = 5.0
"""Bounds the seconds in which a stream says nothing: clients and proxies drop it after a minute or less."""

MAX_SESSIONS = 10_000
"""Bounds the open sessions of a gateway that opens them on request."""

SESSION_NAME = re.compile(r"[A-Za-z0-9._:@+~-]{1,200}")

ACP_HEADER, EDGE_TYPE, MAX_NAME = "X-ACP-Model-Request-ID", re.compile(r"[A-Za-z0-9._:-]{1,128}"), 128
"""Name requests and how they belong together, as agents of the Agent Client Protocol do."""

KEPT_CLOSED = 10_000
"""Bounds the closed sessions that are remembered, so that a late request gets 410 and not 404."""

MAX_KEPT_TOKENS = 100_000_000
"""Bounds by default the tokens of all open sessions of a gateway that opens them on request. A prompt
token that an earlier prompt shares takes 8 bytes, and a new one about 40."""

_STATUS: dict[Fault, int] = {"bad_request": 400, "too_long": 400, "unavailable": 503, "timeout": 504}


class Codec(Protocol):
    """Reads and writes the bodies of one protocol, as openai_chat and the modules beside it do."""

    LIMIT_STATUS: int
    PING: str

    def read_request(self, value: Any) -> AgentRequest: ...
    def write_reply(self, answers: Sequence[Answer], request: AgentRequest, created: int) -> dict[str, Any]: ...
    def write_events(self, answers: Sequence[Answer], request: AgentRequest, created: int) -> Iterator[str]: ...
    def write_error(self, error: GatewayError) -> dict[str, Any]: ...
    def write_error_event(self, error: GatewayError) -> str: ...


class Gateway:
    """Serves sessions over HTTP. `policies` maps roles to policies; the role `policy` is the one that is trained."""

    def __init__(
        self,
        policies: Mapping[str, Policy],
        tokenizer: Tokenizer,
        settings: SessionSettings,
        *,
        template_options: Mapping[str, Any] | None = None,
        open_on_request: bool = False,
        on_finish: Callable[[FinishedSession, Mapping[str, Any]], None] | None = None,
        closed: Iterable[str] = (),
        max_kept_tokens: int = MAX_KEPT_TOKENS,
        api_key: str | None = None,
    ):
        """Make a gateway without open sessions. With `open_on_request`, a request that names an unknown session
        opens it, unless the open sessions hold more than `max_kept_tokens` tokens. Above twice that number, requests to
        open sessions are refused too (503).

        The sessions `closed` were finished before, and requests to them get 410. `on_finish` gets each session that is
        finished over HTTP or was idle, and what the reply holds. With an `api_key`, every request but that for /health
        must carry it, and its session is named in the path or in X-Session-Id.
        """
        self.policies = dict(policies)
        self.transcriber = Transcriber(tokenizer, template_options)
        self.settings = settings
        self.counters: Counter[str] = Counter()
        self._open_on_request = open_on_request
        self._on_finish = on_finish
        self._api_key = api_key
        self._sessions: dict[str, GatewaySession] = {}
        self._closed: dict[str, None] = dict.fromkeys(deque(closed, KEPT_CLOSED))
        self._max_kept_tokens = max_kept_tokens

    def open_session(
        self,
        session_id: str,
        sampling: Sampling | None = None,
        policies: Mapping[str, Policy] | None = None,
        *,
        salt: str | None = None,
    ) -> GatewaySession:
        """Open a session. `sampling` holds for all its calls; without it, each request brings its own.

        `policies` replace those of the gateway. The ids that the agent sees follow from `salt`, or else from the
        session's name.

        Raises:
            ValueError: there is such a session, or its name has other characters than letters, digits and ._:@+~-.
        """
        if not SESSION_NAME.fullmatch(session_id):
            raise ValueError(f"session {session_id!r}: a name has 1 to 200 letters, digits or characters of ._:@+~-")
        if session_id in self._sessions or session_id in self._closed:
            raise ValueError(f"session {session_id!r} is open or was closed already")
        session = GatewaySession(
            session_id, policies or self.policies, self.transcriber, self.settings, sampling, salt or session_id
        )
        self._sessions[session_id] = session
        return session

    def open_rollout(
        self, session_id: str, task: Task, roles: Roles, sampling: Sampling, max_new_tokens: int
    ) -> GatewaySession:
        """Open the session of a rollout, which may ask each of its roles. Raises as `open_session`."""
        sampling = replace(sampling, max_new_tokens=max_new_tokens)
        # An agent may show ids of calls to the policy, so they must be the same when a run repeats.
        salt = f"{task.task_id} {sampling.seed}"
        return self.open_session(session_id, sampling, {role: roles[role] for role in roles}, salt=salt)

    async def finish_session(self, session_id: str) -> FinishedSession:
        """Close a session and return its turns and counters; requests that still run are cancelled.

        Raises:
            GatewayError: there is no such session, or it is closed.
        """
        finished = self._session(session_id, may_open=False).finish()
        del self._sessions[session_id]
        self._closed[session_id] = None
        while len(self._closed) > KEPT_CLOSED:
            del self._closed[next(iter(self._closed))]
        self.counters.update(finished.counters)
        return finished

    @property
    def app(self) -> web.Application:
        """Make the application. Run it with `handler_cancellation`, so that a lost client cancels its request."""
        app = make_app(max_body_bytes=MAX_BODY_BYTES, api_key=self._api_key)
        for base in ("/v1", "/s/{session}/v1", "/s/{session}"):
            app.add_routes(
                [
                    web.post(f"{base}/chat/completions", partial(self._serve, codec=openai_chat)),
                    web.post(f"{base}/responses", partial(self._serve, codec=openai_responses)),
                    web.post(f"{base}/messages", partial(self._serve, codec=anthropic_messages)),
                    web.post(f"{base}/messages/count_tokens", self._count_tokens),
                    web.get(f"{base}/models", self._list_models),
                ]
            )
        for base in ("", "/s/{session}"):
            app.router.add_post(f"{base}/inference/v1/generate", partial(self._serve, codec=vllm_tokens))
        app.router.add_post("/s/{session}/finish", self._finish)
        app.router.add_get("/health", self._report_health)
        if self._open_on_request:
            app.cleanup_ctx.append(self._watch_sessions)
        return app

    def _session(self, session_id: str, *, may_open: bool) -> GatewaySession:
        if session_id in self._sessions:
            return self._sessions[session_id]
        if session_id in self._closed:
            raise GatewayError(410, "session_closed", f"session {session_id!r} is closed")
        if session_id and self._open_on_request and may_open:
            if len(self._sessions) >= MAX_SESSIONS:
                raise GatewayError(503, "too_many_sessions", f"{MAX_SESSIONS} sessions are open; finish some")
            try:
                return self.open_session(session_id)
            except ValueError as error:
                raise GatewayError(400, "bad_session", str(error)) from error
        raise GatewayError(
            404, "session_not_found", f"there is no session {session_id!r}; name it in the path: /s/SESSION/v1"
        )

    def _read_name(self, http: web.Request) -> str:
        """Return the session that a request names in its path, in a header or, if we have no key, as its API key."""
        headers = http.headers
        named = http.match_info.get("session") or headers.get("X-Session-Id") or ""
        if named or self._api_key is not None:
            return named
        return headers.get("Authorization", "").removeprefix("Bearer ").strip() or headers.get("X-Api-Key") or ""

    def _find_session(self, http: web.Request) -> GatewaySession:
        return self._session(self._read_name(http), may_open=True)

    async def _serve(self, http: web.Request, codec: Codec) -> web.StreamResponse:
        """Answer one request: read it, sample, and write the answers whole or as events."""
        # A request that cannot be read opens no session, but is counted in one that is open.
        session = self._sessions.get(self._read_name(http))
        stream: web.StreamResponse | None = None
        try:
            request = codec.read_request(parse_body(await http.read()))
            self._check_memory(self._max_kept_tokens * (1 if session is None else 2))
            session = self._find_session(http)
            if http.headers.get("X-Stainless-Retry-Count", "0") not in ("", "0"):
                request = replace(request, is_retry=True)
            if request.stream:
                async with keep_alive(http, codec.PING) as stream:
                    answers = await session.answer_all(request)
            else:
                answers = await session.answer_all(request)
        except Exception as error:
            failure = describe_failure(error)
            refused = f"refused_{failure.kind}"
            if session is None or session.closed:
                self.counters[refused] += 1
            else:
                session.note(refused)
            if stream is not None and stream.prepared:
                await stream.write(codec.write_error_event(failure).encode())
                await stream.write_eof()
                return stream
            status = codec.LIMIT_STATUS if failure.kind in TURN_LIMITS else failure.status
            headers = {"x-should-retry": "false"} if status < 500 else {}
            return web.json_response(codec.write_error(failure), status=status, headers=headers)
        created = int(time.time())
        if named := http.headers.get(ACP_HEADER):
            session.name_request(named[:MAX_NAME], answers[0])
        # Before the last byte goes out: the client's next request may be read before this handler goes on.
        for answer in answers:
            session.mark_delivered(answer)
        response: web.StreamResponse
        try:
            if stream is None:
                response = web.json_response(codec.write_reply(answers, request, created))
                await response.prepare(http)
            else:
                response = stream
                if not response.prepared:
                    await response.prepare(http)
                for event in codec.write_events(answers, request, created):
                    await response.write(event.encode())
            await response.write_eof()
        except BaseException:
            for answer in answers:
                session.mark_lost(answer)
            raise
        return response

    def _check_memory(self, limit: int) -> None:
        kept = sum(session.kept_tokens for session in self._sessions.values()) if self._open_on_request else 0
        if kept > limit:
            raise GatewayError(
                503, "too_many_tokens", f"{len(self._sessions)} open sessions hold {kept} tokens; finish some"
            )

    async def _count_tokens(self, http: web.Request) -> web.Response:
        try:
            request = anthropic_messages.read_request(parse_body(await http.read()), counting=True)
            known = self._read_name(http) in self._sessions
            session = self._find_session(http)
            if not known:  # counting opens none: it would be recorded, and closed as idle
                del self._sessions[session.session_id]
            return web.json_response({"input_tokens": len(session.render_prompt(request))})
        except Exception as error:
            failure = describe_failure(error)
            return web.json_response(anthropic_messages.write_error(failure), status=failure.status)

    async def _list_models(self, http: web.Request) -> web.Response:
        try:
            roles: Collection[str] = self._session(self._read_name(http), may_open=False).roles
        except GatewayError:  # whoever looks around opens none: it would be recorded, and closed as idle
            roles = self.policies
        names = ["policy" if role == "policy" else f"{FROZEN}{role}" for role in roles]
        return web.json_response(write_models(names, self.settings.max_context))

    async def _finish(self, http: web.Request) -> web.Response:
        try:
            name = http.match_info["session"]
            body = Body(parse_body(await http.read() or b"{}"))
            for kind, source, target in body.take_each("edges", _read_edge):
                self._session(name, may_open=False).add_edge(kind, source, target)
            return web.json_response(await self._finish_and_tell(name))
        except GatewayError as error:
            return web.json_response(openai_chat.write_error(error), status=error.status)

    async def _finish_and_tell(self, session_id: str) -> dict[str, Any]:
        finished = await self.finish_session(session_id)
        written = write_finished(finished)
        if self._on_finish is not None:
            try:
                self._on_finish(finished, written)
            except OSError as error:
                self._closed.pop(session_id, None)  # 410 would say that it was recorded
                raise GatewayError(500, "not_recorded", f"session {session_id!r} is lost: {error}") from error
        return written

    async def _watch_sessions(self, _: web.Application) -> AsyncIterator[None]:
        """Finish idle sessions while the application runs."""
        watch = asyncio.create_task(self._finish_idle_sessions())
        yield
        watch.cancel()
        with suppress(asyncio.CancelledError):
            await watch

    async def _finish_idle_sessions(self) -> None:
        limit = self.settings.max_idle_s
        while True:
            await asyncio.sleep(limit / 4)
            for session_id in [name for name, session in self._sessions.items() if session.idle_s >= limit]:
                logger.warning("session %r had no request for %g s and is finished", session_id, limit)
                self.counters["idle"] += 1
                try:
                    await self._finish_and_tell(session_id)
                except GatewayError as error:
                    logger.error("%s", error)

    async def _report_health(self, _: web.Request) -> web.Response:
        return web.json_response({"sessions": len(self._sessions), "counters": dict(self.counters)})


def _read_edge(value: Any, path: str) -> tuple[str, str, str]:
    """Read one of ACP's semantic edges."""
    edge = Body(value, path)
    kind = edge.need("type", str)
    if not EDGE_TYPE.fullmatch(kind):
        raise refuse(edge.at("type"), "must have 1 to 128 letters, digits or characters of ._:-")
    return kind, edge.need("source_request_id", str), edge.need("target_request_id", str)


@asynccontextmanager
async def keep_alive(http: web.Request, ping: str) -> AsyncIterator[web.StreamResponse]:
    """Yield a stream that begins, and says `ping` every PING_S seconds, if the block takes more than FIRST_PING_S."""
    stream = web.StreamResponse(
        headers={"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-store"}
    )
    done = asyncio.Event()

    async def write_pings() -> None:
        pause = FIRST_PING_S
        with suppress(ConnectionError):  # who wrote the request is told by what follows the pings
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await done.wait()
                    return
                if not stream.prepared:
                    await stream.prepare(http)
                await stream.write(ping.encode())
                pause = PING_S

    pings = asyncio.create_task(write_pings())
    try:
        yield stream
    finally:
        done.set()
        await pings


def describe_failure(error: Exception) -> GatewayError:
    """Return any failure of a request as a GatewayError."""
    if isinstance(error, GatewayError):
        return error
    if isinstance(error, PolicyError):
        return GatewayError(_STATUS.get(error.kind, 500), f"policy_{error.kind}", str(error))
    if isinstance(error, RolloutError):  # slime gave the rollout up: no call of it will be answered
        return GatewayError(410, f"rollout_{error.kind}", str(error))
    if isinstance(error, web.HTTPException):
        return GatewayError(error.status, "http", error.text or error.reason)
    logger.error("a request failed", exc_info=error)
    return GatewayError(500, "internal", f"{type(error).__name__}: {error}"[:300])


def write_finished(finished: FinishedSession) -> dict[str, Any]:
    """Return what `POST /s/<id>/finish` replies: the turns, the training rows, and the counters."""
    return {
        "turns": [asdict(turn) for turn in finished.turns],
        "rows": [
            {"tokens": row.tokens, "loss_mask": row.loss_mask, "logprobs": row.logprobs}
            for row in make_rows(finished.turns, "segment")
        ],
        "counters": finished.counters,
    }


@asynccontextmanager
async def serve_gateway(gateway: Gateway, listener: socket.socket | None = None) -> AsyncIterator[str]:
    """Serve a gateway in this event loop while the block runs; yield its URL.

    Without a listening socket it takes a free port of 127.0.0.1.
    """
    runner = web.AppRunner(gateway.app, handler_cancellation=True, access_log=None)
    await runner.setup()
    try:
        site = web.SockSite(runner, listener or socket.create_server(("127.0.0.1", 0), backlog=1024))
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await runner.cleanup()
