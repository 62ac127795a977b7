"""tau2-bench as an Environment: its own orchestrator, user simulator and evaluator, played in another process.

Upstream: github.com/sierra-research/tau2-bench (v1.0.1, MIT). Protocols: facts of benchmarks/tau2/README.md.

Why a process and not a thread: tau2 wants Python 3.12 and packages that ours must not have, it opens connections and
patches loggers at import, and grading is CPU under the GIL. What the agent does reaches tau2 only as messages and tool
calls, so how it came to do so (an expert's turn) is invisible to the grader.

Departures: several tool calls of one completion reach tau2 as one message each. An agent that says nothing ends the
conversation as `agent_error`, one that is broken off as `max_steps`; both score 0, as all runs that tau2 ends early.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from agentic.toolorchestra.dialogue import read_calls
from agentic.toolorchestra.environment import Ask, Environment, EnvironmentFault, Result, Said, Start, Worlds
from agentic.toolorchestra.formats import Hermes, Speech
from agentic.toolorchestra.tau2.client import Event, Mailbox, Worker, Workers, check_place
from agentic.toolorchestra.tau2.compat import rewrite
from agentic.toolorchestra.tau2.users import HangsUp, ScriptedUser
from core.policy.openai_chat import Message
from core.text.tool_calls import CallError, ToolSchema
from core.types import Task

Speaker = Callable[[Sequence[Message], Sequence[Message]], Awaitable[Mapping[str, Any]]]
"""The user or the judge: (messages, tools), as OpenAI has them -> content, tool_calls (id, name, arguments)."""


class Tau2Worlds(Worlds):
    """tau2-bench as a recipe's `toolorchestra.environment`.

    `python`: the interpreter that has tau2 (None: this one). `data`: its `data` folder. `processes`: how many play and
    grade. `user`: a name under toolorchestra.models, or `scripted` or `hangs_up` (users.py); None: solo tasks only.
    `judge`: a name under toolorchestra.models, for assertions in words. `compat`: see compat.py.

    Raises:
        ValueError: `python` or `data` is not there, so that a run ends at its start and not in every rollout.
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
            check_place(self.workers.python, data)
        except EnvironmentFault as fault:
            raise ValueError(f"{fault}; for questions alone, set toolorchestra.environment=null") from None
        self._user, self._judge, self._compat = user, judge, compat
        self._limits = {"max_steps": max_steps, "max_errors": max_errors}

    def open(self, task: Task, ask: Ask) -> Tau2Environment:
        user: Speaker | None
        match self._user:
            case "scripted":
                user = ScriptedUser(task)
            case "hangs_up":
                user = HangsUp(task)
            case name:
                user = _speaker(name, ask)
        judge = _speaker(self._judge, ask)
        return Tau2Environment(self.workers, user=user, judge=judge, compat=self._compat, **self._limits)

    async def close(self) -> None:
        self.workers.close()


