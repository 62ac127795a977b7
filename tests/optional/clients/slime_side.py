"""slime's own adapters on the same conversations: the adapters and their trajectories are slime's, from a checkout.

Two of their functions are replaced, since SGLang is not here: the one that asks SGLang asks the scripted model, and the
one that reads an answer with SGLang's parsers reads it as the gateway does.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web

from benchmarks.exactness.layers import make_slime_parser
from core.types import Sampling
from tests.optional.clients.scripted import ScriptedModel

TEMPLATE = (
    "{% if tools %}<|im_start|>system\n# Tools\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% endif %}{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
    "{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{% if m.reasoning_content and loop.index0 > ns.last %}<think>\n{{ m.reasoning_content.strip() }}\n</think>\n\n"
    "{% endif %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ '\\n<tool_call>\\n' }}"
    '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}\n</tool_call>{% endfor %}'
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Writes thoughts where Qwen3's template does: slime gives them to the template apart from the text."""


class SlimeSide:
    """Holds slime's modules, and one adapter for each conversation."""

    def __init__(self, root: Path, model: ScriptedModel):
        sys.path.insert(0, str(root))
        self.common = importlib.import_module("slime.agent.adapters.common")
        self._trajectory = importlib.import_module("slime.agent.trajectory")
        self._sample = importlib.import_module("slime.utils.types").Sample
        self._model = model
        self.tokenizer = model.tokenizer_with(TEMPLATE)
        self._names: dict[Any, str] = {}

    def make_adapter(self, client: str, name: str) -> Any:
        """Make the adapter of a conversation, in the protocol of a client."""
        adapters = importlib.import_module("slime.agent.adapters")
        kind = adapters.AnthropicAdapter if "anthropic" in client else adapters.OpenAIAdapter
        adapter = kind(tokenizer=self.tokenizer, sglang_url="http://127.0.0.1", tool_parser="qwen")
        self._names[adapter] = name
        return adapter

    async def ask(self, prompt_ids: list[int], session: Any, body: Any, *, adapter: Any, session_id: str) -> Any:
        """Take the place of call_sglang_generate."""
        answer = await self._model.generate(prompt_ids, Sampling(), self._names[adapter])
        return self._trajectory.TurnRecord(
            prompt_ids=list(prompt_ids),
            output_ids=list(answer.token_ids),
            finish_reason=answer.finish_reason,
            output_log_probs=list(answer.logprobs),
        )

    async def describe(self, adapter: Any) -> str:
        """Say how many tokens of a conversation slime trains, and in how many samples."""
        samples = []
        for session in list(adapter.store):
            samples += await adapter.finish_session(session, base_sample=self._sample(index=0))
        trained = sum(sum(sample.loss_mask) for sample in samples)
        sampled = self._model.sampled[self._names[adapter]]
        return f"{trained:4} of {sampled:4} tokens ({trained / max(sampled, 1):4.0%}), {len(samples)} samples"


@asynccontextmanager
async def serve_slime(side: SlimeSide, client: str, names: Sequence[str]) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Serve one adapter for each name; yield the URL and the adapters."""
    adapters = {name: side.make_adapter(client, name) for name in names}
    app = web.Application()
    for name, adapter in adapters.items():
        app.add_subapp(f"/s/{name}", adapter.app)
    replaced = {"call_sglang_generate": side.ask, "parse_model_output": make_slime_parser(side.tokenizer)}
    kept = {name: getattr(side.common, name) for name in replaced}
    for name, function in replaced.items():
        setattr(side.common, name, function)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}", adapters
    finally:
        await runner.cleanup()
        for name, function in kept.items():
            setattr(side.common, name, function)
