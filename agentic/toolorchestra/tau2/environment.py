"""Plays tau2-bench as an Environment: tau2's own orchestrator, user simulator and evaluator run in another process.

Upstream: github.com/sierra-research/tau2-bench (v1.0.1, MIT). Protocols: benchmarks/tau2/README.md.

tau2 needs a process, because it needs Python 3.12 and packages that ours must not have, opens connections and patches
loggers at import, and grades on the CPU under the GIL. It receives messages and tool calls alone, so its grader cannot
see whether an expert chose them.

Departures: several tool calls of one completion reach tau2 as one message each. An agent that writes nothing ends the
conversation as `agent_error`, and a conversation that we break off ends as `max_steps`. Both score 0, as every run does
that tau2 ends early.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentic.toolorchestra.environment import (
    Ask,
    CallResult,
    Environment,
    EnvironmentFactory,
    EnvironmentFault,
    Start,
    UserReply,
)
from agentic.toolorchestra.formats import AssistantMessage, HermesCallFormat
from agentic.toolorchestra.func_call import read_calls
from agentic.toolorchestra.tau2.client import Event, Mailbox, Worker, Workers, check_paths
from agentic.toolorchestra.tau2.compat import rewrite
from agentic.toolorchestra.tau2.users import HangUpUser, ScriptedUser
from core.policy.openai_chat import Message
from core.text.tool_calls import CallError, ToolSchema, drop_opened_thought
from core.types import Task

Responder = Callable[[Sequence[Message], Sequence[Message]], Awaitable[Mapping[str, Any]]]
"""Plays the user or the judge: (messages, tools) in OpenAI's form -> content, tool_calls (id, name, arguments)."""


class Tau2EnvironmentFactory(EnvironmentFactory):
    """Makes tau2-bench's environments for a recipe's `toolorchestra.environment`.

    `python` is the interpreter that has tau2 (None: this one), and `data` its `data` folder. `processes` says how many
    processes play and grade. `user` is a name under toolorchestra.models, or `scripted` or `hangs_up` (users.py); None
    allows solo tasks only. `judge` is a name under toolorchestra.models, for assertions in words. `compat` chooses the
    protocol of compat.py.

    Raises:
        ValueError: `python` or `data` does not exist. So a run ends at its start and not in every rollout.
    """

    def __init__(
        self,
        *,
        python: str | None = None,
        data: str | None = None,
        processes: int = 1,
        user: str | None = None,
        judge: str | None = None,
        compat: bool = False,
        max_steps: int = 200,
        max_errors: int = 10,
    ):
        if processes < 1:
            raise ValueError(f"processes is {processes}, must be at least 1")
        self.workers = Workers(python, data, processes)
        try:
            check_paths(self.workers.python, data)
        except EnvironmentFault as fault:
            raise ValueError(f"{fault}; for questions alone, set toolorchestra.environment=null") from None
        self._user = user
        self._judge = judge
        self._compat = compat
        self._limits = {"max_steps": max_steps, "max_errors": max_errors}

    def open(self, task: Task, ask: Ask) -> Tau2Environment:
        user: Responder | None
        match self._user:
            case "scripted":
                user = ScriptedUser(task)
            case "hangs_up":
                user = HangUpUser(task)
            case name:
                user = _make_responder(name, ask)
        judge = _make_responder(self._judge, ask)
        return Tau2Environment(self.workers, user=user, judge=judge, compat=self._compat, **self._limits)

    async def close(self) -> None:
        self.workers.close()


