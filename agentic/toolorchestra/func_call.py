"""Runs a `func_call` rollout: the orchestrator is the agent of a simulated environment with a user and tools.

The orchestrator writes to the user, calls tools, or hands the turn to an expert. The expert sees the whole conversation
and writes or acts in its place. The environment meets one agent: it is not told who chose its words and calls.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraSection
from agentic.toolorchestra.context import drop_oldest, message_budget, truncate
from agentic.toolorchestra.environment import Environment, Start
from agentic.toolorchestra.experts import ExpertFailure, Experts
from agentic.toolorchestra.formats import CALL_EXPERT, Action, AssistantMessage, HermesCallFormat, make_format
from agentic.toolorchestra.orchestrator import Orchestrator
from agentic.toolorchestra.prompts import AGENT, REFUSED, hand_over_schemas
from core.policy.openai_chat import ChatReply
from core.text.conversation import Markup, Message, Renderer
from core.text.tool_calls import CLOSE, OPEN, CallError, ToolCall, check_call, drop_opened_thought, parse_call
from core.types import Task


@dataclass(frozen=True, slots=True)
class DialogueMessage:
    """Holds one message of the conversation as the environment knows it; `calls` are the agent's."""

    role: str
    text: str
    calls: Sequence[ToolCall] = ()


