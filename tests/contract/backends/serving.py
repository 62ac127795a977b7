"""Our server with a script in place of a model, for methods whose calls an untrained model would never form."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from random import Random
from types import SimpleNamespace
from typing import Any, cast

from core.engine.policy import EmbeddedPolicy
from core.engine.server import Server
from core.policy.scripted import ScriptedPolicy
from core.text.tokenizer import encode_text
from core.types import Completion, Sampling
from tests.kit import serve_app

Reply = Callable[[str, Random], str]
"""(the prompt's text, chance drawn from prompt and seed) -> what the policy writes."""
SLOW = "slowly"
"""A prompt with this word is answered after a minute."""
LATENCY_S = 0.01


class ScriptedEngine(ScriptedPolicy):
    """A script under the names that the server calls of an EmbeddedPolicy."""

    def __init__(self, tokenizer: Any, reply: Reply):
        super().__init__(self._say, decode=tokenizer.decode)
        self.engine = SimpleNamespace(
            weight_version="0",
            max_model_len=1 << 17,
            stats=lambda: SimpleNamespace(num_running=len(self._aborts), num_waiting=0),
        )
        self._tokenizer, self._reply = tokenizer, reply
        self._aborts: dict[str, asyncio.Event] = {}

    def _say(self, prompt_ids: tuple[int, ...], sampling: Sampling) -> Sequence[int]:
        chance = Random(f"{sampling.seed} {prompt_ids}")
        text = self._reply(str(self._tokenizer.decode(prompt_ids)), chance)
        return (*encode_text(self._tokenizer, text), self._tokenizer.eos_token_id)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, session: str | None = None, request_id: str | None = None
    ) -> Completion:
        completion = await super().generate(prompt_ids, sampling, session)
        slow = SLOW in self._tokenizer.decode(prompt_ids)
        aborted = asyncio.Event()
        request = request_id or str(id(aborted))
        self._aborts[request] = aborted
        try:
            async with asyncio.timeout(60 if slow else LATENCY_S):
                await aborted.wait()
            return Completion((), (), "abort", "0")
        except TimeoutError:
            logprobs = tuple(-0.1 * (1 + token % 7) for token in completion.token_ids)
            return Completion(completion.token_ids, logprobs, completion.finish_reason, "0")
        finally:
            del self._aborts[request]

    def abort(self, request_id: str) -> None:
        if request_id in self._aborts:
            self._aborts[request_id].set()

    def abort_all(self) -> None:
        for aborted in self._aborts.values():
            aborted.set()

    async def close(self) -> None:
        self.abort_all()


@contextmanager
def serve_script(tokenizer: Any, reply: Reply) -> Iterator[str]:
    """The URL of the server, which runs in a thread of its own."""
    server = Server(cast(EmbeddedPolicy, ScriptedEngine(tokenizer, reply)), "scripted")
    with serve_app(server.app()) as url:
        yield url