class Tau2Environment(Environment):
    """Plays one conversation about a Task of `tau2_tasks`; `simulation` is tau2's own record of it, once it has ended.

    Without a `judge`, a task with assertions in words is graded by the data base alone, and its record says so.
    """

    def __init__(
        self,
        workers: Workers,
        *,
        user: Responder | None = None,
        judge: Responder | None = None,
        compat: bool = False,
        max_steps: int = 200,
        max_errors: int = 10,
    ):
        self._workers = workers
        self._responders = {"user": user, "judge": judge}
        self._compat = compat
        self._limits = {"max_steps": max_steps, "max_errors": max_errors, "seed": None}
        self._key = uuid.uuid4().hex
        self._worker: Worker | None = None
        self._box: Mailbox | None = None
        self._calls = 0
        self.simulation: Mapping[str, Any] | None = None

    async def reset(self, task: Task) -> Start:
        """Begin the conversation. Raises EnvironmentFault (`env_task`) if the metadata name no task of tau2."""
        try:
            domain, name, solo = task.metadata["domain"], task.metadata["tau2_id"], bool(task.metadata["solo"])
        except KeyError as error:
            raise EnvironmentFault(
                "env_task", f"task {task.task_id}: metadata has no {error}; see tau2_tasks"
            ) from None
        if not solo and self._responders["user"] is None:
            raise EnvironmentFault(
                "env_user", "nobody plays the user: set toolorchestra.environment.options.user, or take solo tasks"
            )
        self._worker = self._workers.pick()
        self._box = self._worker.open(self._key)
        judge = self._responders["judge"] is not None
        self._send("start", domain=domain, task_id=name, solo=solo, judge=judge, **self._limits)
        begun = await self._next()
        first = await self._until_agent()
        if first is None:
            raise EnvironmentFault("env_task", f"task {task.task_id}: the conversation ended before the agent's turn")
        tools = [_schema(tool["function"]) for tool in begun["tools"]]
        start = Start(begun["system"], tools, begun["ticket"] if solo else _text(first), complete=True)
        return rewrite(start) if self._compat else start

    async def user_turn(self, message: str) -> UserReply:
        if not message.strip():
            await self._stop("agent_error")
            return UserReply("", done=True)
        event = await self._act({"content": message})
        return UserReply(_text(event)) if event else UserReply(self._last("user"), done=True)

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        self._calls += 1
        call = {"id": f"call_{self._calls}", "name": name, "arguments": dict(arguments)}
        event = await self._act({"content": None, "tool_calls": [call]})
        if event is None:
            return CallResult(self._last("tool"), done=True)
        return CallResult(_text(event), error=any(event["errors"]))

    async def evaluate(self) -> float:
        if self.simulation is None:
            await self._stop("max_steps")
        assert self.simulation is not None
        reward: float = self.simulation["reward_info"]["reward"]
        return reward

    async def close(self) -> None:
        if self._worker is None:
            return
        if self.simulation is None:
            with suppress(EnvironmentFault):  # a process that died plays nothing any more
                self._send("stop", reason="agent_error")
        self._worker.forget(self._key)

    async def _act(self, message: Message) -> Event | None:
        if self.simulation is not None:
            raise EnvironmentFault("env_protocol", "the conversation has ended")
        self._send("say", message=message)
        return await self._until_agent()

    async def _stop(self, reason: str) -> None:
        self._send("stop", reason=reason)
        await self._until_agent()

    async def _until_agent(self) -> Event | None:
        """Let user and judge answer until it is the agent's turn; return its event, or None at the end."""
        while True:
            event = await self._next()
            if event["event"] == "end":
                self.simulation = event["simulation"]
                return None
            if event["who"] == "agent":
                return event
            self._send("say", message=await self._respond(event))

    async def _respond(self, event: Event) -> Message:
        who = event["who"]
        responder = self._responders[who]
        assert responder is not None  # tau2 asks only whom `start` announced
        try:
            reply = await responder(event["messages"], event["tools"])
        except Exception as error:
            kind = "env_user" if who == "user" else "env_grade"
            raise EnvironmentFault(kind, f"the {who} gave no reply: {type(error).__name__}: {error}") from error
        if not reply.get("tool_calls") and not (reply.get("content") or "").strip():
            raise EnvironmentFault("env_user" if who == "user" else "env_grade", f"the {who}'s reply is empty")
        return reply

    async def _next(self) -> Event:
        if self._box is None:
            raise EnvironmentFault("env_protocol", "reset comes first")
        event = await self._box.get()
        if event["event"] == "error":
            raise EnvironmentFault("env_process", event["message"])
        return event

    def _send(self, op: str, **fields: Any) -> None:
        if self._worker is None:
            raise EnvironmentFault("env_protocol", "reset comes first")
        self._worker.send(op, self._key, **fields)

    def _last(self, role: str) -> str:
        """Return the last message if `role` wrote it, and else an empty text."""
        messages = self.simulation["messages"] if self.simulation else []
        return (messages[-1]["content"] or "") if messages and messages[-1]["role"] == role else ""


async def tau2_tasks(workers: Workers, domain: str, *, split: str | None = "base", solo: bool = False) -> list[Task]:
    """Return the tasks of a domain (retail, airline, telecom) in the order of tau2. Raises EnvironmentFault.

    With `solo` the agent also has the user's tools and works from a ticket; only telecom has such tasks.
    """
    return [
        Task(
            task_id=f"{domain}{'-solo' if solo else ''}/{record['id']}",
            question=_question(record, solo),
            answers=(),
            metadata={
                "category": "func_call",
                "domain": domain,
                "tau2_id": record["id"],
                "solo": solo,
                "criteria": record["evaluation_criteria"],
            },
        )
        for record in await workers.pick().call("tasks", domain=domain, split=split)
    ]


def _make_responder(name: str | None, ask: Ask) -> Responder | None:
    """Make a responder of the model `name`. Its calls must be usable as they are: nobody corrects a user or a judge."""
    if name is None:
        return None

    async def respond(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
        reply = await ask(name, messages, tools)
        if reply.cut:
            raise ValueError(f"cut at its limit; raise toolorchestra.models.{name}.max_tokens")
        schemas, text = [_schema(tool["function"]) for tool in tools], drop_opened_thought(reply.text)
        action = read_calls(reply) if reply.calls else HermesCallFormat().parse_action(text, schemas)
        if isinstance(action, CallError):
            raise ValueError(f"not a usable turn: {action.message}")
        if isinstance(action, AssistantMessage):
            return {"content": action.text}
        calls = [{"id": uuid.uuid4().hex, "name": call.name, "arguments": dict(call.arguments)} for call in action]
        return {"content": None, "tool_calls": calls}

    return respond


def _question(record: Mapping[str, Any], solo: bool) -> str:
    """Return what the user wants, in words, for people and for users that follow a script."""
    if solo and record.get("ticket"):
        return str(record["ticket"])
    instructions = record["user_scenario"]["instructions"]
    return instructions if isinstance(instructions, str) else str(instructions["reason_for_call"])


def _text(event: Event) -> str:
    return "\n".join(message["content"] or "" for message in event["messages"])


def _schema(function: Mapping[str, Any]) -> ToolSchema:
    return ToolSchema(function["name"], function.get("description", ""), function["parameters"])