class Tau2Environment(Environment):
    """One conversation of a Task of `tau2_tasks`. An Environment; `simulation` is tau2's own record once it has ended.

    Without `judge`, tasks whose grade has assertions in words are graded by the data base alone, and say so.
    """

    def __init__(
        self,
        workers: Workers,
        *,
        user: Speaker | None = None,
        judge: Speaker | None = None,
        compat: bool = False,
        max_steps: int = 200,
        max_errors: int = 10,
    ):
        self._workers, self._speakers, self._compat = workers, {"user": user, "judge": judge}, compat
        self._limits = {"max_steps": max_steps, "max_errors": max_errors, "seed": None}
        self._key = uuid.uuid4().hex
        self._worker: Worker | None = None
        self._box: Mailbox | None = None
        self._calls = 0
        self.simulation: Mapping[str, Any] | None = None

    async def reset(self, task: Task) -> Start:
        """Raises EnvironmentFault: `env_task` when the metadata name no task of tau2, or as the other methods do."""
        try:
            domain, name, solo = task.metadata["domain"], task.metadata["tau2_id"], bool(task.metadata["solo"])
        except KeyError as error:
            raise EnvironmentFault(
                "env_task", f"task {task.task_id}: metadata has no {error}; see tau2_tasks"
            ) from None
        if not solo and self._speakers["user"] is None:
            raise EnvironmentFault(
                "env_user", "nobody plays the user: set toolorchestra.environment.options.user, or take solo tasks"
            )
        self._worker = self._workers.pick()
        self._box = self._worker.open(self._key)
        judge = self._speakers["judge"] is not None
        self._send("start", domain=domain, task_id=name, solo=solo, judge=judge, **self._limits)
        begun = await self._next()
        first = await self._until_agent()
        if first is None:
            raise EnvironmentFault("env_task", f"task {task.task_id}: the conversation ended before the agent's turn")
        tools = [_schema(tool["function"]) for tool in begun["tools"]]
        start = Start(begun["system"], tools, begun["ticket"] if solo else _text(first), complete=True)
        return rewrite(start) if self._compat else start

    async def user_turn(self, message: str) -> Said:
        if not message.strip():
            await self._stop("agent_error")
            return Said("", done=True)
        heard = await self._act({"content": message})
        return Said(_text(heard)) if heard else Said(self._last("user"), done=True)

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Result:
        self._calls += 1
        call = {"id": f"call_{self._calls}", "name": name, "arguments": dict(arguments)}
        heard = await self._act({"content": None, "tool_calls": [call]})
        if heard is None:
            return Result(self._last("tool"), done=True)
        return Result(_text(heard), error=any(heard["errors"]))

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
        """What the agent gets to read, after others have spoken; None when the conversation has ended."""
        while True:
            event = await self._next()
            if event["event"] == "end":
                self.simulation = event["simulation"]
                return None
            if event["who"] == "agent":
                return event
            self._send("say", message=await self._spoken(event))

    async def _spoken(self, event: Event) -> Message:
        who = event["who"]
        speaker = self._speakers[who]
        assert speaker is not None  # tau2 asks only whom `start` announced
        try:
            reply = await speaker(event["messages"], event["tools"])
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
        """What `role` said last, if that is how the conversation ended."""
        messages = self.simulation["messages"] if self.simulation else []
        return (messages[-1]["content"] or "") if messages and messages[-1]["role"] == role else ""


async def tau2_tasks(workers: Workers, domain: str, *, split: str | None = "base", solo: bool = False) -> list[Task]:
    """The tasks of a domain (retail, airline, telecom) in the order of tau2. Raises EnvironmentFault.

    `solo`: the agent has the user's tools too and works from a ticket (telecom alone has tasks of this kind).
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


def _speaker(name: str | None, ask: Ask) -> Speaker | None:
    """The model `name` of the recipe. Its calls must be usable as they are: nobody corrects a user or a judge."""
    if name is None:
        return None

    async def speak(messages: Sequence[Message], tools: Sequence[Message]) -> dict[str, Any]:
        reply = await ask(name, messages, tools)
        schemas = [_schema(tool["function"]) for tool in tools]
        action = read_calls(reply) if reply.calls else Hermes().action(reply.text, schemas)
        if isinstance(action, CallError):
            raise ValueError(f"not a usable turn: {action.message}")
        if isinstance(action, Speech):
            return {"content": action.text}
        calls = [{"id": uuid.uuid4().hex, "name": call.name, "arguments": dict(call.arguments)} for call in action]
        return {"content": None, "tool_calls": calls}

    return speak


def _question(record: Mapping[str, Any], solo: bool) -> str:
    """What is wanted, in words: for people, and for users that follow a script."""
    if solo and record.get("ticket"):
        return str(record["ticket"])
    instructions = record["user_scenario"]["instructions"]
    return instructions if isinstance(instructions, str) else str(instructions["reason_for_call"])


def _text(event: Event) -> str:
    return "\n".join(message["content"] or "" for message in event["messages"])


def _schema(function: Mapping[str, Any]) -> ToolSchema:
    return ToolSchema(function["name"], function.get("description", ""), function["parameters"])
