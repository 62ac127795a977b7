"""Calls SGLang's native `POST /generate` of a worker, of a router in front of workers, or of our embedded server.

Ids go out as `input_ids`, and both ids and log-probs come back from `meta_info.output_token_logprobs`; no text is read.
SGLang ends on the model's own eos ids as well as on `stop_token_ids`, and honours `seed` only when it is started with
`--enable-deterministic-inference`. A prompt id beyond the vocabulary ends a worker (0.5.23 on CPU). It is not caught
here: the wire does not say how large the vocabulary is.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import aiohttp

from core.policy.base import Fault, PolicyError, call_with_retries, classify_status, read_key_header
from core.types import Completion, Sampling

logger = logging.getLogger(__name__)

ROUTING_HEADER = "X-SMG-Routing-Key"
_ABORT_TIMEOUT_S = 5.0
_RETRIED: tuple[Fault, ...] = ("engine", "unavailable")


class SGLangPolicy:
    """A policy that asks the LLM at `url` (`http://host:port`).

    Each call may take `timeout_s` seconds, retries included. `engine` and `unavailable` faults are retried
    `max_retries` times, with a pause that doubles from `backoff_s` seconds; any other fault fails at once, for it would
    fail again. An attempt that is given up (cancelled, timed out, disconnected) is aborted on the workers, so no orphan
    goes on decoding. SGLang's router does not forward aborts, so they go to each of its workers.

    The key of a server that wants one is read from `api_key_file` at the first call.

    `session` travels as the header `routing_header`; a consistent-hashing router uses it to keep a conversation on one
    worker.

    The HTTP session opens on the first call, belongs to that event loop, and is closed by `close()` or `async with`.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = 600.0,
        max_retries: int = 3,
        backoff_s: float = 0.5,
        routing_header: str = ROUTING_HEADER,
        api_key_file: str | Path | None = None,
    ):
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"policy url {url!r} has no scheme; write it as http://host:port")
        self.url = url.rstrip("/")
        self._timeout_s = timeout_s
        self._max_retries = max_retries
        self._backoff_s = backoff_s
        self._routing_header = routing_header
        self._key_file = api_key_file
        self._session: aiohttp.ClientSession | None = None
        self._workers: list[str] | None = None
        self._aborts: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for aborts under way, then close the connections."""
        await asyncio.gather(*self._aborts)
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def generate(self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None) -> Completion:
        _check(prompt_ids, sampling)
        payload = _make_payload(prompt_ids, sampling)
        headers = {} if session is None else {self._routing_header: session}
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await call_with_retries(
                    lambda: self._post(payload, headers), _RETRIED, self._max_retries, self._backoff_s
                )
        except TimeoutError:
            raise PolicyError("timeout", f"{self.url}: no completion within {self._timeout_s:g} s") from None
        return _read_completion(reply, sampling, self.url)

    async def is_healthy(self, limit_s: float = 5.0) -> bool:
        """Return whether the server says within `limit_s` seconds that it is well."""
        try:
            async with asyncio.timeout(limit_s), self._http().get(f"{self.url}/health") as response:
                return response.status == 200
        except (TimeoutError, aiohttp.ClientError):
            return False

    async def update_weights(self, folder: Path, version: str, limit_s: float) -> None:
        """Make a worker sample from the weights in `folder`, which it reads from its own disk, and name them `version`.

        Raises:
            PolicyError: it did not.
        """
        where = f"{self.url}/update_weights_from_disk"
        body = {"model_path": str(folder.resolve()), "weight_version": version}
        try:
            async with asyncio.timeout(limit_s), self._http().post(where, json=body) as response:
                reply = (await response.read()).decode(errors="replace")
        except TimeoutError:
            raise PolicyError("timeout", f"{where}: no answer within {limit_s:g} s") from None
        except aiohttp.ClientError as error:
            raise PolicyError("unavailable", f"{where}: {type(error).__name__}: {error}") from error
        if response.status != 200:
            raise PolicyError(classify_status(response.status), f"{where}: HTTP {response.status}: {reply[:500]}")

    async def _post(self, payload: dict[str, Any], headers: dict[str, str]) -> Any:
        """Make one attempt under a new request id: SGLang refuses an id that is still in use."""
        rid = uuid.uuid4().hex
        try:
            async with self._http().post(
                f"{self.url}/generate", json={**payload, "rid": rid}, headers=headers
            ) as response:
                body = await response.read()
        except asyncio.CancelledError:
            await self._abort(rid)
            raise
        except aiohttp.ClientError as error:
            if not isinstance(error, aiohttp.ClientConnectorError):
                await self._abort(rid)
            raise PolicyError("unavailable", f"{self.url}: {type(error).__name__}: {error}") from error
        if response.status != 200:
            if response.status >= 500:  # a gateway may have given up on a worker that is still decoding
                await self._abort(rid)
            text = body.decode(errors="replace")[:500]
            raise PolicyError(classify_status(response.status, text), f"{self.url}: HTTP {response.status}: {text}")
        try:
            return json.loads(body)
        except ValueError as error:
            raise PolicyError("bad_reply", f"{self.url}: reply is not JSON ({error}): {body[:200]!r}") from error

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
            failures = [outcome for outcome in outcomes if outcome is not None]
        except (aiohttp.ClientError, TimeoutError, ValueError, TypeError, KeyError) as error:
            failures = [error]
        if failures:
            self._workers = None  # the fleet may have changed: ask again next time
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

    def _http(self) -> aiohttp.ClientSession:
        if self._session is None:
            # No limit of our own on connections: how many rollouts run at once is the caller's choice.
            self._session = aiohttp.ClientSession(
                headers=read_key_header(self._key_file),
                connector=aiohttp.TCPConnector(limit=0),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=30.0),
            )
        return self._session


def _check(prompt_ids: Sequence[int], sampling: Sampling) -> None:
    """Refuse what SGLang lets through: an empty prompt ends a worker, and a budget of 0 is answered with no token."""
    if not prompt_ids:
        raise PolicyError("bad_request", "input_ids: empty prompt")
    if min(prompt_ids) < 0:
        raise PolicyError("bad_request", f"input_ids: ids must not be negative, one is {min(prompt_ids)}")
    if sampling.max_new_tokens < 1:
        raise PolicyError("bad_request", f"max_new_tokens: must be at least 1, is {sampling.max_new_tokens}")
    if "" in sampling.stop:
        raise PolicyError("bad_request", "stop: a text must not be empty")


def _make_payload(prompt_ids: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    params: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "max_new_tokens": sampling.max_new_tokens,
        "stop_token_ids": list(sampling.stop_token_ids),
        "no_stop_trim": True,
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
    }
    if sampling.stop:
        params["stop"] = list(sampling.stop)
    if sampling.frequency_penalty:
        params["frequency_penalty"] = sampling.frequency_penalty
    if sampling.seed is not None:
        params["sampling_seed"] = sampling.seed
    return {"input_ids": list(prompt_ids), "sampling_params": params, "return_logprob": True}


def _read_completion(reply: Any, sampling: Sampling, url: str) -> Completion:
    """Read SGLang's reply. Raise PolicyError `bad_reply` if fields are missing or contradict each other."""
    try:
        meta = reply["meta_info"]
        finish_reason = meta["finish_reason"]["type"]
        # A request aborted before its first token has no log-prob field.
        entries = meta.get("output_token_logprobs", []) if finish_reason == "abort" else meta["output_token_logprobs"]
        logprobs = tuple(float(entry[0]) for entry in entries)
        token_ids = tuple(entry[1] for entry in entries)
        count = meta["completion_tokens"]
        weight_version = str(meta.get("weight_version", "0"))
        cached_tokens = int(meta.get("cached_tokens", 0))
        earlier = tuple((str(version), int(tokens)) for version, tokens in meta.get("earlier_weight_versions", ()))
    except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise PolicyError("bad_reply", f"{url}: reply lacks a field: {error!r} in {str(reply)[:300]}") from error

    def refuse(what: str) -> PolicyError:
        return PolicyError("bad_reply", f"{url}: {what}")

    if finish_reason not in ("stop", "length", "abort"):
        raise refuse(f"meta_info.finish_reason.type is {finish_reason!r}, not stop, length or abort")
    if count != len(token_ids):
        raise refuse(f"meta_info.completion_tokens is {count} but there are {len(token_ids)} output_token_logprobs")
    if len(token_ids) > sampling.max_new_tokens:
        raise refuse(f"{len(token_ids)} tokens came back, max_new_tokens was {sampling.max_new_tokens}")
    if not token_ids and finish_reason != "abort":
        raise refuse(f"no tokens came back though the request ended with {finish_reason!r}")
    if not all(type(token_id) is int and token_id >= 0 for token_id in token_ids):
        raise refuse("output_token_logprobs holds a token id that is not an integer >= 0")
    if not all(math.isfinite(logprob) for logprob in logprobs):
        raise refuse("output_token_logprobs holds a log-prob that is not finite")
    return Completion(token_ids, logprobs, finish_reason, weight_version, cached_tokens, earlier)
