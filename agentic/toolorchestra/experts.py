"""Asks the experts of one rollout and keeps a ledger of what each call cost.

The orchestrator only writes the name of an expert. The record puts a model behind the name, so models and prices can
change from record to record. A call that fails is an `ExpertFailure` with a kind. It costs time but no money, since no
tokens came back. One that met its limit while it thought (`cut`) has tokens, and costs money.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentic.toolorchestra.config import ExpertModelSection, PriceSection, ToolOrchestraSection
from core.policy.base import PolicyError, Roles
from core.policy.openai_chat import ChatReply, Message, OpenAIChat
from core.rollout.method import RolloutError
from core.text.conversation import Markup, Renderer
from core.text.tokenizer import Tokenizer, load_tokenizer
from core.text.tool_calls import CLOSE, OPEN, ToolCall
from core.types import Sampling, Task, derive_seed


@dataclass(frozen=True, slots=True)
class ExpertCall:
    """Records one call in the ledger: `cost` in dollars, `seconds` by the clock, `declared_s` as the recipe says."""

    alias: str
    model: str
    prompt_tokens: int
    completion_tokens: int
    cost: float
    seconds: float
    declared_s: float
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class ExpertFailure:
    """An expert gave no reply; `kind` is the name of this failure in the counts."""

    kind: str
    message: str


class RoleChat:
    """Asks a role of the rollout as a chat model, with token ids; its chat template shows it the tools."""

    def __init__(self, role: str, renderer: Renderer, timeout_s: float):
        self._role = role
        self._renderer = renderer
        self._timeout_s = timeout_s

    async def chat(
        self,
        messages: Sequence[Message],
        *,
        roles: Roles,
        max_tokens: int,
        temperature: float,
        tools: Sequence[Mapping[str, Any]] = (),
        seed: int | None = None,
    ) -> ChatReply:
        encoded = [self._renderer.message(message["role"], *_parts(message)) for message in messages]
        prompt, tokenizer = self._renderer.render(encoded, tools), self._renderer.tokenizer
        request = Sampling(temperature, max_new_tokens=max_tokens, stop_token_ids=(tokenizer.eos_token_id,), seed=seed)
        try:
            async with asyncio.timeout(self._timeout_s):
                completion = await roles[self._role].generate(prompt, request)
        except TimeoutError:
            raise PolicyError("timeout", f"role {self._role}: no reply in {self._timeout_s:g} s") from None
        if completion.finish_reason == "abort":
            raise PolicyError("engine", f"role {self._role}: the engine aborted the call")
        ids = self._renderer.find_opening(prompt) + completion.token_ids
        text = str(tokenizer.decode(ids, skip_special_tokens=True))
        return ChatReply(text, (), len(prompt), len(completion.token_ids), cut=completion.finish_reason == "length")


class ModelPool:
    """Opens every model of the recipe once, for all rollouts."""

    def __init__(self, config: ToolOrchestraSection, tokenizer: Tokenizer):
        self.config = config
        self.chats: dict[str, OpenAIChat | RoleChat] = {
            name: self._open(name, section, tokenizer) for name, section in config.models.items()
        }
        self.slots = {name: asyncio.Semaphore(section.concurrency) for name, section in config.models.items()}
        self.needs = tuple(dict.fromkeys(m.role for m in config.models.values() if m.role is not None))

    @staticmethod
    def _open(name: str, section: ExpertModelSection, tokenizer: Tokenizer) -> OpenAIChat | RoleChat:
        if section.role is not None:
            own = load_tokenizer(section.tokenizer) if section.tokenizer else tokenizer
            return RoleChat(section.role, Renderer(own), section.timeout_s)
        assert section.url is not None
        limits: dict[str, Any] = {"timeout_s": section.timeout_s, "max_retries": section.max_retries}
        return OpenAIChat(section.url, section.name or name, section.api_key_file, body=section.body, **limits)

    def for_rollout(self, roles: Roles, seed: int | None = None) -> RolloutModels:
        return RolloutModels(self, roles, seed)

    async def close(self) -> None:
        for chat in self.chats.values():
            if isinstance(chat, OpenAIChat):
                await chat.close()


class RolloutModels:
    """Asks the models for one rollout, with its roles and with seeds that follow from its seed."""

    def __init__(self, pool: ModelPool, roles: Roles, seed: int | None):
        self.config = pool.config
        self.seconds = 0.0
        """Measures the latest call with its retries, also one that failed, but not the wait for a free slot."""
        self._pool = pool
        self._roles = roles
        self._seed = seed
        self._calls = 0

    async def ask(self, name: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> ChatReply:
        """Return one reply of the model `name`. Raises PolicyError."""
        section, chat = self.config.models[name], self._pool.chats[name]
        options: dict[str, Any] = {"max_tokens": section.max_tokens, "temperature": section.temperature, "tools": tools}
        if isinstance(chat, RoleChat):
            seed = None if self._seed is None else derive_seed(self._seed, "model", self._calls)
            options |= {"roles": self._roles, "seed": seed}
            self._calls += 1
        async with self._pool.slots[name]:
            began = time.monotonic()
            try:
                return await chat.chat(messages, **options)
            finally:
                self.seconds = time.monotonic() - began


class Experts:
    """Asks the experts of one rollout and keeps their ledger.

    Raises:
        RolloutError: the record maps an expert to a model that the recipe lacks, or that has no price, or no latency
            where latencies are declared (`bad_task`).
    """

    def __init__(self, models: RolloutModels, task: Task):
        self.ledger: list[ExpertCall] = []
        self._models = models
        config, record = models.config, task.metadata
        self._model_names: Mapping[str, str] = record.get("model_mapping") or config.model_mapping
        pricing = record.get("tool_pricing") or {}
        if not isinstance(self._model_names, Mapping) or not isinstance(pricing, Mapping):
            raise RolloutError("bad_task", f"task {task.task_id}: model_mapping and tool_pricing must be objects")
        self._prices: dict[str, PriceSection] = {}
        for alias in self.available(config.aliases):
            model = self._model_names[alias]
            where = f"task {task.task_id}: model_mapping.{alias} is {model!r}"
            if not isinstance(model, str) or model not in config.models:
                raise RolloutError("bad_task", f"{where}, which is not under toolorchestra.models; add it there")
            if alias in pricing and model not in pricing:
                raise RolloutError("bad_task", f"{where}, and tool_pricing.{alias} is an expert; name its model")
            price = _record_price(pricing.get(model), config.pricing_unit, task) or config.models[model].price
            if price is None:
                raise RolloutError("bad_task", f"{where}, which has no price; give the record a tool_pricing for it")
            if config.latency == "declared" and config.models[model].latency_s is None:
                raise RolloutError("bad_task", f"{where}, which declares no latency_s; set it, or latency=measured")
            self._prices[model] = price

    def available(self, aliases: Sequence[str]) -> list[str]:
        """Return those of `aliases` that have a model in this record."""
        return [alias for alias in aliases if alias in self._model_names]

    def price(self, alias: str) -> PriceSection:
        return self._prices[self._model_names[alias]]

    def declared_latency(self, alias: str) -> float | None:
        return self._models.config.models[self._model_names[alias]].latency_s

    async def ask(
        self, alias: str, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> ChatReply | ExpertFailure:
        """Return the reply of `alias`. The ledger keeps the call, also a failed one. A price needs counted tokens."""
        model, declared_s = self._model_names[alias], self.declared_latency(alias) or 0.0
        try:
            reply = await self._models.ask(model, messages, tools)
        except PolicyError as error:
            self.ledger.append(ExpertCall(alias, model, 0, 0, 0.0, self._models.seconds, declared_s, error.kind))
            return ExpertFailure(error.kind, f"{alias} gave no reply ({error.kind})")
        price, tokens = self._prices[model], (reply.prompt_tokens, reply.completion_tokens)
        if not any(tokens) and (price.input or price.output):
            raise RolloutError("no_usage", f"{model}: its server counts no tokens (`usage`). Fix: give it the price 0")
        failure = "cut" if reply.cut and not reply.text.strip() and not reply.calls else None
        cost = call_cost(price, *tokens)
        self.ledger.append(ExpertCall(alias, model, *tokens, cost, self._models.seconds, declared_s, failure))
        return ExpertFailure("cut", f"{alias} met its limit before it wrote anything") if failure else reply

    @property
    def failures(self) -> Counter[str]:
        return Counter(call.failure for call in self.ledger if call.failure is not None)

    @property
    def all_down(self) -> bool:
        """Return whether experts were asked and every call failed, none for a bad request or a limit of tokens."""
        return bool(self.ledger) and all(call.failure not in (None, "bad_request", "cut") for call in self.ledger)


def call_cost(price: PriceSection | None, prompt_tokens: int, completion_tokens: int) -> float:
    """Return the dollars for one call."""
    return 0.0 if price is None else (price.input * prompt_tokens + price.output * completion_tokens) / 1e6


def _parts(message: Message) -> Iterator[str | Markup]:
    """Yield the parts of a message; its tool calls stand between tags as Hermes and Qwen write them."""
    yield message.get("content") or ""
    for call in message.get("tool_calls", ()):
        function = call["function"]
        yield Markup(f"\n{OPEN}\n")
        yield ToolCall(function["name"], json.loads(function["arguments"])).render()
        yield Markup(f"\n{CLOSE}")


def _record_price(price: Any, unit: str, task: Task) -> PriceSection | None:
    if price is None:
        return None
    factor = 1e6 if unit == "token" else 1.0
    try:
        values = [float(price[f"{side}_tokens_per_million"]) * factor for side in ("input", "output")]
        return PriceSection(input=values[0], output=values[1])
    except (KeyError, TypeError, ValueError) as error:
        raise RolloutError(
            "bad_task",
            f"task {task.task_id}: tool_pricing needs input_tokens_per_million and output_tokens_per_million >= 0 of "
            f"each model, one is {price!r} ({error})",
        ) from error
