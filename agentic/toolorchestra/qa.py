"""Runs a `qa` rollout: the orchestrator chooses a tool and an expert, turn after turn, until one expert answers."""

from __future__ import annotations

from collections import Counter
from functools import partial

from agentic.toolorchestra.config import ToolName, ToolOrchestraSection
from agentic.toolorchestra.context import Workspace, drop_oldest, message_budget, truncate
from agentic.toolorchestra.experts import ExpertFailure, Experts
from agentic.toolorchestra.formats import make_format
from agentic.toolorchestra.orchestrator import Orchestrator
from agentic.toolorchestra.prompts import REFUSED, expert_messages, question_messages, tool_schemas
from core.rewards.answer_grader import open_answer
from core.text.conversation import Message, Renderer
from core.text.programs import extract_program
from core.text.tool_calls import CallError, ToolCall, drop_opened_thought, split_thoughts
from core.tools.base import Tool, Toolbox, ToolContext, ToolResult, make_tool
from core.types import Task


class QaTools:
    """Holds what the tools of `qa` work with, for all rollouts: the retrieval service and the sandbox."""

    def __init__(self, config: ToolOrchestraSection):
        tools: list[Tool] = []
        if "search" in config.tools:
            tools.append(make_tool("core.tools.search.Search", config.search, name="search"))
        if "enhance_reasoning" in config.tools:
            path = "core.tools.python_coder.PythonCoder"
            tools.append(make_tool(path, config.coder, name="enhance_reasoning", source="query"))
        self._toolbox = Toolbox(tools)
        self.isolation = self._toolbox.isolation

    async def run(self, name: ToolName, query: str) -> ToolResult:
        tool = self._toolbox.find(name)
        assert tool is not None
        return await self._toolbox.call(tool, {"query": query}, ToolContext())

    async def close(self) -> None:
        await self._toolbox.close()


class QaRollout:
    """Runs one question. `answer` is None until it is answered; `failures` counts tools that gave nothing.

    It also counts the calls of the orchestrator that were read although they were not written as they should be.
    """

    def __init__(self, config: ToolOrchestraSection, renderer: Renderer, tools: QaTools, experts: Experts, task: Task):
        self.answer: str | None = None
        self.failures: Counter[str] = Counter()
        self.used: Counter[str] = Counter()
        self.seconds = 0.0
        self.workspace = Workspace()
        self.schemas = tool_schemas(config, experts)
        self._config = config
        self._renderer = renderer
        self._truncate = partial(truncate, config, renderer)
        self._tools = tools
        self._experts = experts
        self._task = task
        self._format = make_format(config.format, renderer.tokenizer, self.failures)
        self._shown_tools = [] if config.format == "compact" else [schema.to_openai() for schema in self.schemas]
        self._question = question_messages(config.format, renderer, task, "", (), None)
        self._history = list(self._question)
        """Holds the whole conversation, for an append-only context."""
        self._budget = message_budget(config, renderer, self._shown_tools)
        self._refused: CallError | None = None

    async def run(self, orchestrator: Orchestrator) -> None:
        """Take turns until there is an answer, at most `max_turns`."""
        for _ in range(self._config.max_turns):
            text = await orchestrator.write(self._prompt(), self._shown_tools)
            if text is None:
                self.failures["own_faults"] += 1
                break
            call = self._format.parse_call(text, self.schemas)
            if isinstance(call, CallError):
                orchestrator.refuse(call)
                self._refused, result = call, f"{REFUSED}{call.message}."
                self.workspace.lines.append(f"? = {call.kind.replace('_', ' ')}")
            else:
                self._refused, result = None, await self._execute(call)
            if self.answer is not None:
                return
            role = "user" if self._config.format == "compact" else "tool"
            self._history += [orchestrator.last_message(), self._renderer.message(role, self._truncate(result))]

    def _prompt(self) -> list[Message]:
        if self._config.context == "append_only":
            return drop_oldest(self._history, self._budget, keep=len(self._question))
        lines = self.workspace.lines
        return question_messages(self._config.format, self._renderer, self._task, self._context(), lines, self._refused)

    async def _execute(self, call: ToolCall) -> str:
        """Execute a call and return its result as the orchestrator reads it."""
        tool: ToolName = call.name  # type: ignore[assignment]  # checked against the schemas
        alias = str(next(iter(call.arguments.values()), ""))
        self.used[alias or tool] += 1
        text = await self._ask_expert(alias, tool) if alias else self._text_without_expert(tool)
        if isinstance(text, ExpertFailure):
            self.failures[f"expert_{text.kind}"] += 1
            return self._note(call, text.message)
        match tool:
            case "answer":
                self.answer = open_answer(text)
                return self.answer
            case "call_expert":
                self.workspace.attempts.append(f"{alias}: {text.strip()}")
                return self._note(call, text.strip())
            case "enhance_reasoning":
                text = extract_program(text)
        result = await self._tools.run(tool, text)
        self.seconds += result.seconds
        if result.status != "ok":
            self.failures[f"{tool}_{result.status}"] += 1
        elif tool == "search":
            self.workspace.add_documents(list(result.parts[::-1]))
        if tool == "enhance_reasoning":
            self.workspace.programs.append(f"```python\n{text}\n```\n\n```output\n{result.text}\n```")
        return self._note(call, result.text)

    def _text_without_expert(self, tool: ToolName) -> str:
        """Return the question itself for a search, or the latest attempt for an answer."""
        if tool == "search":
            return self._task.question
        return self.workspace.attempts[-1].partition(": ")[2] if self.workspace.attempts else ""

    async def _ask_expert(self, alias: str, tool: ToolName) -> str | ExpertFailure:
        messages = expert_messages(self._config.format, tool, self._task, self.workspace, self._context())
        reply = await self._experts.ask(alias, messages)
        if isinstance(reply, ExpertFailure):
            return reply
        answer = split_thoughts(drop_opened_thought(reply.text))[1]
        return ExpertFailure("unclosed_thought", f"{alias} did not stop thinking") if answer is None else answer

    def _note(self, call: ToolCall, result: str) -> str:
        """Keep a result as a line of the compact form, and return it as the orchestrator reads it."""
        name = "call" if call.name == "call_expert" else call.name
        line = " ".join([name, *map(str, call.arguments.values()), "=", *result.split()])
        self.workspace.lines.append(self._truncate(line))
        return self._truncate(result) if self._config.format != "compact" else self.workspace.lines[-1]

    def _context(self) -> str:
        if self._config.format == "compact":
            return ""
        left = self._budget - sum(len(message.ids) for message in self._question)
        return self.workspace.render(self._renderer.tokenizer, self._config.budget, left)