class FuncCallRollout:
    """Runs one conversation. `score` is the environment's grade, None before it; `seconds` counts the environment's
    tools, not its user."""

    def __init__(self, config: ToolOrchestraSection, renderer: Renderer, experts: Experts, task: Task):
        self.score: float | None = None
        self.done = False
        self.used: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.seconds = 0.0
        self.dialogue: list[DialogueMessage] = []
        self._note = ""
        self._config = config
        self._renderer = renderer
        self._truncate = partial(truncate, config, renderer)
        self._experts = experts
        self._task = task
        self._format = make_format(config.format, renderer.tokenizer, self.failures)

    async def run(self, orchestrator: Orchestrator, environment: Environment) -> None:
        """Take turns until the conversation ends, at most `max_turns`; then let the environment grade it."""
        start = await environment.reset(self._task)
        self._begin(start)
        for _ in range(self._config.max_turns):
            text = await orchestrator.write(self._prompt(), self._shown_tools)
            if text is None:
                self.failures["own_faults"] += 1
                break
            chosen = self._format.parse_action(text, self._tools)
            if isinstance(chosen, CallError):
                orchestrator.refuse(chosen)
                self._tell_orchestrator(f"{REFUSED}{chosen.message}.", orchestrator)
                continue
            alias, action = "", chosen
            if not isinstance(chosen, AssistantMessage) and chosen[0].name == CALL_EXPERT:
                alias = str(chosen[0].arguments["expert"])
                self.used[alias] += 1
                reply = await self._ask_expert(alias, start.plain or start)
                if isinstance(reply, CallError | ExpertFailure):
                    self.failures[f"expert_{reply.kind}"] += 1
                    self._tell_orchestrator(f"{alias} could not take the turn: {reply.message}.", orchestrator)
                    continue
                action = reply
            await self._act(action, alias, orchestrator, environment)
            if self.done:
                break
        self.score = await environment.evaluate()

    def _begin(self, start: Start) -> None:
        self._tools = [*start.tools, *hand_over_schemas(self._config, self._experts)]
        compact = self._config.format == "compact"
        self._shown_tools = [] if compact else [tool.to_openai() for tool in self._tools]
        self._budget = message_budget(self._config, self._renderer, self._shown_tools)
        policy = (Markup("<task>"), f" {start.policy}") if compact else (start.policy, "" if start.complete else AGENT)
        self._opening = self._renderer.message("user" if compact else "system", *policy)
        self.dialogue = [DialogueMessage("user", start.message)]
        self._history: list[Message] = [self._opening, self._renderer.message("user", start.message)]
        """Holds the conversation as the orchestrator saw it, with its turns as they were sampled."""

    async def _act(self, action: Action, alias: str, orchestrator: Orchestrator, environment: Environment) -> None:
        """Perform an action in the environment and keep it in both views; `alias` names the expert who chose it."""
        new: list[tuple[str, str]] = []
        if isinstance(action, AssistantMessage):
            self.dialogue.append(DialogueMessage("assistant", action.text))
            reply = await environment.user_turn(action.text)
            self.dialogue.append(DialogueMessage("user", reply.text))
            self.done = reply.done
            if alias:
                new.append(("tool", f"{alias} said to the user: {action.text}"))
            new.append(("user", reply.text))
        else:
            self.dialogue.append(DialogueMessage("assistant", "", action))
            for call in action:
                began = time.monotonic()
                result = await environment.call_tool(call.name, call.arguments)
                self.seconds += time.monotonic() - began
                self.failures["tool_refused"] += result.error
                self.done = result.done
                self.dialogue.append(DialogueMessage("tool", result.text))
                new.append(("tool", f"{alias} called {call.render()}: {result.text}" if alias else result.text))
                if self.done:
                    break
        self._history.append(orchestrator.last_message())
        self._history += [self._renderer.message(self._role(role), self._truncate(text)) for role, text in new]

    def _tell_orchestrator(self, text: str, orchestrator: Orchestrator) -> None:
        """Show the orchestrator a text that the environment never sees."""
        self._history += [orchestrator.last_message(), self._renderer.message(self._role("tool"), text)]
        self._note = text

    def _prompt(self) -> list[Message]:
        keep = 2  # the policy and the user's first message
        if self._config.context == "append_only":
            return drop_oldest(self._history, self._budget, keep)
        messages = [self._opening, *map(self._render, self.dialogue)]
        if self._note:
            messages.append(self._renderer.message("user", self._note))
            self._note = ""
        return drop_oldest(messages, self._budget, keep)

    def _render(self, message: DialogueMessage) -> Message:
        """Render a message for a rebuilt context, with the agent's calls in the orchestrator's own format."""
        if self._config.format == "compact":
            calls = [" ".join([c.name, *(f"{k}={v}" for k, v in c.arguments.items())]) for c in message.calls]
            text = " ; ".join(calls) or self._truncate(message.text)
            return self._renderer.message(self._role(message.role), f" {text}")
        text = self._truncate(message.text)
        if self._config.format == "calls":
            return replace(self._renderer.message(message.role, text), calls=tuple(message.calls))
        parts: list[str | Markup] = [text]
        for call in message.calls:
            parts += [Markup(f"{OPEN}\n"), call.render(), Markup(f"\n{CLOSE}")]
        return self._renderer.message(message.role, *parts)

    async def _ask_expert(self, alias: str, start: Start) -> Action | CallError | ExpertFailure:
        """Return what the expert does with the turn. It has the environment's tools and cannot hand the turn on."""
        messages = [{"role": "system", "content": start.policy}, *openai_messages(self.dialogue)]
        reply = await self._experts.ask(alias, messages, [tool.to_openai() for tool in start.tools])
        if isinstance(reply, ExpertFailure):
            return reply
        if not reply.calls:
            return HermesCallFormat().parse_action(drop_opened_thought(reply.text), start.tools)
        calls = read_calls(reply)
        if isinstance(calls, CallError):
            return calls
        return next((error for call in calls if (error := check_call(call, start.tools))), calls)

    def _role(self, role: str) -> str:
        return "user" if role == "tool" and self._config.format == "compact" else role


def read_calls(reply: ChatReply) -> list[ToolCall] | CallError:
    """Parse the tool calls of a chat reply, whose arguments arrive as text."""
    calls = []
    for raw in reply.calls:
        call = parse_call(f'{{"name": {json.dumps(raw.name)}, "arguments": {raw.arguments or "{}"}}}')
        if isinstance(call, CallError):
            return call
        calls.append(call)
    return calls


def openai_messages(dialogue: Sequence[DialogueMessage]) -> list[dict[str, Any]]:
    """Convert the conversation for an OpenAI-compatible service: each tool result names the call that it answers."""
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    for number, message in enumerate(dialogue):
        converted: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.calls:
            waiting = [f"call_{number}_{i}" for i in range(len(message.calls))]
            converted["tool_calls"] = [
                {
                    "id": name,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
                }
                for name, call in zip(waiting, message.calls, strict=True)
            ]
        elif message.role == "tool":
            converted["tool_call_id"] = waiting.pop(0)
        messages.append(converted)
    return messages
