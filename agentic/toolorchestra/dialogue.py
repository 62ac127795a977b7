"""A `func_call` rollout: a simulated user and tools drive the loop, and the orchestrator is the agent.

It speaks, calls tools, or hands the turn to an expert, who sees the whole conversation and speaks or acts in its place.
The environment meets one agent: who chose its words and calls is not told to it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agentic.toolorchestra.config import ToolOrchestraSection
from agentic.toolorchestra.environment import Environment, Start
from agentic.toolorchestra.experts import Experts, Unanswered
from agentic.toolorchestra.formats import CALL_EXPERT, FORMATS, Action, Hermes, Speech
from agentic.toolorchestra.orchestrator import Orchestrator, fitted, room
from agentic.toolorchestra.prompts import AGENT, REFUSED, hand_over
from core.policy.openai import ChatReply
from core.text.conversation import Markup, Message, Renderer
from core.text.tool_calls import CLOSE, OPEN, CallError, ToolCall, check_call, parse_call
from core.types import Task


@dataclass(frozen=True, slots=True)
class Line:
    """One message of the conversation as the environment knows it; `calls` are the agent's."""

    role: str
    text: str
    calls: Sequence[ToolCall] = ()


class Dialogue:
    """One conversation under way. `score` is the environment's, None until it is asked; `seconds` are those of its
    tools, not of its user."""

    def __init__(self, config: ToolOrchestraSection, renderer: Renderer, experts: Experts, task: Task):
        self.score: float | None = None
        self.done = False
        self.used: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.seconds = 0.0
        self._note = ""
        self._config, self._renderer, self._experts, self._task = config, renderer, experts, task
        self._format = FORMATS[config.style]
        self.lines: list[Line] = []

    async def run(self, orchestrator: Orchestrator, world: Environment) -> None:
        """Turns until the conversation ends, at most `max_turns`; then the environment grades it."""
        start = await world.reset(self._task)
        self._begin(start)
        for _ in range(self._config.max_turns):
            text = await orchestrator.write(self._prompt(), self._shown)
            chosen = self._format.action(text, self._tools)
            if isinstance(chosen, CallError):
                orchestrator.refuse(chosen)
                self._hear(f"{REFUSED}{chosen.message}.", orchestrator)
                continue
            by, action = "", chosen
            if not isinstance(chosen, Speech) and chosen[0].name == CALL_EXPERT:
                by = str(chosen[0].arguments["expert"])
                self.used[by] += 1
                expert = await self._expert(by, start.plain or start)
                if isinstance(expert, CallError | Unanswered):
                    self.failures[f"expert_{expert.kind}"] += 1
                    self._hear(f"{by} could not take the turn: {expert.message}.", orchestrator)
                    continue
                action = expert
            await self._act(action, by, orchestrator, world)
            if self.done:
                break
        self.score = await world.evaluate()

    def _begin(self, start: Start) -> None:
        self._tools = [*start.tools, *hand_over(self._config, self._experts)]
        compact = self._config.style == "compact"
        self._shown = [] if compact else [tool.to_openai() for tool in self._tools]
        self._room = room(self._config, self._renderer, self._shown)
        policy = (Markup("<task>"), f" {start.policy}") if compact else (start.policy, "" if start.complete else AGENT)
        self._opening = self._renderer.message("user" if compact else "system", *policy)
        self._first = self._renderer.message("user", start.message)
        self.lines = [Line("user", start.message)]
        self._said: list[Message] = [self._opening, self._first]
        """The orchestrator's own view, what it sampled as it was sampled."""

    async def _act(self, action: Action, by: str, orchestrator: Orchestrator, world: Environment) -> None:
        """Say or do it in the environment, and keep it in both views; `by` names the expert whose words they are."""
        new: list[tuple[str, str]] = []
        if isinstance(action, Speech):
            self.lines.append(Line("assistant", action.text))
            reply = await world.user_turn(action.text)
            self.lines.append(Line("user", reply.text))
            self.done = reply.done
            if by:
                new.append(("tool", f"{by} said to the user: {action.text}"))
            new.append(("user", reply.text))
        else:
            self.lines.append(Line("assistant", "", action))
            for call in action:
                began = time.monotonic()
                result = await world.call_tool(call.name, call.arguments)
                self.seconds += time.monotonic() - began
                self.failures["tool_refused"] += result.error
                self.done = result.done
                self.lines.append(Line("tool", result.text))
                new.append(("tool", f"{by} called {call.render()}: {result.text}" if by else result.text))
                if self.done:
                    break
        self._said.append(orchestrator.last())
        self._said += [self._renderer.message(self._role(role), self._cut(text)) for role, text in new]

    def _hear(self, text: str, orchestrator: Orchestrator) -> None:
        """Something between the orchestrator and us alone, which the environment never sees."""
        self._said += [orchestrator.last(), self._renderer.message(self._role("tool"), text)]
        self._note = text

    def _prompt(self) -> list[Message]:
        keep = 2
        if self._config.context == "append_only":
            return fitted(self._said, self._room, keep)
        messages = [self._opening, *map(self._message, self.lines)]
        if self._note:
            messages.append(self._renderer.message("user", self._note))
            self._note = ""
        return fitted(messages, self._room, keep)

    def _message(self, line: Line) -> Message:
        """A line as the orchestrator reads it in a rebuilt context, the agent's calls in its own format."""
        if self._config.style == "compact":
            calls = " ; ".join(" ".join([c.name, *(f"{k}={v}" for k, v in c.arguments.items())]) for c in line.calls)
            return self._renderer.message(self._role(line.role), f" {calls or self._cut(line.text)}")
        parts: list[str | Markup] = [self._cut(line.text)]
        for call in line.calls:
            parts += [Markup(f"{OPEN}\n"), call.render(), Markup(f"\n{CLOSE}")]
        return self._renderer.message(line.role, *parts)

    async def _expert(self, alias: str, start: Start) -> Action | CallError | Unanswered:
        """What the expert does with the turn; it has the environment's tools, and cannot hand on."""
        messages = [{"role": "system", "content": start.policy}, *openai_messages(self.lines)]
        reply = await self._experts.ask(alias, messages, [tool.to_openai() for tool in start.tools])
        if isinstance(reply, Unanswered):
            return reply
        if not reply.calls:
            return Hermes().action(reply.text, start.tools)
        calls = read_calls(reply)
        if isinstance(calls, CallError):
            return calls
        return next((error for call in calls if (error := check_call(call, start.tools))), calls)

    def _role(self, role: str) -> str:
        return "user" if role == "tool" and self._config.style == "compact" else role

    def _cut(self, text: str) -> str:
        limit = self._config.budget.result_tokens
        ids = self._renderer.message("tool", text).ids
        return text if len(ids) <= limit else str(self._renderer.tokenizer.decode(ids[:limit]))


def read_calls(reply: ChatReply) -> list[ToolCall] | CallError:
    """The tool calls of a chat reply, whose arguments arrive as text."""
    calls = []
    for called in reply.calls:
        call = parse_call(f'{{"name": {json.dumps(called.name)}, "arguments": {called.arguments or "{}"}}}')
        if isinstance(call, CallError):
            return call
        calls.append(call)
    return calls


def openai_messages(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """The conversation as an OpenAI-compatible service takes it: each tool's result names the call that it answers."""
    messages: list[dict[str, Any]] = []
    waiting: list[str] = []
    for number, line in enumerate(lines):
        message: dict[str, Any] = {"role": line.role, "content": line.text}
        if line.calls:
            waiting = [f"call_{number}_{i}" for i in range(len(line.calls))]
            message["tool_calls"] = [
                {
                    "id": name,
                    "type": "function",
                    "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
                }
                for name, call in zip(waiting, line.calls, strict=True)
            ]
        elif line.role == "tool":
            message["tool_call_id"] = waiting.pop(0)
        messages.append(message)
    return messages
