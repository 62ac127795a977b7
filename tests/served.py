"""Servers of a few lines, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from aiohttp import web

T = TypeVar("T")


@contextmanager
def served(app: web.Application) -> Iterator[str]:
    """The URL of `app`."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, loop).result()

    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return "http://{}:{}".format(*runner.addresses[0][:2])

    try:
        yield run(start())
    finally:
        run(runner.cleanup())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def sglang_reply(ids: Sequence[int]) -> web.Response:
    """What SGLang's /generate answers with these sampled ids, each with log-prob 0."""
    meta = {
        "finish_reason": {"type": "stop"},
        "output_token_logprobs": [[0.0, token, None] for token in ids],
        "completion_tokens": len(ids),
    }
    return web.json_response({"text": "", "meta_info": meta})


async def health(request: web.Request) -> web.Response:
    return web.Response()
