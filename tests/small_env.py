"""A small environment: a phone company's data base that the agent acts on, and a phone that only its user can touch.

The user follows a script: says what is wrong, does to the phone what the agent asks, and leaves when the phone works
or after four turns. The grade is 1 if data base and phone end as they would after the task's own solution, else 0.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from agentic.toolorchestra.environment import Ask, CallResult, EnvironmentFault, Start, UserReply
from core.text.tool_calls import ToolCall, ToolSchema, check_call
from core.types import Task

POLICY = """\
You work for a phone company and help one customer, whose phone you cannot touch: ask the customer to change its \
settings or to restart it. Look at the line before you change it. Change nothing that the customer does not need. Data \
are added in the amount that the customer asks for."""
State = dict[str, Any]
KINDS = ("abroad", "empty", "stuck")


def _schema(name: str, description: str, **arguments: str) -> ToolSchema:
    properties = {argument: {"type": kind} for argument, kind in arguments.items()}
    return ToolSchema(name, description, {"type": "object", "properties": properties, "required": list(properties)})


TOOLS = (
    _schema("get_line", "Look at a line: owner, roaming, data left in gigabytes, network.", number="string"),
    _schema("set_roaming", "Switch roaming of a line on or off.", number="string", on="boolean"),
    _schema("add_data", "Add gigabytes to a line.", number="string", gigabytes="integer"),
    _schema("restart_line", "Register a line with the network again.", number="string"),
)


def make_task(name: str, kind: str, seed: int) -> Task:
    """A task of one of the KINDS; numbers, owner and amounts follow from `seed`."""
    rng = Random(f"{kind}-{seed}")
    number, wanted = f"555-{rng.randrange(10000):04d}", rng.randint(1, 9)
    line = {"owner": rng.choice(("Ada", "Ben", "Cleo", "Dan")), "roaming": False, "data": 3, "network": "ok"}
    other = {**line, "owner": "Eve"}
    state = {"lines": {number: line, "555-99999": other}, "phone": {"airplane": kind == "abroad", "restarts": 0}}
    if kind == "empty":
        line["data"] = 0
    if kind == "stuck":
        line["network"] = "lost"
    complaint = {
        "abroad": "I am abroad and have no connection.",
        "empty": f"My data are used up; I want {wanted} more gigabytes.",
        "stuck": "I have had no network since this morning.",
    }[kind]
    question = f"{complaint} My number is {number}."
    metadata = {"category": "func_call", "kind": kind, "number": number, "wanted": wanted, "state": state}
    return Task(name, question, (), metadata=metadata)


def tasks(count: int, seed: int = 0) -> list[Task]:
    return [make_task(f"phone-{i}", KINDS[i % len(KINDS)], seed + i) for i in range(count)]


def solution(task: Task) -> Sequence[ToolCall | str]:
    """The task's own solution: calls and messages to the user, in their order."""
    number = task.metadata["number"]
    look = ToolCall("get_line", {"number": number})
    match task.metadata["kind"]:
        case "abroad":
            return look, ToolCall("set_roaming", {"number": number, "on": True}), "Please leave airplane mode."
        case "empty":
            return look, ToolCall("add_data", {"number": number, "gigabytes": task.metadata["wanted"]}), "Try again."
        case _:
            return look, ToolCall("restart_line", {"number": number}), "Please restart your phone."


class SmallEnvironment:
    """One conversation. An Environment."""

    _task: Task | None = None

    def __init__(self) -> None:
        self._turns_left, self._done = 4, False
        self._state: State = {}

    async def reset(self, task: Task) -> Start:
        if task.metadata.get("kind") not in KINDS or "state" not in task.metadata:
            raise EnvironmentFault("env_task", f"task {task.task_id} is none of small_env.make_task")
        self._task, self._state, self._done = task, copy.deepcopy(task.metadata["state"]), False
        return Start(POLICY, TOOLS, task.question)

    async def user_turn(self, message: str) -> UserReply:
        task = self._open()
        did = _obey(self._state["phone"], message.lower())
        self._turns_left -= 1
        if _works(task, self._state):
            self._done = True
            return UserReply(" ".join([*did, "Thank you, it works now."]), done=True)
        if self._turns_left <= 0:
            self._done = True
            return UserReply("This takes too long. Goodbye.", done=True)
        return UserReply(" ".join([*did, f"It still does not work. My number is {task.metadata['number']}."]))

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> CallResult:
        self._open()
        error = check_call(ToolCall(name, arguments), TOOLS)
        if error is not None:
            return CallResult(f"Error: {error.message}", error=True)
        line = self._state["lines"].get(arguments["number"])
        if line is None:
            return CallResult(f"Error: there is no line {arguments['number']}", error=True)
        return CallResult(_act(name, line, arguments))

    async def evaluate(self) -> float:
        if self._task is None:
            raise EnvironmentFault("env_protocol", "reset comes first")
        state: State = copy.deepcopy(self._task.metadata["state"])
        for step in solution(self._task):
            if isinstance(step, ToolCall):
                _act(step.name, state["lines"][step.arguments["number"]], step.arguments)
            else:
                _obey(state["phone"], step.lower())
        return float(self._state == state)

    async def close(self) -> None:
        return None

    def _open(self) -> Task:
        if self._task is None or self._done:
            raise EnvironmentFault("env_protocol", "the conversation has not begun, or has ended")
        return self._task


class SmallEnvironmentFactory:
    """A factory: `toolorchestra.environment: {path: tests.small_env.SmallEnvironmentFactory}`."""

    def open(self, task: Task, ask: Ask) -> SmallEnvironment:
        return SmallEnvironment()

    async def close(self) -> None:
        return None


def _works(task: Task, state: State) -> bool:
    """Whether the phone does what its user asked for."""
    line, phone = state["lines"][task.metadata["number"]], state["phone"]
    match task.metadata["kind"]:
        case "abroad":
            return bool(line["roaming"]) and not phone["airplane"]
        case "empty":
            return bool(line["data"] >= task.metadata["wanted"])
        case _:
            return bool(line["network"] == "ok") and phone["restarts"] > 0


def _obey(phone: State, message: str) -> list[str]:
    """Do to the phone what the agent's message asks for, and say so."""
    did = []
    if "airplane" in message and phone["airplane"]:
        phone["airplane"] = False
        did.append("Airplane mode is off now.")
    if "restart" in message:
        phone["restarts"] += 1
        did.append("I have restarted it.")
    return did


def _act(name: str, line: State, arguments: Mapping[str, Any]) -> str:
    match name:
        case "get_line":
            return ", ".join(f"{key}: {value}" for key, value in line.items())
        case "set_roaming":
            line["roaming"] = arguments["on"]
            return f"roaming is {'on' if arguments['on'] else 'off'}"
        case "add_data":
            line["data"] += arguments["gigabytes"]
            return f"{line['data']} gigabytes left"
        case _:
            line["network"] = "ok"
            return "the line is registered"
