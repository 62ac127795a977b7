"""Makes the engine a Policy: coroutines await their completions while one driver steps the engine."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from core.engine.engine import Engine
from core.engine.scheduler import Request
from core.http_client import classify_status
from core.policy.base import PolicyError
from core.types import POLICY, Completion, Sampling

T = TypeVar("T")
CLOSED = "the policy was closed"


class EmbeddedPolicy:
    """Samples completions from an Engine in this process.

    `threaded` steps the engine in a worker thread, so that the event loop stays responsive (the server). Otherwise the
    steps run in the event loop itself, which is faster (the trainer).
    """

    def __init__(self, engine: Engine, *, threaded: bool = False, trained_as: str = POLICY):
        self.engine = engine
        self.trained_as = trained_as
        self.threaded = threaded
        self.failed = False
        """Says whether the last step failed."""
        self._waiting: dict[str, asyncio.Future[Completion]] = {}
        self._between_steps: list[Callable[[], None]] = []
        self._wake = asyncio.Event()
        self._ids = itertools.count()
        self._driver: asyncio.Task[None] | None = None
        self._closed = False

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None, request_id: str | None = None
    ) -> Completion:
        if self._closed:
            raise PolicyError("unavailable", CLOSED)
        request_id = request_id or f"p{next(self._ids)}"
        future: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()

        def submit() -> None:
            if future.cancelled():
                return
            try:
                self.engine.submit(prompt_ids, sampling, session, request_id)
            except ValueError as error:
                future.set_exception(PolicyError(classify_status(400, str(error)), str(error)))
            except Exception as error:  # fails this caller alone; all callers depend on the driver
                future.set_exception(error)
            else:
                self._waiting[request_id] = future

        def abort() -> None:
            if self._waiting.get(request_id) is future:
                self._abort_now(request_id)

        self._do(submit)
        try:
            return await future
        except asyncio.CancelledError:
            self._do(abort)
            raise

    def abort(self, request_id: str) -> None:
        """End a request with the tokens it has so far; its caller gets finish reason `abort`."""
        self._do(lambda: self._abort_now(request_id))

    def abort_all(self) -> None:
        def abort_each() -> None:
            for request_id in list(self._waiting):
                self._abort_now(request_id)

        self._do(abort_each)

    async def run_exclusive(self, function: Callable[[], T]) -> T:
        """Run `function` between two steps, when nothing else touches the engine."""
        if self._closed:
            raise PolicyError("unavailable", CLOSED)
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def call() -> None:
            if future.cancelled():
                return
            try:
                future.set_result(function())
            except Exception as error:
                future.set_exception(error)

        self._do(call)
        return await future

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Stop the driver; calls that still wait, and later ones, fail as `unavailable`."""
        self._closed = True
        if self._driver is not None:
            self._driver.cancel()
            await asyncio.gather(self._driver, return_exceptions=True)
            self._driver = None
        try:
            self._run_actions()
        finally:
            self._fail_all(PolicyError("unavailable", CLOSED))

    def _do(self, action: Callable[[], None]) -> None:
        """Let the driver run `action` before its next step; do nothing once the policy is closed."""
        if self._closed:
            return
        self._between_steps.append(action)
        self._wake.set()
        if self._driver is None or self._driver.done():
            self._driver = asyncio.get_running_loop().create_task(self._drive())

    async def _drive(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._between_steps or self.engine.has_work():
                try:
                    self._run_actions()
                    finished = await self._step() if (stepped := self.engine.has_work()) else []
                    self.failed = self.failed and not stepped
                except Exception as error:
                    self.failed = True
                    self._fail_all(PolicyError("engine", f"the engine failed: {error!r}"))
                    continue
                for request in finished:
                    self._resolve(request.request_id, request.completion)
                await asyncio.sleep(0)

    def _run_actions(self) -> None:
        while self._between_steps:
            self._between_steps.pop(0)()

    async def _step(self) -> list[Request]:
        """Step the engine. A driver that is cancelled waits for the end of the step: nothing else may touch it."""
        if not self.threaded:
            return self.engine.step()
        step = asyncio.get_running_loop().run_in_executor(None, self.engine.step)
        try:
            return await asyncio.shield(step)
        except asyncio.CancelledError:
            await asyncio.wait([step])
            raise

    def _abort_now(self, request_id: str) -> None:
        request = self.engine.abort(request_id)
        if request is not None:
            self._resolve(request_id, request.completion)

    def _resolve(self, request_id: str, completion: Completion | None) -> None:
        future = self._waiting.pop(request_id, None)
        if future is not None and completion is not None and not future.done():
            future.set_result(completion)

    def _fail_all(self, error: PolicyError) -> None:
        """Fail every caller with `error` and empty the engine: after a failed step its state is unknown."""
        self.engine.drop_all()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()
