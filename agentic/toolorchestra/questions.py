"""A `qa` rollout: the orchestrator chooses a tool and an expert, turn after turn, until one of them answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

from agentic.toolorchestra.config import ToolName, ToolOrchestraSection
from agentic.toolorchestra.experts import Experts, Unanswered
from agentic.toolorchestra.formats import FORMATS
from agentic.toolorchestra.orchestrator import Orchestrator, fitted, room
from agentic.toolorchestra.prompts import REFUSED, expert_messages, question, tool_schemas
from agentic.toolorchestra.workspace import Workspace
from core.rewards.math import last_boxed
from core.text.conversation import Renderer
from core.text.tool_calls import CallError, ToolCall
from core.tools.base import Tool, ToolContext, ToolResult
from core.tools.python_coder import PythonCoder, program
from core.tools.registry import Toolbox, make_tool
from core.tools.search import Search
from core.types import Task


class QuestionTools:
    """What the tools of `qa` work with, for all rollouts: the retrieval service and the sandbox."""

    def __init__(self, config: ToolOrchestraSection):
        made: list[Tool] = []
        if "search" in config.tools:
            made.append(make_tool(f"{Search.__module__}.Search", {**config.search, "name": "search"}))
        if "enhance_reasoning" in config.tools:
            options = {**config.coder, "name": "enhance_reasoning", "source": "query"}
            made.append(make_tool(f"{PythonCoder.__module__}.PythonCoder", options))
        self._box = Toolbox(made)

    async def run(self, tool: ToolName, query: str) -> ToolResult:
        found = self._box.find(tool)
        assert found is not None
        return await self._box.call(found, {"query": query}, ToolContext(_nobody))

    async def close(self) -> None:
        await self._box.close()


class Question:
    """One question under way. `answer` is None until it is answered; `failures` counts tools that gave nothing."""

    def __init__(
        self, config: ToolOrchestraSection, renderer: Renderer, tools: QuestionTools, experts: Experts, task: Task
    ):
        self.answer: str | None = None
        self.failures: Counter[str] = Counter()
        self.used: Counter[str] = Counter()
        self.seconds = 0.0
        self.work = Workspace()
        self._config, self._renderer, self._tools, self._experts, self._task = config, renderer, tools, experts, task
        self.schemas = tool_schemas(config, experts)
        self._shown = [] if config.style == "compact" else [schema.to_openai() for schema in self.schemas]
        self._asked = question(config.style, renderer, task, "", (), None)
        self._said = list(self._asked)
        self._room = room(config, renderer, self._shown)
        self._refused: CallError | None = None

    async def run(self, orchestrator: Orchestrator) -> None:
        """Turns until there is an answer, at most `max_turns`."""
        for _ in range(self._config.max_turns):
            text = await orchestrator.write(self._prompt(), self._shown)
            call = FORMATS[self._config.style].call(text, self.schemas)
            if isinstance(call, CallError):
                orchestrator.refuse(call)
                self._refused, result = call, f"{REFUSED}{call.message}."
                self.work.lines.append(f"? = {call.kind.replace('_', ' ')}")
            else:
                self._refused, result = None, await self.use(call)
            if self.answer is not None:
                return
            role = "user" if self._config.style == "compact" else "tool"
            self._said += [orchestrator.last(), self._renderer.message(role, self._cut(result))]

    def _prompt(self) -> list[Any]:
        if self._config.context == "append_only":
            return fitted(self._said, self._room, keep=len(self._asked))
        lines = self.work.lines
        return question(self._config.style, self._renderer, self._task, self._context(), lines, self._refused)

    async def use(self, call: ToolCall) -> str:
        """Do what `call` says; what came of it, for the orchestrator."""
        tool: ToolName = call.name  # type: ignore[assignment]  # checked against the schemas
        alias = str(next(iter(call.arguments.values()), ""))
        self.used[alias or tool] += 1
        written = await self._ask(alias, tool) if alias else self._unasked(tool)
        if isinstance(written, Unanswered):
            self.failures[f"expert_{written.kind}"] += 1
            return self._note(call, written.message)
        match tool:
            case "answer":
                self.answer = _final(written)
                return self.answer
            case "call_expert":
                self.work.attempts.append(f"{alias}: {written.strip()}")
                return self._note(call, written.strip())
            case "enhance_reasoning":
                written = program(written)
        result = await self._tools.run(tool, written)
        self.seconds += result.seconds
        if result.status != "ok":
            self.failures[f"{tool}_{result.status}"] += 1
        elif tool == "search":
            self.work.add_documents(list(result.parts))
        if tool == "enhance_reasoning":
            self.work.programs.append(f"```python\n{written}\n```\n\n```output\n{result.text}\n```")
        return self._note(call, result.text)

    def _unasked(self, tool: ToolName) -> str:
        """Without an expert: search for the question itself, answer with the latest attempt."""
        if tool == "search":
            return self._task.question
        return self.work.attempts[-1].partition(": ")[2] if self.work.attempts else ""

    async def _ask(self, alias: str, tool: ToolName) -> str | Unanswered:
        messages = expert_messages(self._config.style, tool, self._task, self.work, self._context())
        reply = await self._experts.ask(alias, messages)
        return reply if isinstance(reply, Unanswered) else reply.text.rpartition("</think>")[2]

    def _note(self, call: ToolCall, result: str) -> str:
        """`result`, also kept as a line of the compact form."""
        name = "call" if call.name == "call_expert" else call.name
        line = " ".join([name, *map(str, call.arguments.values()), "=", *result.split()])
        self.work.lines.append(self._cut(line))
        return self._cut(result) if self._config.style == "hermes" else self.work.lines[-1]

    def _context(self) -> str:
        if self._config.style == "compact":
            return ""
        left = self._room - sum(len(message.ids) for message in self._asked)
        return self.work.text(self._renderer.tokenizer, self._config.budget, left)

    def _cut(self, text: str) -> str:
        ids = self._renderer.message("tool", text).ids
        limit = self._config.budget.result_tokens
        return text if len(ids) <= limit else str(self._renderer.tokenizer.decode(ids[:limit]))


def _final(text: str) -> str:
    """What the last box holds, or all of a text without one."""
    boxed = last_boxed(text)
    return (text if boxed is None else boxed).strip()


async def _nobody(role: str, message: str) -> str:
    raise AssertionError(f"a tool of ToolOrchestra asks no role, but {role} was asked")
