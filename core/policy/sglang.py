"""Calls SGLang's native `POST /generate` of a worker, of a router in front of workers, or of our embedded server.

Ids go out as `input_ids`, and both ids and log-probs come back from `meta_info.output_token_logprobs`; no text is read.
SGLang ends on the model's own eos ids as well as on `stop_token_ids`, and honours `seed` only when it is started with
`--enable-deterministic-inference`. A prompt id beyond the vocabulary ends a worker (0.5.23 on CPU). It is not caught
here: the wire does not say how large the vocabulary is.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import uuid
from collections.abc import Sequence
from typing import Any

import aiohttp

from core.policy.base import PolicyError
from core.policy.http_policy import HTTPPolicy, make_params
from core.types import Completion, Sampling

logger = logging.getLogger(__name__)

ROUTING_HEADER = "X-SMG-Routing-Key"
_ABORT_TIMEOUT_S = 5.0


class SGLangPolicy(HTTPPolicy):
    """A policy over SGLang's protocol (core/policy/http_policy.py explains the options).

    An attempt that is given up is aborted on the workers, so no orphan goes on decoding. SGLang's router does not
    forward aborts, so they go to each of its workers. `session` travels as the header `X-SMG-Routing-Key`; a
    consistent-hashing router uses it to keep a conversation on one worker.
    """

    kept_back = 2

    def __init__(self, url: str, **options: Any):
        super().__init__(url, **options)
        self._workers: list[str] | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Wait for aborts under way, then close the connections."""
        await asyncio.gather(*self._aborts)
        await super().close()

    async def _load_weights(self, folder: str, version: str) -> None:
        await self._post("/update_weights_from_disk", {"model_path": folder, "weight_version": version})

    async def _attempt(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None) -> Completion:
        rid = uuid.uuid4().hex  # a new one: SGLang refuses an id that is still in use
        headers = None if session is None else {ROUTING_HEADER: session}
        params = {**make_params(sampling), "max_new_tokens": sampling.max_new_tokens, "no_stop_trim": True}
        if sampling.seed is not None:
            params["sampling_seed"] = sampling.seed
        body = {"rid": rid, "input_ids": list(prompt_ids), "sampling_params": params, "return_logprob": True}
        try:
            reply = await self._post("/generate", body, headers)
        except asyncio.CancelledError:
            await self._abort(rid)
            raise
        except PolicyError as error:
            # A gateway may have given up on a worker that is still decoding; one that was never reached has no request.
            if error.kind in ("engine", "unavailable") and not isinstance(
                error.__cause__, aiohttp.ClientConnectorError
            ):
                await self._abort(rid)
            raise
        return _read_completion(reply, len(prompt_ids), self.url)

    async def _abort(self, rid: str) -> None:
        """Wait until the workers know; if the caller is cancelled once more, the abort still goes out."""
        task = asyncio.create_task(self._abort_on_workers(rid))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)
        await asyncio.shield(task)

    async def _abort_on_workers(self, rid: str) -> None:
        try:
            async with asyncio.timeout(_ABORT_TIMEOUT_S):
                workers = await self._worker_urls()
                outcomes = await asyncio.gather(
                    *(self._abort_on_worker(worker, rid) for worker in workers), return_exceptions=True
                )
            failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
            if failures and workers != [self.url]:
                self._workers = None  # the fleet may have changed: ask again next time
            failures = [error for error in failures if not _is_refused(error)]
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError) as error:
            self._workers = None
            failures = [error]
        if failures:
            logger.warning("%s: request %s may still be running, its abort failed: %r", self.url, rid, failures)

    async def _abort_on_worker(self, worker: str, rid: str) -> None:
        async with self._http().post(f"{worker}/abort_request", json={"rid": rid}) as response:
            response.raise_for_status()

    async def _worker_urls(self) -> list[str]:
        """Return the router's workers, or the url itself if it is a worker (a worker has no `/workers`)."""
        if self._workers is None:
            async with self._http().get(f"{self.url}/workers") as response:
                if response.status in (404, 405):
                    self._workers = [self.url]
                else:
                    response.raise_for_status()
                    listing = json.loads(await response.read())["workers"]
                    self._workers = [worker["url"].rstrip("/") for worker in listing]
        return self._workers


def _is_refused(error: BaseException) -> bool:
    """Return whether nobody listens at a worker's address: it has ended, and its requests with it."""
    return isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno == errno.ECONNREFUSED


def _read_completion(reply: Any, prompt_tokens: int, url: str) -> Completion:
    try:
        meta = reply["meta_info"]
        finish_reason = meta["finish_reason"]["type"]
        # A request aborted before its first token has no log-prob field.
        entries = meta.get("output_token_logprobs", []) if finish_reason == "abort" else meta["output_token_logprobs"]
        logprobs = tuple(float(entry[0]) for entry in entries)
        token_ids = tuple(entry[1] for entry in entries)
        count = meta["completion_tokens"]
        weight_version = str(meta.get("weight_version", "0"))
        read = prompt_tokens if finish_reason == "abort" else meta.get("prompt_tokens", prompt_tokens)
        cached_tokens = None if (told := meta.get("cached_tokens")) is None else int(told)
        earlier = tuple((str(version), int(tokens)) for version, tokens in meta.get("earlier_weight_versions", ()))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise PolicyError("bad_reply", f"{url}: reply lacks a field: {error!r} in {str(reply)[:300]}") from error
    if count != len(token_ids):
        what = f"meta_info.completion_tokens is {count} but there are {len(token_ids)} output_token_logprobs"
        raise PolicyError("bad_reply", f"{url}: {what}")
    if read != prompt_tokens:  # with --allow-auto-truncate
        raise PolicyError("too_long", f"{url}: of a prompt of {prompt_tokens} tokens it read {read}; shorten it")
    return Completion(token_ids, logprobs, finish_reason, weight_version, cached_tokens, earlier)
